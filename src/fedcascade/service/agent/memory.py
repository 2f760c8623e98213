"""The memory of one agent: its state, saved as entries of a database, and the lease of the process that sends.

A change of the state and of lists is one transaction. Other processes may change the entries in between; their version
tells.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from fedcascade.checks import require
from fedcascade.federation.policies import Policy
from fedcascade.service.agent.database import AgentDatabase, StoreAway
from fedcascade.service.agent.entries import ENROLMENT, IDENTITY, decode_state, encode_part, list_parts
from fedcascade.service.agent.ledger import SavedState, follow, take_prior
from fedcascade.service.agent.options import PolicyCache
from fedcascade.service.agent.saved_lists import SavedLists
from fedcascade.service.agent.sealed_rows import (
    UNSETTLED,
    UPLOAD,
    DamagedAgents,
    Run,
    read_entries,
    read_values,
    save_entries,
    unseal,
)
from fedcascade.service.protocol import wire

LEASE_SECONDS = 20.0  # twice the time limit of a request; a process that takes longer is fenced off
PATIENCE_SECONDS = 15.0  # a call waits this long for a database that restarts
RETRY_SECONDS = 0.1
GONE = "this agent is closed: connect again"
Result = TypeVar("Result")
Change = Callable[[SavedState], tuple[SavedState, Result]]
log = logging.getLogger("fedcascade.agent")


class FencedOff(Exception):  # noqa: N818 (an event, not an accident)
    """Another process sends this agent's uploads now."""


class Saved(NamedTuple):
    """The rows of an agent as they were read or written. ``version`` is None if they may have changed since."""

    version: int | None
    digests: dict[str, bytes]  # of all entries
    identity: dict[str, bytes]  # entries of the agent's identity
    parts: dict[str, Any]  # of the state, as the entries have them


UNREAD = Saved(None, {}, {}, {})


