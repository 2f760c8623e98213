"""The embedded store: SQLite in one file with a write-ahead log."""

import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import ClassVar

from fedcascade.checks import require
from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.sql import MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore

ROWS_PER_CHECKPOINT = 4_000  # 2,000 uploads: the write-ahead log stays at some ten megabytes
COPIED = ("setting", "agent", "nonce", "journal", "move")  # tables whose rows have no digest
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # copies the log into the database, as far as readers allow


class SqliteStore(SqlStore):
    """A database in a file. ``BEGIN IMMEDIATE`` excludes other writers from the start of a transaction."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error,)
    on_connect: ClassVar[Sequence[str]] = (
        "PRAGMA journal_mode = WAL",  # readers, such as a dashboard, do not block the writer
        "PRAGMA synchronous = FULL",  # a commit is on disk before it is acknowledged
        "PRAGMA fullfsync = ON",  # on macOS, beyond the cache of the drive
        "PRAGMA secure_delete = ON",  # deleted data are overwritten with zeros
        "PRAGMA cache_size = -65536",  # 64 MiB
        "PRAGMA wal_autocheckpoint = 0",  # ``run_maintenance`` does, so that no commit waits for it
    )
    begin: Sequence[str] = ("BEGIN IMMEDIATE",)
    column_types: ClassVar[Mapping[str, str]] = {"integer": "INTEGER", "real": "REAL", "bytes": "BLOB"}

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        super().__init__(connection)
        self._path = path
        self._checkpoint: threading.Thread | None = None
        self._changes_copied = 0

    def run_maintenance(self, *, purge: bool = False) -> bool:
        """Checkpoint the write-ahead log, most of it in a thread while the writer goes on.

        The small rest is copied here, and the log is reused from its start. With ``purge`` it is truncated now, because
        it may still hold deleted rows.
        """
        if purge:
            self._join_checkpoint()
            busy, _, _ = self.fetch_row("PRAGMA wal_checkpoint(TRUNCATE)")
            return not busy
        if self._checkpoint is None:
            if self.connection.total_changes - self._changes_copied >= ROWS_PER_CHECKPOINT:
                self._checkpoint = threading.Thread(target=checkpoint, args=(self._path,), name="fedcascade-checkpoint")
                self._checkpoint.start()
        elif not self._checkpoint.is_alive():
            self._checkpoint, self._changes_copied = None, self.connection.total_changes
            with suppress(sqlite3.Error):
                self.run(CHECKPOINT)
        return True

    def _migrate(self, migrations: Sequence[str]) -> None:
        """Migrate, and have the database copy each row of ``COPIED``, by triggers that earlier versions keep up too."""
        super()._migrate(migrations)
        with self.transaction():
            for table in COPIED:
                if not self._list_columns(f"{table}_copy"):
                    self._copy_rows(table)

    def _list_columns(self, table: str) -> list[tuple[str, str, bool]]:
        """List name, type and whether it is part of the key of each column."""
        return [(row[1], row[2], bool(row[5])) for row in self.fetch_rows(f"PRAGMA table_info({table})")]

    def _copy_rows(self, table: str) -> None:
        columns = self._list_columns(table)
        names, declared = ", ".join(each[0] for each in columns), ", ".join(f"{each[0]} {each[1]}" for each in columns)
        keys = [name for name, _, is_key in columns if is_key]
        copy, is_old = f"{table}_copy", " AND ".join(f"{key} = OLD.{key}" for key in keys)
        self.run(f"CREATE TABLE {copy} ({declared}, PRIMARY KEY ({', '.join(keys)})) WITHOUT ROWID")
        self.run(f"INSERT INTO {copy} SELECT {names} FROM {table}")
        delete = f"DELETE FROM {copy} WHERE {is_old};"
        insert = f"INSERT INTO {copy} ({names}) VALUES ({', '.join(f'NEW.{each[0]}' for each in columns)});"
        for event, work in (("INSERT", insert), ("UPDATE", delete + insert), ("DELETE", delete)):
            self.run(f"CREATE TRIGGER {copy}_{event} AFTER {event} ON {table} BEGIN {work} END")

    def check_pages(self) -> None:
        finding = self.fetch_row("PRAGMA integrity_check(1)")[0]
        if finding != "ok":
            raise DamagedStore(" ".join(finding.split()))
        for table in COPIED:
            copy, columns = f"{table}_copy", self._list_columns(f"{table}_copy")
            keys = ", ".join(name for name, _, is_key in columns if is_key)
            differs = " OR ".join(f"{table}.{name} IS NOT {copy}.{name}" for name, _, _ in columns)
            different = f"SELECT count(*) FROM {table} LEFT JOIN {copy} USING ({keys}) WHERE {differs}"
            surplus = f"SELECT (SELECT count(*) FROM {copy}) - (SELECT count(*) FROM {table})"
            if columns and (self.fetch_row(different)[0] or self.fetch_row(surplus)[0]):
                raise DamagedStore(f"rows of the table '{table}' are not those that were written")

    def close(self) -> None:
        self._join_checkpoint()
        super().close()

    def _join_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None


def checkpoint(path: str) -> None:
    """Checkpoint a database on a separate connection, twice, so that little remains."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        for _ in range(2):
            connection.execute(CHECKPOINT)


