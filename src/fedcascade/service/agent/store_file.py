"""The SQLite file of a single agent, or of all agents of a process.

Every change is a transaction, so the file survives a crash of the process. It is synced to disk before an upload is
sent, so a power cut cannot make an agent reuse a sequence number.
"""

import ctypes
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from fedcascade.checks import require
from fedcascade.systems import sync_file

SCHEMA = """
CREATE TABLE owner (agent INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE token (value TEXT PRIMARY KEY);
CREATE TABLE entry (
    agent INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (agent, name));
CREATE TABLE outbox (
    agent INTEGER NOT NULL, sequence INTEGER NOT NULL, cause TEXT NOT NULL, statistics BLOB NOT NULL,
    PRIMARY KEY (agent, sequence));
CREATE TABLE open_list (
    agent INTEGER NOT NULL, impression INTEGER NOT NULL, shown_at REAL NOT NULL, items BLOB NOT NULL,
    features BLOB NOT NULL, PRIMARY KEY (agent, impression)) WITHOUT ROWID;
CREATE TABLE recorded_list (
    agent INTEGER NOT NULL, impression INTEGER NOT NULL, shown_at REAL NOT NULL, items BLOB NOT NULL, chances BLOB,
    offered BLOB NOT NULL, clicks BLOB, looked INTEGER, PRIMARY KEY (agent, impression)) WITHOUT ROWID;
"""
TABLES = ("entry", "outbox", "open_list", "recorded_list")
VERSION = 6
SHARED = 0  # agent number of entries that all agents share
PREPARE = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA fullfsync = ON",  # on macOS, flush the drive's cache
    "PRAGMA wal_autocheckpoint = 4000",  # pages of 4 KiB
    "PRAGMA cache_size = -32768",
)


class StoreFile:
    """The SQLite file of agents, or ``:memory:``. A caller holds ``lock`` to read or write."""

    def __init__(self, path: str) -> None:
        self.lock = threading.RLock()
        self.is_closed = False
        self._path, self._process = path, os.getpid()
        self._commits, self._commits_on_disk, self._syncing = 0, 0, threading.Lock()
        self._log: int | None = None  # descriptor of the write-ahead log, for fsync
        if path != ":memory:":
            _require_unused(path)
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it holds private keys
            except OSError as error:
                raise ValueError(f"cannot open the agent's store '{path}': {error.strerror}") from None
        self._connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise
        _OPEN_FILES.add(self)

    def _prepare(self) -> None:
        path = self._path
        try:
            for command in PREPARE:
                self.execute(command)
            [version] = self.execute("PRAGMA user_version").fetchone()
            advice = "use the release that wrote it, or enrol again with another file"
            is_known = version in (0, VERSION)
            require(is_known, f"'{path}' must have the agent's file version {VERSION}, got {version}: {advice}")
            if version == 0:
                with self.transaction():
                    for statement in (*SCHEMA.split(";"), f"PRAGMA user_version = {VERSION}"):
                        self.execute(statement)
            if path != ":memory:":
                self.execute("PRAGMA wal_checkpoint(FULL)")  # syncs the directory entries of new files
                self._log = os.open(f"{path}-wal", os.O_RDWR)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise ValueError(f"another process uses '{path}': close it, or use another file") from None
            raise ValueError(f"cannot use '{path}' as an agent's store: {error}") from None

    @property
    def path(self) -> str | None:
        """The real path of the file; None if it is in memory or closed."""
        return None if self._log is None else os.path.realpath(self._path)

    def execute(self, command: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self._connection.execute(command, values)

    def is_same_process(self) -> bool:
        """Return whether this process opened the file, rather than its parent before a fork."""
        return os.getpid() == self._process

    def require_same_process(self) -> None:
        """Reject a fork of the process that opened the file: both would write it."""
        advice = "connect after the fork, with one file per process"
        require(self.is_same_process(), f"'{self._path}' was opened by the parent process {self._process}: {advice}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction; the caller holds ``lock``."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite rolls back by itself if the disk is full
                self._connection.execute("ROLLBACK")
            raise
        self._commits += 1

    def sync_to_disk(self) -> None:
        """Wait until all commits are on disk, without ``lock``. Threads that wait at the same time share one sync."""
        wanted = self._commits
        with self._syncing:
            if self._log is not None and self._commits_on_disk < wanted:
                commits = self._commits
                sync_file(self._log)
                self._commits_on_disk = commits

    def find_agent(self, name: str) -> int:
        """Return the number of a user's agent in this file; add one for a new name."""
        self.execute("INSERT OR IGNORE INTO owner (name) VALUES (?)", (name,))
        [agent] = self.execute("SELECT agent FROM owner WHERE name = ?", (name,)).fetchone()
        return int(agent)

    def list_names(self) -> list[str]:
        return [name for [name] in self.execute("SELECT name FROM owner ORDER BY agent")]

    def find_unfinished(self) -> list[str]:
        """List the agents with unanswered uploads or sums to compare, by name."""
        rows = self.execute(
            "SELECT name FROM owner WHERE agent IN (SELECT agent FROM outbox) OR agent IN "
            "(SELECT agent FROM entry WHERE name = 'unsettled') ORDER BY agent"
        )
        return [name for [name] in rows]

    def count_uploads(self) -> int:
        [count] = self.execute("SELECT count(*) FROM outbox").fetchone()
        return int(count)

    def add_tokens(self, tokens: Iterable[str]) -> None:
        with self.transaction():
            self._connection.executemany("INSERT OR IGNORE INTO token VALUES (?)", [(token,) for token in tokens])

    def take_token(self) -> str | None:
        """Remove and return a token, in the caller's transaction."""
        row = self.execute("DELETE FROM token WHERE value = (SELECT min(value) FROM token) RETURNING value").fetchall()
        return row[0][0] if row else None

    def erase_agent(self, agent: int) -> None:
        """Delete an agent, and overwrite its data on disk."""
        self.execute("PRAGMA secure_delete = ON")
        with self.transaction():
            for table in (*TABLES, "owner"):
                self.execute(f"DELETE FROM {table} WHERE agent = ?", (agent,))
        self.execute("PRAGMA secure_delete = OFF")
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self.lock, self._syncing:
            if not self.is_closed:
                if self._log is not None:  # first: Windows cannot delete an open file
                    os.close(self._log)
                    self._log = None
                self._connection.close()
            self.is_closed = True

    def abandon(self) -> None:
        """Keep this connection open for ever: a fork that closed it would delete the log of its parent."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


_OPEN_FILES: WeakSet[StoreFile] = WeakSet()


def _require_unused(path: str) -> None:
    is_open = os.path.realpath(path) in {file.path for file in _OPEN_FILES}
    require(not is_open, f"this process has opened '{path}' already: use that agent, or close it")


def _abandon_all() -> None:
    for file in list(_OPEN_FILES):
        file.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_abandon_all)
