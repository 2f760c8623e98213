"""The database of agents: a SQLite file that processes of one machine may share, or PostgreSQL.

Every change is a transaction, so a crash of a process loses nothing. A file is synced to disk before an upload is sent,
so a power cut cannot make an agent reuse a sequence number.
"""

import ctypes
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from fedcascade.checks import require
from fedcascade.platforms import is_running, sync_file
from fedcascade.service.agent.old_files import read_old_agents
from fedcascade.service.agent.sealed_rows import SHARED, AgentRows, DamagedAgents, Run, insert_agent, put_shared, unseal

# ``version`` is a random number that changes with the entries, and ``digest`` seals the row and the names of its
# entries. ``lease`` is the process that may send the agent's uploads until ``lease_until``.
SCHEMA = """
CREATE TABLE pool_agent (
    number {key}, name TEXT NOT NULL UNIQUE, version BIGINT NOT NULL, unsent BIGINT NOT NULL, unsettled BIGINT NOT NULL,
    digest {bytes} NOT NULL, lease BIGINT NOT NULL DEFAULT 0, lease_until {real} NOT NULL DEFAULT 0);
CREATE INDEX pool_agent_waiting ON pool_agent (lease_until) WHERE unsent + unsettled > 0;
CREATE TABLE pool_entry (
    agent BIGINT NOT NULL, name TEXT NOT NULL, value {bytes} NOT NULL, PRIMARY KEY (agent, name));
CREATE TABLE pool_list (
    agent BIGINT NOT NULL, impression BIGINT NOT NULL, arrival BIGINT NOT NULL, shown_at {real} NOT NULL,
    is_open BIGINT NOT NULL, body {bytes} NOT NULL, PRIMARY KEY (agent, impression));
CREATE INDEX pool_list_arrival ON pool_list (agent, arrival);
CREATE TABLE pool_token (value TEXT PRIMARY KEY, is_used BIGINT NOT NULL DEFAULT 0)
"""
VERSION = 7  # of a file
PREPARE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA fullfsync = ON",  # on macOS, flush the drive's cache
    "PRAGMA wal_autocheckpoint = 4000",  # pages of 4 KiB
    "PRAGMA cache_size = -32768",
)
HOLDER_BITS = 31
FREE_LEASES = "UPDATE pool_agent SET lease_until = 0 WHERE unsent + unsettled > 0 AND lease = ?"
BUSY_SECONDS = 20.0  # a process waits this long for the others of a file
MOST_CHECKED = 64 * 2**20  # bytes of a file whose pages are checked when it is opened
CLOSED = "this store of agents is closed: open it again"
FAILURES = (sqlite3.Error, UnicodeDecodeError)  # the latter if a damaged name is not text
# Failures after which the same call may succeed; any other error means damage.
TEMPORARY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN",
             "SQLITE_NOMEM", "SQLITE_INTERRUPT", "SQLITE_PERM", "SQLITE_PROTOCOL")  # fmt: skip


class StoreAway(OSError):  # noqa: N818 (an event, not an accident)
    """A database that cannot be reached for now; whether its last transaction was committed is unknown."""


class AgentDatabase:
    """The base of both kinds of database. ``holder`` is this process in leases: its id, and random bits."""

    lock_row = skip_locked = ""  # ends a query that locks an agent's row, or any free token
    transaction_number = "0"
    now = "(julianday('now') - 2440587.5) * 86400.0"  # seconds since 1970, by the clock that all processes share

    def __init__(self, title: str) -> None:
        self.title, self.is_closed, self._process = title, False, os.getpid()
        self.holder = self._process << HOLDER_BITS | secrets.randbits(HOLDER_BITS)

    def transaction(self) -> AbstractContextManager[Run]:
        """Run a transaction; its value runs a statement and returns the rows."""
        raise NotImplementedError

    def is_committed(self, run: Run, transaction: int) -> bool:  # noqa: ARG002
        """Return whether a transaction of this number was committed; without numbers, it failed if it raised."""
        return False

    def sync_to_disk(self) -> None:
        """Wait until all commits are on disk."""

    def erase_agent(self, number: int) -> None:
        """Delete an agent with its lists."""
        with self.transaction() as run:
            for condition in ("agent WHERE number", "entry WHERE agent", "list WHERE agent"):
                run(f"DELETE FROM pool_{condition} = ?", number)

    def close(self) -> None:
        raise NotImplementedError

    def is_same_process(self) -> bool:
        """Return whether this process opened the database, rather than its parent before a fork."""
        return os.getpid() == self._process

    def require_same_process(self) -> None:
        """Reject a fork of the process that opened the database."""
        opened = f"'{self.title}' was opened by the parent process {self._process}"
        require(self.is_same_process(), f"{opened}: connect after the fork")

    def add_agent(self, name: str) -> int:
        """Return the number of a user's agent; add one for a new name."""
        with self.transaction() as run:
            rows = run("SELECT number FROM pool_agent WHERE name = ?", name)
            return int(rows[0][0]) if rows else insert_agent(run, name)

    def list_names(self) -> list[str]:
        with self.transaction() as run:
            return [name for [name] in run("SELECT name FROM pool_agent ORDER BY number")]

    def find_unfinished(self, most: int) -> list[str]:
        """List up to ``most`` agents with work that no process holds, by name."""
        condition = f"unsent + unsettled > 0 AND lease_until < {self.now}"
        with self.transaction() as run:
            self.free_leases(run)
            statement = f"SELECT name FROM pool_agent WHERE {condition} ORDER BY lease_until LIMIT ?"
            return [name for [name] in run(statement, most)]

    def free_leases(self, run: Run) -> None:
        """Free the leases of processes that are known to be dead; others expire."""

    def release_leases(self) -> None:
        """Free the leases of this process, so that the next one need not wait until they expire."""
        with self.transaction() as run:
            run(FREE_LEASES, self.holder)

    def count_uploads(self) -> int:
        with self.transaction() as run:
            return int(run("SELECT coalesce(sum(unsent), 0) FROM pool_agent")[0][0])

    def add_tokens(self, tokens: Iterable[str]) -> None:
        with self.transaction() as run:
            for token in tokens:
                run("INSERT INTO pool_token (value) VALUES (?) ON CONFLICT DO NOTHING", token)

    def get_shared(self, name: str) -> bytes | None:
        with self.transaction() as run:
            rows = run("SELECT value FROM pool_entry WHERE agent = ? AND name = ?", SHARED, name)
        return unseal(self.title, SHARED, name, bytes(rows[0][0])) if rows else None

    def put_shared(self, name: str, body: bytes) -> None:
        with self.transaction() as run:
            put_shared(run, name, body)


