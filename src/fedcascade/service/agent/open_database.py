"""Databases of agents by path or URL."""

import logging
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fedcascade.service.agent.database import FAILURES, AgentDatabase, AgentFile
from fedcascade.service.agent.entries import IDENTITY
from fedcascade.service.agent.sealed_rows import UNSETTLED, DamagedAgents, insert_agent, unseal

log = logging.getLogger("fedcascade.agent")


def open_database(store: str, *, start_over: bool = False) -> AgentDatabase:
    """Open the file or PostgreSQL database of agents.

    With ``start_over``, a damaged file is renamed, and its agents go on with the keys that can be read.
    """
    if store.startswith(("postgresql://", "postgres://")):
        try:
            from fedcascade.service.agent.postgres import AgentPostgres  # here, because psycopg is an extra
        except ImportError:
            raise ValueError("PostgreSQL needs psycopg: pip install 'fedcascade[postgres]'") from None
        return AgentPostgres(store)
    try:
        return AgentFile(store)
    except DamagedAgents as damage:
        if not start_over:
            raise
        return _replace_file(store, damage)


def _replace_file(path: str, damage: DamagedAgents) -> AgentDatabase:
    """Move a damaged file away, and begin another one with the identities that can be read from it."""
    moved = f"{path}.damaged-{Path(path).stat().st_mtime_ns}"
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(path + suffix).rename(moved + suffix)
    identities = _read_identities(moved)
    log.warning("%s; the file is now '%s', and %d agents go on with their keys", damage, moved, len(identities))
    file = AgentFile(path)
    with file.transaction() as run:
        for name, values in identities.items():
            insert_agent(run, name, values | {UNSETTLED: b"true"})
    return file


def _read_identities(path: str) -> dict[str, dict[str, bytes]]:
    """Read the undamaged identities of a damaged file, as far as SQLite reads it."""
    identities: dict[str, dict[str, bytes]] = {}
    with suppress(*FAILURES), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")  # reads tables beside a damaged one
        query = "SELECT number, u.name, e.name, value FROM pool_agent u JOIN pool_entry e ON agent = number"
        for number, user, name, value in connection.execute(query):
            if name in IDENTITY and isinstance(value, bytes):
                with suppress(DamagedAgents):
                    identities.setdefault(str(user), {})[name] = unseal(path, number, name, value)
    return {user: values for user, values in identities.items() if "key" in values}
