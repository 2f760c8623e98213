"""The file in which agents keep what they know: one for a single agent, or one for all agents of a process.

Every change is a transaction. The file survives the death of the process at any moment; before an upload leaves the
device it is forced to the disk, so that even a power cut cannot make an agent reuse a sequence number.
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
VERSION = 5
SHARED = 0  # in the place of an agent, for entries that belong to no single one
ADD_AGENT = "INSERT OR IGNORE INTO owner (name) VALUES (?)"
WAL_PAGES = 4_000  # of 4 KiB, before they are moved into the database
PREPARE = ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL",
           "PRAGMA fullfsync = ON",  # on macOS, beyond the cache of the drive
           f"PRAGMA wal_autocheckpoint = {WAL_PAGES}", "PRAGMA cache_size = -32768")  # fmt: skip


class StoreFile:
    """What agents keep, in one SQLite file or in ``:memory:``. A caller that reads or writes holds ``lock``."""

    def __init__(self, path: str) -> None:
        self.lock = threading.RLock()
        self.is_closed = False
        self._path, self._process = path, os.getpid()
        self._commits, self._commits_on_disk, self._syncing = 0, 0, threading.Lock()
        self._log: int | None = None  # descriptor of the write-ahead log, to force it to the disk
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
            is_known = version in (0, VERSION)
            require(is_known, f"'{path}' is an agent's file of version {version}, this fedcascade reads {VERSION}: "
                    "use the release that wrote it, or enrol again with another file")  # fmt: skip
            if version == 0:
                with self.transaction():
                    for statement in (*SCHEMA.split(";"), f"PRAGMA user_version = {VERSION}"):
                        self.execute(statement)
            if path != ":memory:":
                self.execute("PRAGMA wal_checkpoint(FULL)")  # the names of new files are on the disk from now on
                self._log = os.open(f"{path}-wal", os.O_RDWR)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise ValueError(f"another process uses '{path}': an agent has one process at a time") from None
            raise ValueError(f"cannot use '{path}' as an agent's store: {error}") from None

    @property
    def path(self) -> str | None:
        """Where the file really is; None if it is in memory or closed."""
        return None if self._log is None else os.path.realpath(self._path)

    def execute(self, command: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self._connection.execute(command, values)

    def is_mine(self) -> bool:
        """Whether this process opened the file, and is no fork of the one that did."""
        return os.getpid() == self._process

    def require_same_process(self) -> None:
        """Refuse to go on in a fork of the process that opened the file: both would write it."""
        if not self.is_mine():
            line = f"'{self._path}' was opened by process {self._process}, and this is a fork of it"
            raise ValueError(f"{line}: connect after the fork, each process with a file of its own")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Change all or nothing; the caller holds ``lock``."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # on a full disk, SQLite has rolled back by itself
                self._connection.execute("ROLLBACK")
            raise
        self._commits += 1

    def sync_to_disk(self) -> None:
        """Wait until everything that was committed has reached the disk, without ``lock``.

        Many agents share a turn: if another thread has done it meanwhile, nothing is left to do.
        """
        wanted = self._commits
        with self._syncing:
            if self._log is not None and self._commits_on_disk < wanted:
                commits = self._commits
                sync_file(self._log)
                self._commits_on_disk = commits

    def find_agent(self, name: str) -> int:
        """The number of an agent within this file, by the name that the application has for its user."""
        self.execute(ADD_AGENT, (name,))
        [agent] = self.execute("SELECT agent FROM owner WHERE name = ?", (name,)).fetchone()
        return int(agent)

    def list_names(self) -> list[str]:
        return [name for [name] in self.execute("SELECT name FROM owner ORDER BY agent")]

    def find_unfinished(self) -> list[str]:
        """The names of agents that have something to send, or to compare with the server."""
        rows = self.execute(
            "SELECT name FROM owner WHERE agent IN (SELECT agent FROM outbox) OR agent IN "
            "(SELECT agent FROM entry WHERE name = 'unsettled') ORDER BY agent"
        )
        return [name for [name] in rows]

    def count_uploads(self) -> int:
        """How many uploads of all agents have not been answered."""
        [count] = self.execute("SELECT count(*) FROM outbox").fetchone()
        return int(count)

    def add_tokens(self, tokens: Iterable[str]) -> None:
        """Keep enrolment tokens until agents use them up."""
        with self.transaction():
            self._connection.executemany("INSERT OR IGNORE INTO token VALUES (?)", [(token,) for token in tokens])

    def take_token(self) -> str | None:
        """Take a token out of the stock; the caller holds a transaction and keeps the token for one agent."""
        row = self.execute("DELETE FROM token WHERE value = (SELECT min(value) FROM token) RETURNING value").fetchall()
        return row[0][0] if row else None

    def erase_agent(self, agent: int) -> None:
        """Delete everything of an agent, and overwrite it on disk."""
        self.execute("PRAGMA secure_delete = ON")
        with self.transaction():
            for table in (*TABLES, "owner"):
                self.execute(f"DELETE FROM {table} WHERE agent = ?", (agent,))
        self.execute("PRAGMA secure_delete = OFF")
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self.lock, self._syncing:
            if not self.is_closed:
                if self._log is not None:  # first: Windows deletes no file that is open
                    os.close(self._log)
                    self._log = None
                self._connection.close()
            self.is_closed = True

    def abandon(self) -> None:
        """Never close this connection: a fork that did would delete the log that its parent goes on writing."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


_OPEN_FILES: WeakSet[StoreFile] = WeakSet()


def _require_unused(path: str) -> None:
    is_open = os.path.realpath(path) in {file.path for file in _OPEN_FILES}
    require(not is_open, f"this process uses '{path}' already: close the agent that does, or go on with that one")


def _abandon_all() -> None:
    for file in list(_OPEN_FILES):
        file.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_abandon_all)