def _create_private(path: str) -> None:
    """Create a file for private keys, unless there is one.

    One that is there is not opened: closing it would cancel the locks of this process's other connections to it.
    """
    with suppress(FileExistsError):
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class AgentFile(AgentDatabase):
    """The SQLite file of agents, or ``:memory:``."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._lock, self._syncing = threading.RLock(), threading.Lock()
        self._waiting = self._synced = 0  # calls of ``sync_to_disk``, and those whose commits are on disk
        self._log: int | None = None  # descriptor of the write-ahead log, for fsync
        try:
            if path != ":memory:":
                _create_private(path)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.OperationalError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"cannot open the agent's store '{path}': {reason}") from None
        try:
            self._prepare(path)
        except BaseException:
            self._connection.close()
            raise
        _OPEN_FILES.add(self)

    def _prepare(self, path: str) -> None:
        try:
            for command in PREPARE:
                self._run(command)
            if path != ":memory:" and Path(path).stat().st_size <= MOST_CHECKED:
                [[finding]] = self._run("PRAGMA integrity_check(1)")
                if finding != "ok":
                    raise DamagedAgents(path, " ".join(finding.split()))
            with self.transaction():
                self._migrate(path)
            if path != ":memory:":
                self._run("PRAGMA wal_checkpoint(FULL)")  # syncs the directory entries of new files
                self._log = os.open(f"{path}-wal", os.O_RDWR)
        except FAILURES as error:
            if _get_code(error).startswith("SQLITE_BUSY"):
                raise ValueError(f"another program holds '{path}': close it, or use another file") from None
            raise DamagedAgents(path, " ".join(str(error).split())) from None

    def _migrate(self, path: str) -> None:
        """Create the tables, or take over those of an older file; refuse other files."""
        [[version]] = self._run("PRAGMA user_version")
        tables = {name for [name] in self._run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        advice = "use the release that wrote it, or enrol again with another file"
        is_known = version in (6, VERSION) or (version == 0 and not tables)
        require(is_known, f"'{path}' must have the agent's file version {VERSION}, got {version}: {advice}")
        if version == VERSION:
            return
        for statement in SCHEMA.format(key="INTEGER PRIMARY KEY", bytes="BLOB", real="REAL").split(";"):
            self._run(statement)
        if version:
            read_old_agents(self._run)
        self._run(f"PRAGMA user_version = {VERSION}")

    def _run(self, statement: str, *values: Any) -> AgentRows:
        return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        self.require_same_process()
        with self._lock:
            require(not self.is_closed, CLOSED)
            try:
                self._run("BEGIN IMMEDIATE")
                try:
                    yield self._run
                    self._run("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # SQLite rolls back by itself if the disk is full
                        self._run("ROLLBACK")
                    raise
            except FAILURES as error:
                raise self._explain(error) from None

    def _explain(self, error: Exception) -> Exception:
        if _get_code(error).startswith(TEMPORARY):
            return OSError(f"cannot write the agent's store ({error}): nothing has changed, retry later")
        return DamagedAgents(self.title, " ".join(str(error).split()))

    def sync_to_disk(self) -> None:
        """Wait until all commits are on disk, those of other processes too. Threads that wait share one sync."""
        self._waiting += 1
        ticket = self._waiting
        with self._syncing:
            if self._log is not None and self._synced < ticket:
                covered = self._waiting
                sync_file(self._log)
                self._synced = covered

    def free_leases(self, run: Run) -> None:
        """Free the leases of processes that no longer run on this machine."""
        held = f"SELECT DISTINCT lease FROM pool_agent WHERE unsent + unsettled > 0 AND lease_until >= {self.now}"
        for [holder] in run(held):
            if not is_running(holder >> HOLDER_BITS):
                run(FREE_LEASES, holder)

    def erase_agent(self, number: int) -> None:
        """Delete an agent with its lists, and overwrite them on disk."""
        with self._lock:
            self._run("PRAGMA secure_delete = ON")
            super().erase_agent(number)
            self._run("PRAGMA secure_delete = OFF")
            with suppress(sqlite3.OperationalError):  # another process reads
                self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock, self._syncing:
            if not self.is_closed:
                if self._log is not None:  # first: Windows cannot delete an open file
                    os.close(self._log)
                    self._log = None
                self._connection.close()
            self.is_closed = True


def _get_code(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", None) or "")


_OPEN_FILES: WeakSet[AgentFile] = WeakSet()


def _abandon_all() -> None:
    """Keep connections open for ever: a fork that closed one would delete the log of its parent."""
    for file in list(_OPEN_FILES):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(file._connection))


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_abandon_all)