def open_sqlite(path: str, migrations: Sequence[str] | None = MIGRATIONS) -> SqliteStore:
    """Open, create or migrate a database; refuse a file that is damaged, empty or of another program.

    With None as ``migrations`` the file must exist, and stays as it is.
    """
    try:
        if migrations is not None and not Path(path).exists():
            _create(path, migrations)
        size = Path(path).stat().st_size
    except OSError as error:
        raise ValueError(f"cannot open the store '{path}': {error.strerror}") from None
    if size <= 1:  # which SQLite takes for a new database
        raise DamagedStore(f"'{path}' is an empty file: to begin a new store, delete the file")
    require(
        os.access(path, os.R_OK) and Path(path).is_file(), f"cannot open the store '{path}': it is no readable file"
    )
    return _connect(path, migrations)


def _connect(path: str, migrations: Sequence[str] | None) -> SqliteStore:
    connection = sqlite3.connect(
        path, timeout=10.0, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        _require_own_tables(connection, path)
        _require_whole(connection, path)
        return SqliteStore(connection, path).prepare(migrations)
    except Exception as error:
        connection.close()
        line = " ".join(str(error).split())
        if isinstance(error, sqlite3.OperationalError):  # locked, full, or a failing disk
            raise Unavailable(f"cannot open the store '{path}': {line}") from None
        if isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError):  # the latter if a table's name is not text
            raise DamagedStore(f"'{path}': {line}") from None
        raise


def _create(path: str, migrations: Sequence[str]) -> None:
    """Create a database under another name and rename it, so that a crash leaves no empty file."""
    draft = f"{path}.{os.getpid()}.{threading.get_ident()}.new"
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # private to the user
    try:
        _connect(draft, migrations).close()
        _name_file(draft, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(draft + suffix).unlink(missing_ok=True)


def _name_file(draft: str, path: str) -> None:
    """Rename a file unless another process was faster."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links, such as exFAT
        if not Path(path).exists():
            Path(draft).rename(path)


def _require_own_tables(connection: sqlite3.Connection, path: str) -> None:
    """Refuse the database of an agent or of another program."""
    tables = {name for [name] in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "migration" not in tables:
        owner = "an agent" if "pool_agent" in tables or "outbox" in tables else "another program"
        raise ValueError(f"'{path}' is the database of {owner}, not a server's store: name another file")


def _require_whole(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a truncated file: SQLite notices it when it reads what is missing.

    The file is not opened: closing it would cancel the locks of this process's other connections to it. Another process
    would then delete the write-ahead log under them.
    """
    [[pages], [page_size]] = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    wal = Path(f"{path}-wal")  # may hold the missing pages; once it is empty, the file has them
    if wal.exists() and wal.stat().st_size:
        return
    size, expected = Path(path).stat().st_size, pages * page_size
    if size < expected:
        raise DamagedStore(f"'{path}' has {size} bytes and should have {expected}")
