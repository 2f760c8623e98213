"""The embedded store: SQLite in one file, beside its write-ahead log."""

import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import ClassVar

from fedcascade.service.store.schema import MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore

ROWS_PER_CHECKPOINT = 4_000  # 2,000 uploads: the log stays at some ten megabytes, and busy pages are copied once
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # copies the write-ahead log into the database, as far as readers allow


class SqliteStore(SqlStore):
    """A database in a file. ``BEGIN IMMEDIATE`` keeps other writers out from the start of a transaction."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error,)
    on_connect: ClassVar[Sequence[str]] = (
        "PRAGMA journal_mode = WAL",  # readers, such as a dashboard, do not hold up the writer
        "PRAGMA synchronous = FULL",  # a commit is on the disk before anybody is told of it
        "PRAGMA secure_delete = ON",  # what is deleted is overwritten with zeros
        "PRAGMA cache_size = -65536",  # 64 MiB
        "PRAGMA wal_autocheckpoint = 0",  # no commit waits for a checkpoint: ``SqliteStore.run_maintenance`` makes them
    )
    begin: Sequence[str] = ("BEGIN IMMEDIATE",)
    column_types: ClassVar[Mapping[str, str]] = {
        "integer": "INTEGER",
        "real": "REAL",
        "bytes": "BLOB",
        "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
    }

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        super().__init__(connection)
        self._path = path
        self._checkpoint: threading.Thread | None = None
        self._changes_copied = 0

    def run_maintenance(self) -> None:
        """Checkpoint the write-ahead log, most of it in a thread beside the writer, which goes on writing.

        What came meanwhile is little and is copied here; then the log starts again from its beginning.
        """
        if self._checkpoint is None:
            if self.connection.total_changes - self._changes_copied >= ROWS_PER_CHECKPOINT:
                self._checkpoint = threading.Thread(target=checkpoint, args=(self._path,), name="fedcascade-checkpoint")
                self._checkpoint.start()
        elif not self._checkpoint.is_alive():
            self._checkpoint, self._changes_copied = None, self.connection.total_changes
            with suppress(sqlite3.Error):
                self.run(CHECKPOINT)

    def purge_deleted_rows(self) -> None:
        """Empty the write-ahead log, which may still hold rows that ``secure_delete`` has overwritten."""
        self._join_checkpoint()
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._join_checkpoint()
        super().close()

    def _join_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None


def checkpoint(path: str) -> None:
    """Checkpoint a database on a connection of its own, twice: the second time is short and leaves little to do."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        for _ in range(2):
            connection.execute(CHECKPOINT)


def open_sqlite(path: str, migrations: Sequence[str] = MIGRATIONS) -> SqliteStore:
    """Open a database, make it if it is missing, and bring it up to date."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # nobody else may read it
    except OSError as error:
        raise ValueError(f"cannot open the store '{path}': {error.strerror}") from None
    connection = sqlite3.connect(
        path, timeout=10.0, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    return SqliteStore(connection, path).prepare(migrations)
