"""The record of one agent in a database: versioned entries, and the lease of the process that sends its uploads."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from fedcascade.checks import require
from fedcascade.service.agent.database import AgentDatabase, StoreAway
from fedcascade.service.agent.sealed_rows import (
    NEW,
    PUT_ENTRY,
    SIZE,
    DamagedAgents,
    Run,
    digest_agent,
    save_agent_row,
    seal,
    unseal,
)

LEASE_SECONDS = 20.0  # twice the time limit of a request; a process that takes longer is fenced off
PATIENCE_SECONDS = 15.0  # a call waits this long for a database that restarts
RETRY_SECONDS = 0.1
KEY, NEXT_KEY, TOKEN, ENROLMENT, HISTORY = "key", "next_key", "token", "enrolment", "history"
UNSETTLED = "unsettled"
IDENTITY = (KEY, NEXT_KEY, TOKEN, ENROLMENT, HISTORY)  # entries that survive damage of others
GONE = "this agent is closed: connect again"
Result = TypeVar("Result")
log = logging.getLogger("fedcascade.agent")


class FencedOff(Exception):  # noqa: N818 (an event, not an accident)
    """Another process sends this agent's uploads now."""


class SavedRecord:
    """The entries of one agent, read again when another process has changed them.

    A thread holds ``lock`` to use it. If the record is damaged and ``start_over`` is set, only the identity is kept.
    """

    def __init__(self, database: AgentDatabase, name: str, *, start_over: bool = False) -> None:
        self.database, self.name, self.number = database, name, database.add_agent(name)
        self.lock, self.has_left = threading.RLock(), False
        self.version: int | None = None  # of the entries in memory; None if they may be stale
        self._values: dict[str, bytes] = {}  # sealed
        self.puts: dict[str, bytes | None] = {}  # entries to save in the transaction under way; None deletes one
        self._run: Run | None = None
        self.waiting = 0, 0  # unanswered uploads, and 1 if sums are to be compared; saved with the entries
        self._start_over = start_over

    @property
    def run(self) -> Run:
        """A function that runs statements of the transaction under way."""
        assert self._run is not None
        return self._run

    @property
    def entries(self) -> dict[str, bytes]:
        """All entries by name."""
        return {name: value[SIZE:] for name, value in self._values.items()}

    def get(self, name: str) -> bytes | None:
        """Return an entry, as it was put or read last."""
        if name in self.puts:
            return self.puts[name]
        return self._values[name][SIZE:] if name in self._values else None

    def update(self, change: Callable[[], Result], *, is_fenced: bool = False) -> Result:
        """Run a change of the newest entries in one transaction; again, if the database goes away before its commit.

        With ``is_fenced``, raise ``FencedOff`` if this process has lost its lease; else give the lease back.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        tried: tuple[int, dict[str, bytes], Result] | None = None
        with self.lock:
            while True:
                try:
                    with self.database.transaction() as self._run:
                        version = self._read_version(self._run, is_fenced=is_fenced)
                        if tried is None or version != tried[0]:  # else the first attempt was committed
                            self._read(self._run, version)
                            result = change()
                            tried = (*self._write(self._run, is_fenced=is_fenced), result)
                    self.version, self._values = tried[:2]
                    return tried[2]
                except BaseException as error:
                    self.version = None
                    if not isinstance(error, StoreAway) or time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_SECONDS)
                finally:
                    self._run, self.puts = None, {}

    def _read_version(self, run: Run, *, is_fenced: bool) -> int:
        """Lock the agent's row, and return its version."""
        rows = run(f"SELECT version, lease FROM pool_agent WHERE number = ?{self.database.lock_row}", self.number)
        self.has_left = self.has_left or not rows
        require(not self.has_left, GONE)
        if is_fenced and rows[0][1] != self.database.holder:
            raise FencedOff
        return int(rows[0][0])

    def _read(self, run: Run, version: int) -> None:
        """Read all entries if their version is not the one in memory, and check their digests."""
        if version == self.version:
            return
        [(name, *waiting, digest)] = run(
            "SELECT name, unsent, unsettled, digest FROM pool_agent WHERE number = ?", self.number
        )
        rows = run("SELECT name, value FROM pool_entry WHERE agent = ?", self.number)
        values = {entry: bytes(value) for entry, value in rows}
        try:
            for entry, value in values.items():
                unseal(self.database.title, self.number, entry, value)
            known = digest_agent(
                (self.number, name, version, *waiting), {name: value[:SIZE] for name, value in values.items()}
            )
            is_whole = name == self.name and (not values if version == NEW else known == bytes(digest))
            if not is_whole:
                raise DamagedAgents(self.database.title, f"the row of agent {self.number}")
        except DamagedAgents as damage:
            if not self._start_over:
                raise
            log.warning("user '%s' starts over: %s", self.name, damage)
            version, values = self._keep_identity(run, values)
            waiting = [0, 1]
        self.version, self._values, self.waiting = version, values, (waiting[0], waiting[1])

    def _keep_identity(self, run: Run, values: Mapping[str, bytes]) -> tuple[int, dict[str, bytes]]:
        """Keep the undamaged entries of the agent's identity; delete all others, and all lists."""
        for table in ("entry", "list"):
            run(f"DELETE FROM pool_{table} WHERE agent = ?", self.number)
        kept = {UNSETTLED: seal(self.number, UNSETTLED, b"true")}
        for name in IDENTITY:
            with suppress(DamagedAgents, KeyError):
                unseal(self.database.title, self.number, name, values[name])
                kept[name] = values[name]
        for name, value in kept.items():
            run(PUT_ENTRY, self.number, name, value)
        run("UPDATE pool_agent SET name = ? WHERE number = ?", self.name, self.number)
        return save_agent_row(
            run, (self.number, self.name), {name: value[:SIZE] for name, value in kept.items()}, (0, 1)
        ), kept

    def _write(self, run: Run, *, is_fenced: bool) -> tuple[int, dict[str, bytes]]:
        """Write the entries that were put; return the version and all entries."""
        assert self.version is not None
        if is_fenced:
            self._set_lease(run, 0.0)
        if not self.puts:
            return self.version, self._values
        values = dict(self._values)
        for name, body in self.puts.items():
            if body is not None:
                values[name] = seal(self.number, name, body)
                run(PUT_ENTRY, self.number, name, values[name])
            elif values.pop(name, None) is not None:
                run("DELETE FROM pool_entry WHERE agent = ? AND name = ?", self.number, name)
        return save_agent_row(
            run, (self.number, self.name), {name: value[:SIZE] for name, value in values.items()}, self.waiting
        ), values

    def has_changed(self) -> bool:
        """Return whether another process has changed the entries, or erased them."""
        with self.database.transaction() as run:
            rows = run("SELECT version FROM pool_agent WHERE number = ?", self.number)
        self.has_left = self.has_left or not rows
        return self.has_left or rows[0][0] != self.version

    def acquire(self) -> bool:
        """Take the lease, unless another process holds it."""
        now, holder = self.database.now, self.database.holder
        free = f"(lease = ? OR lease_until < {now} OR lease_until > {now} + 2 * {LEASE_SECONDS})"
        statement = (
            f"UPDATE pool_agent SET lease = ?, lease_until = {now} + {LEASE_SECONDS} WHERE number = ? AND {free}"
        )
        with self.database.transaction() as run:
            return bool(run(f"{statement} RETURNING number", holder, self.number, holder))

    def postpone(self, seconds: float) -> None:
        """Keep other processes from sending for some time; this one may."""
        with self.database.transaction() as run:
            self._set_lease(run, min(seconds, LEASE_SECONDS))

    def _set_lease(self, run: Run, seconds: float) -> None:
        statement = f"UPDATE pool_agent SET lease_until = {self.database.now} + ? WHERE number = ? AND lease = ?"
        run(statement, seconds, self.number, self.database.holder)
