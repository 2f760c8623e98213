"""The embedded store: SQLite in a file, write-ahead log, synchronous FULL."""

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import ClassVar

from fedcascade.service.store.sql import SqlStore
from fedcascade.service.store.sql_journal import TABLES

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


# Checkpoints copy the write-ahead log back into the database; ``SqliteStore.run_maintenance`` makes them, not a commit.
PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "cache_size = -65536",
    "wal_autocheckpoint = 0",
)
ROWS_PER_CHECKPOINT = 4_000  # 2,000 uploads: the log stays at some ten megabytes, and busy pages are copied once
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"


class SqliteStore(SqlStore):
    """One file beside its write-ahead log. The lock of the transaction keeps other writers out."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error,)
    begin: ClassVar[Sequence[str]] = ("BEGIN IMMEDIATE",)

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        super().__init__(connection)
        self._path = path
        self._checkpoint: threading.Thread | None = None
        self._copied = 0

    def run_maintenance(self) -> None:
        """Copy the write-ahead log back: most of it in a thread beside the writer, which goes on writing.

        What came meanwhile is little and is copied here; then the log starts again from its beginning.
        """
        if self._checkpoint is None:
            if self.connection.total_changes - self._copied >= ROWS_PER_CHECKPOINT:
                self._checkpoint = threading.Thread(target=copy_back, args=(self._path,), name="fedcascade-checkpoint")
                self._checkpoint.start()
        elif not self._checkpoint.is_alive():
            self._checkpoint, self._copied = None, self.connection.total_changes
            with suppress(sqlite3.Error):
                self.run(CHECKPOINT)

    def purge_deleted_rows(self) -> None:
        """Erased rows are overwritten by ``secure_delete``; the write-ahead log must not keep them either."""
        self._wait()
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let go of the file."""
        self._wait()
        super().close()

    def _wait(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None


def copy_back(path: str) -> None:
    """A checkpoint by a connection of its own; the second one is short and leaves little to do."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        for _ in range(2):
            connection.execute(CHECKPOINT)


def open_sqlite(path: str) -> SqliteStore:
    """Open a database, make it if it is missing, and bring it up to date."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # nobody else may read it
    except OSError as error:
        raise ValueError(f"cannot open the store '{path}': {error.strerror}") from None
    connection = sqlite3.connect(
        path, timeout=10.0, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    store = SqliteStore(connection, path)
    try:
        for pragma in PRAGMAS:
            store.run(f"PRAGMA {pragma}")
        store.migrate(MIGRATIONS)
    except BaseException:
        connection.close()
        raise
    return store
