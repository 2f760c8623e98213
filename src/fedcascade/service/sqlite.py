"""The embedded store: SQLite in a file, write-ahead log, synchronous FULL."""

import os
import sqlite3
from collections.abc import Sequence
from typing import ClassVar

from fedcascade.service.sql import SqlStore
from fedcascade.service.sql_journal import TABLES

MIGRATIONS = (
    """
    CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE agent (
        id INTEGER PRIMARY KEY AUTOINCREMENT, public_key BLOB NOT NULL UNIQUE, enrolled REAL NOT NULL, revoked REAL);
    CREATE TABLE enrolment (token_hash BLOB PRIMARY KEY, expires REAL NOT NULL, used REAL);
    CREATE TABLE upload (
        position INTEGER PRIMARY KEY, agent INTEGER NOT NULL, sequence INTEGER NOT NULL, cause TEXT NOT NULL,
        count INTEGER NOT NULL, clicks INTEGER NOT NULL, rounds INTEGER NOT NULL, numbers BLOB NOT NULL,
        UNIQUE (agent, sequence));
    CREATE TABLE answer (position INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE snapshot (
        position INTEGER NOT NULL, part INTEGER NOT NULL, parts INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (position, part))
    """,
    "CREATE TABLE forgotten (position INTEGER PRIMARY KEY)",
    "ALTER TABLE upload ADD COLUMN nonce BLOB NOT NULL DEFAULT x''",
    TABLES.format(whole="INTEGER", number="INTEGER PRIMARY KEY AUTOINCREMENT", real="REAL"),
)


# A page that many commits touch is copied back once per checkpoint, so checkpoints are rare: every 32 MB.
PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "cache_size = -65536",
    "wal_autocheckpoint = 8000",
)


class SqliteStore(SqlStore):
    """One file beside its write-ahead log. The lock of the transaction keeps other writers out."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error,)
    begin: ClassVar[Sequence[str]] = ("BEGIN IMMEDIATE",)

    def scrub(self) -> None:
        """Erased rows are overwritten by ``secure_delete``; the write-ahead log must not keep them either."""
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")


def open_sqlite(path: str) -> SqliteStore:
    """Open a database, make it if it is missing, and bring it up to date."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # nobody else may read it
    except OSError as error:
        raise ValueError(f"cannot open the store '{path}': {error.strerror}") from None
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    store = SqliteStore(connection)
    try:
        for pragma in PRAGMAS:
            store.run(f"PRAGMA {pragma}")
        store.migrate(MIGRATIONS)
    except BaseException:
        connection.close()
        raise
    return store