class LocalMemory:
    """The state of one agent. The caller's thread and those of the exchange loop use it, and other processes change it.

    A thread holds ``lock`` to use it. ``introduce`` returns terms and prior for an agent that has not enrolled. If the
    entries are damaged and ``start_over`` is set, only the identity is kept.
    """

    policy: Policy

    def __init__(
        self,
        database: AgentDatabase,
        name: str,
        policies: PolicyCache,
        introduce: Callable[[], wire.EnrolmentAnswer],
        *,
        start_over: bool = False,
    ) -> None:
        self.database, self.name, self.number = database, name, database.add_agent(name)
        self.lock, self.has_left = threading.RLock(), False
        self.puts: dict[str, bytes | None] = {}  # entries to save in the transaction under way; None deletes one
        self._run: Run | None = None
        self._policies, self._start_over = policies, start_over
        self._newcomer: wire.EnrolmentAnswer | None = None
        self._saved, self.state = UNREAD, cast(SavedState, None)  # an agent without terms has no state
        if self.update(lambda state: (state, self.get(ENROLMENT))) is None:
            self._saved, self._newcomer = UNREAD, introduce()
        self.load()

    @property
    def title(self) -> str:
        number = f"agent {self.state.enrolment.agent}"
        return f"user '{self.name}' ({number})" if self.name else number

    @property
    def has_prior(self) -> bool:
        """True from enrolment to the first answer, if the server sent a prior."""
        local = self.state.local
        known, has_trust = local.download.statistics, self.policy.trust is not None
        others = local.own.others_gram if has_trust and local.own is not None else known.gram
        return known.count == 0 and bool(others.any())

    @property
    def run(self) -> Run:
        """A function that runs statements of the transaction under way."""
        assert self._run is not None
        return self._run

    @property
    def lists(self) -> SavedLists:
        """The agent's lists, in the transaction under way."""
        return SavedLists(self.run, self.database.title, self.number)

    def get(self, name: str) -> bytes | None:
        """Return an entry of the agent's identity, as it was put or read last."""
        return self.puts[name] if name in self.puts else self._saved.identity.get(name)

    def put(self, entries: Mapping[str, bytes | None]) -> None:
        """Save entries; None deletes one."""
        self.update(lambda state: (state, self.puts.update(entries)))

    def load(self) -> None:
        """Load the newest state, and take a new prior."""
        self.update(self._take_prior)

    def _take_prior(self, state: SavedState) -> tuple[SavedState, None]:
        message = state.enrolment.prior
        if isinstance(message, msgspec.UnsetType):
            return state, None
        rest = state._replace(enrolment=msgspec.structs.replace(state.enrolment, prior=msgspec.UNSET))
        try:
            return take_prior(self.policy, rest, message), None
        except ValueError as error:
            log.info("%s: the server's prior is invalid: %s", self.title, error)
            return rest, None

    def accept(self, terms: wire.Terms) -> Policy:
        """Return the policy of other terms; refuse less privacy than the agent was promised."""
        policy, promised = self._policies.follow_terms(terms), self.policy.privacy
        is_kept = promised is None or not promised.weakens(policy.privacy)
        require(is_kept, f"{self.title} keeps to {promised}: the server's new terms promise less; connect a new agent")
        return policy

    def follow(self, terms: wire.Terms) -> None:
        """Continue under other terms."""
        policy = self.accept(terms)

        def change(state: SavedState) -> tuple[SavedState, None]:
            enrolment = msgspec.structs.replace(state.enrolment, terms=terms)
            return follow(policy, state, enrolment, state.local.download.statistics), None

        with self.lock:
            self.update(change)
            self.policy = policy

    def update(self, change: Change[Result], *, is_saved: bool = True, is_fenced: bool = False) -> Result:
        """Change the newest state in one transaction; ``change`` returns the next state and a result.

        ``change`` may also write lists, and put entries. If these hold all changes, the state need not be saved. It
        runs again if the database goes away before its commit. With ``is_fenced``, raise ``FencedOff`` if this process
        has lost its lease; else give the lease back.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        tried: tuple[int, int, Saved, SavedState, Result] | None = None
        with self.lock:
            while True:
                try:
                    with self.database.transaction() as self._run:
                        version, transaction = self._lock_row(is_fenced=is_fenced)
                        # The first attempt may have been committed: the version tells, or else the database.
                        if tried is None or version == tried[0] or not self.database.is_committed(self._run, tried[1]):
                            self._read(version)
                            after, result = change(self.state)
                            tried = version, transaction, *self._write(after, is_saved=is_saved), result
                            if is_fenced:
                                self._set_lease(self._run, 0.0)
                    _, _, self._saved, self.state, result = tried
                    return result
                except BaseException as error:
                    self._saved = self._saved._replace(version=None)
                    if not isinstance(error, StoreAway) or time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_SECONDS)
                finally:
                    self._run, self.puts = None, {}

    def _lock_row(self, *, is_fenced: bool) -> tuple[int, int]:
        """Lock the agent's row; return its version and the number of the transaction."""
        columns, lock = f"version, lease, {self.database.transaction_number}", self.database.lock_row
        rows = self.run(f"SELECT {columns} FROM pool_agent WHERE number = ?{lock}", self.number)
        self.has_left = self.has_left or not rows
        require(not self.has_left, GONE)
        if is_fenced and rows[0][1] != self.database.holder:
            raise FencedOff
        return int(rows[0][0]), int(rows[0][2])

    def _read(self, version: int) -> None:
        """Read all entries if their version is not the one in memory, and check their digests."""
        if version == self._saved.version:
            return
        try:
            entries, digests = read_entries(self.run, self.database.title, self.number, self.name, version)
        except DamagedAgents as damage:
            if not self._start_over:
                raise
            log.warning("user '%s' starts over: %s", self.name, damage)
            version, digests, entries = self._keep_identity()
        identity = {entry: entries[entry] for entry in IDENTITY if entry in entries}
        self._saved = Saved(version, digests, identity, self._decode(entries))

    def _keep_identity(self) -> tuple[int, dict[str, bytes], dict[str, bytes]]:
        """Keep the undamaged entries of the agent's identity; delete all others, and all lists."""
        kept, values = {UNSETTLED: b"true"}, read_values(self.run, self.number)
        for name in IDENTITY:
            with suppress(DamagedAgents, KeyError):
                kept[name] = unseal(self.database.title, self.number, name, values[name])
        for table in ("entry", "list"):
            self.run(f"DELETE FROM pool_{table} WHERE agent = ?", self.number)
        self.run("UPDATE pool_agent SET name = ? WHERE number = ?", self.name, self.number)
        return *save_entries(self.run, self.number, self.name, kept, {}), kept

    def _decode(self, entries: Mapping[str, bytes]) -> dict[str, Any]:
        """Decode the state under the policy of its terms; return its parts that are as in the entries."""
        enrolment = self._newcomer
        if ENROLMENT in entries:
            enrolment = msgspec.json.decode(entries[ENROLMENT], type=wire.EnrolmentAnswer)
        if enrolment is None:
            return {}
        self.policy = self._policies.follow_terms(enrolment.terms)
        [[newest]] = self.run("SELECT coalesce(max(arrival), 0) FROM pool_list WHERE agent = ?", self.number)
        self.state = decode_state(entries, self.policy, enrolment, newest)
        parts = list_parts(self.state, {})
        return {name: part for name, part in parts.items() if encode_part(part) == entries.get(name)}

    def _write(self, state: SavedState, *, is_saved: bool) -> tuple[Saved, SavedState]:
        """Write the entries that were put, and those of parts of the state that have changed."""
        saved, puts, parts = self._saved, self.puts, self._saved.parts
        if is_saved and state is not self.state:
            parts = list_parts(state, saved.parts)
            puts |= {name: None for name in saved.digests if name.startswith(UPLOAD) and name not in parts}
            puts |= {name: encode_part(part) for name, part in parts.items() if part is not saved.parts.get(name, ...)}
        if not puts:
            return saved, state
        version, digests = save_entries(self.run, self.number, self.name, puts, saved.digests)
        if state is self.state:  # entries of the state may have been put
            self._saved = saved._replace(version=None)
            self._read(version)
            return self._saved, self.state
        identity = {name: body for name in IDENTITY if (body := self.get(name)) is not None}
        return Saved(version, digests, identity, parts), state

    def has_changed(self) -> bool:
        """Return whether another process has changed the entries, or erased them."""
        with self.database.transaction() as run:
            rows = run("SELECT version FROM pool_agent WHERE number = ?", self.number)
        self.has_left = self.has_left or not rows
        return self.has_left or rows[0][0] != self._saved.version

    def acquire(self) -> bool:
        """Take the lease, unless another process holds it."""
        now, holder = self.database.now, self.database.holder
        free = f"(lease = ? OR lease_until < {now} OR lease_until > {now} + 2 * {LEASE_SECONDS})"
        taken = f"UPDATE pool_agent SET lease = ?, lease_until = {now} + {LEASE_SECONDS} WHERE number = ? AND {free}"
        with self.database.transaction() as run:
            return bool(run(f"{taken} RETURNING number", holder, self.number, holder))

    def postpone(self, seconds: float) -> None:
        """Keep other processes from sending for some time; this one may."""
        with self.database.transaction() as run:
            self._set_lease(run, min(seconds, LEASE_SECONDS))

    def _set_lease(self, run: Run, seconds: float) -> None:
        statement = f"UPDATE pool_agent SET lease_until = {self.database.now} + ? WHERE number = ? AND lease = ?"
        run(statement, seconds, self.number, self.database.holder)
