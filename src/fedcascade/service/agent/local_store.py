"""The store of one agent on its device: key, state, open lists and unanswered uploads."""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.agent import ShownList, begin
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data import OwnData
from fedcascade.federation.own_data_keeper import make_policy_data
from fedcascade.federation.policies import Policy
from fedcascade.learning.cascade import Examination
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.ledger import SavedState, follow, sum_outbox, take_prior
from fedcascade.service.agent.options import PolicyCache
from fedcascade.service.agent.store_file import StoreFile
from fedcascade.service.protocol import wire

ENROLMENT = "enrolment"  # entry with the server's answer; its prior is dropped once the agent has taken it
SAVE_ENTRY = "INSERT INTO entry VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
# Drops up to two expired lists for each new one, without reading all lists of an agent.
DROP_OLD_LISTS = (
    "DELETE FROM open_list WHERE agent = ?1 AND (impression <= ?2 OR shown_at < ?3 AND impression IN "
    "(SELECT impression FROM open_list WHERE agent = ?1 ORDER BY impression LIMIT 2))"
)
COUNTS = 48  # bytes of six integers before the buffer
DECODED_AS_SAVED = ("confirmed", "outbox", "receipt", "last_change", "lost", "unsettled")
OWN_ARRAYS = ("total", "since", "others_gram", "others_moment", "cusum", "weight", "noise", "deviation")
# Time, items, propensities, features on offer, clicks and examined positions.
RecordedList = tuple[float, bytes, bytes | None, bytes, bytes, int]
Result = TypeVar("Result")
log = logging.getLogger("fedcascade.agent")


@dataclass(frozen=True)
class OpenList:
    """A list without feedback: its number, its rows, and its time in seconds since 1970."""

    impression: int
    items: tuple[int, ...]
    shown_at: float


class LocalStore:
    """The rows of one agent in a ``StoreFile``."""

    def __init__(self, file: StoreFile, agent: int) -> None:
        self.file, self.agent = file, agent

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.file.lock, self.file.transaction():
            yield

    def get_entry(self, name: str) -> bytes | None:
        query = "SELECT value FROM entry WHERE agent = ? AND name = ?"
        with self.file.lock:
            row = self.file.execute(query, (self.agent, name)).fetchone()
        return None if row is None else bytes(row[0])

    def put_entry(self, name: str, value: bytes | None) -> None:
        """Save an entry; delete it if None."""
        if value is None:
            self.file.execute("DELETE FROM entry WHERE agent = ? AND name = ?", (self.agent, name))
        else:
            self.file.execute(SAVE_ENTRY, (self.agent, name, value))

    def begin_ledger(self) -> None:
        """Reset the ledger for a new identity, of which the server holds nothing."""
        for name in ("confirmed", "receipt", "last_change", "unsettled", "own"):
            self.put_entry(name, None)

    def add_open_list(self, shown: ShownList, shown_at: float, *, keep: int, keep_seconds: float) -> None:
        """Save a list for its feedback, and delete expired ones. The newest list has the number of arrivals."""
        body = shown.items.astype("<i8").tobytes(), shown.features.astype("<f4").tobytes()
        row = self.agent, shown.impression, shown_at, *body
        self.file.execute("INSERT INTO open_list VALUES (?, ?, ?, ?, ?)", row)
        self.file.execute(DROP_OLD_LISTS, (self.agent, shown.impression - keep, shown_at - keep_seconds))

    def record_list(self, shown: ShownList, shown_at: float, offered: NDArray[np.float32], keep: int) -> None:
        """Record a list with all items on offer; keep the newest ``keep`` ones."""
        chances = None if shown.propensities is None else shown.propensities.astype("<f8").tobytes()
        body = shown.items.astype("<i8").tobytes(), chances, offered.astype("<f4").tobytes()
        row = self.agent, shown.impression, shown_at, *body
        self.file.execute("INSERT INTO recorded_list VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)", row)
        expired = self.agent, shown.impression - keep
        self.file.execute("DELETE FROM recorded_list WHERE agent = ? AND impression <= ?", expired)

    def close_list(self, impression: int) -> None:
        self.file.execute("DELETE FROM open_list WHERE agent = ? AND impression = ?", (self.agent, impression))

    def record_feedback(self, impression: int, seen: Examination) -> None:
        row = np.array(seen.clicks, "<i8").tobytes(), seen.examined, self.agent, impression
        self.file.execute("UPDATE recorded_list SET clicks = ?, looked = ? WHERE agent = ? AND impression = ?", row)

    def load_recorded_lists(self) -> list[RecordedList]:
        query = (
            "SELECT shown_at, items, chances, offered, clicks, looked FROM recorded_list "
            "WHERE agent = ? AND clicks IS NOT NULL ORDER BY impression"
        )
        return self.file.execute(query, (self.agent,)).fetchall()

    def load_open_list(self, impression: int, id_: int, dimension: int) -> tuple[ShownList, float] | None:
        """Load a list without feedback, and its time."""
        query = "SELECT items, features, shown_at FROM open_list WHERE agent = ? AND impression = ?"
        row = self.file.execute(query, (self.agent, impression)).fetchone()
        if row is None:
            return None
        items, features = np.frombuffer(row[0], "<i8"), np.frombuffer(row[1], "<f4").reshape(-1, dimension)
        return ShownList(id_, impression, items.astype(np.intp), features.astype(np.float32)), row[2]

    def list_open_lists(self) -> list[OpenList]:
        rows = self.file.execute(
            "SELECT impression, items, shown_at FROM open_list WHERE agent = ? ORDER BY impression", (self.agent,)
        )
        return [OpenList(number, tuple(np.frombuffer(items, "<i8").tolist()), at) for number, items, at in rows]


class LocalMemory:
    """The state of one agent, in memory and in the store, and its policy under the server's terms.

    The caller's thread and those of the exchange loop use it. All agents of a file share a lock.
    """

    def __init__(self, store: LocalStore, policies: PolicyCache, newcomer: wire.EnrolmentAnswer | None = None) -> None:
        """Load an agent from its store; ``newcomer`` has terms and prior for one that has not enrolled."""
        self.store, self.has_left = store, False
        self._policies, self._newcomer = policies, newcomer
        self._saved: dict[str, Any] = {}  # parts of the state in the store
        self.policy: Policy
        self.state: SavedState
        self.load()

    def load(self) -> None:
        """Load the agent from its store, and take a new prior."""
        with self.store.file.lock:
            stored = self.store.get_entry(ENROLMENT)
            enrolment = msgspec.json.decode(stored, type=wire.EnrolmentAnswer) if stored is not None else self._newcomer
            assert enrolment is not None
            self.policy = self._policies.follow_terms(enrolment.terms)
            self.state = _decode_state(self.store, self.policy, enrolment)
            self._saved = {name: part for name, part in _list_parts(self.state, {}).items() if name in DECODED_AS_SAVED}
            if not isinstance(enrolment.prior, msgspec.UnsetType):
                self.update(lambda state: (self._take_prior(state), None))

    def _take_prior(self, state: SavedState) -> SavedState:
        message = state.enrolment.prior
        assert isinstance(message, wire.PriorMessage)
        rest = state._replace(enrolment=msgspec.structs.replace(state.enrolment, prior=msgspec.UNSET))
        try:
            return take_prior(self.policy, rest, message)
        except ValueError as error:
            log.info("agent %d: the server's prior is invalid: %s", state.enrolment.agent, error)
            return rest

    def follow(self, terms: wire.Terms) -> None:
        policy = self._policies.follow_terms(terms)

        def change(state: SavedState) -> tuple[SavedState, None]:
            enrolment = msgspec.structs.replace(state.enrolment, terms=terms)
            return follow(policy, state, enrolment, state.local.download.statistics), None

        with self.store.file.lock:
            self.update(change)
            self.policy = policy

    def update(self, change: Callable[[SavedState], tuple[SavedState, Result]], *, is_saved: bool = True) -> Result:
        """Change the state in one transaction; ``change`` returns the next state and a result.

        ``change`` may also write lists in the same transaction. If these hold all changes, the state need not be saved.
        """
        with self.store.file.lock:
            try:
                with self.store.file.transaction():
                    after, result = change(self.state)
                    saved = self._save(after) if is_saved else self._saved
            except sqlite3.Error as error:
                raise OSError(f"cannot write the agent's store ({error}): nothing has changed, retry later") from None
            self.state, self._saved = after, saved
            return result

    def _save(self, state: SavedState) -> dict[str, Any]:
        """Save the parts of a state that have changed; return all parts."""
        known = self._saved
        parts = _list_parts(state, known)
        for name, part in parts.items():
            if part is known.get(name, ...):
                continue
            if name == "outbox":
                self._save_outbox(part, known.get(name))
            else:
                self.store.put_entry(name, _encode(part))
        return parts

    def _save_outbox(self, outbox: tuple[Upload, ...], known: tuple[Upload, ...] | None) -> None:
        file, agent = self.store.file, self.store.agent
        kept, stored = ({upload.sequence for upload in uploads} for uploads in (outbox, known or ()))
        if known is None:
            file.execute("DELETE FROM outbox WHERE agent = ?", (agent,))
        for sequence in stored - kept:
            file.execute("DELETE FROM outbox WHERE agent = ? AND sequence = ?", (agent, sequence))
        for upload in outbox:
            if upload.sequence not in stored:
                row = agent, upload.sequence, upload.cause.value, _encode(upload.statistics)
                file.execute("INSERT INTO outbox VALUES (?, ?, ?, ?)", row)


def _list_parts(state: SavedState, known: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a state to save. A part keeps its identity while it does not change."""
    local, own = state.local, state.local.own
    closed = known["blocks"] if known.get("own", ...) is own else _encode_closed_blocks(own)
    counts = local.arrivals, local.uploads, state.rounds, state.agents, state.since, local.change_pending
    return {
        "progress": (local.buffer, counts),
        "download": local.download.statistics,
        "own": own,
        "blocks": known["blocks"] if closed == known.get("blocks") else closed,
        "confirmed": state.confirmed,
        "outbox": state.outbox,
        "receipt": state.receipt,
        "last_change": state.last_change,
        "lost": state.lost,
        "unsettled": None if state.is_settled else True,
        ENROLMENT: state.enrolment if state.enrolment.agent else None,
    }


def _encode(part: Any) -> bytes | None:
    """Encode a part of a state; closed blocks of own data are a separate part."""
    if isinstance(part, Statistics):
        return np.array((part.count, part.clicks, part.rounds), "<i8").tobytes() + wire.pack_numbers(part)
    if type(part) is tuple:
        return np.array(part[1], "<i8").tobytes() + (_encode(part[0]) or b"")
    if isinstance(part, OwnData):
        used = int(part.used[0])
        recent: dict[str, Any] = {name: getattr(part, name).astype("<f8").tobytes() for name in OWN_ARRAYS}
        recent |= {"levels": part.levels[:used].tolist(), "places": len(part.levels)}
        return msgspec.msgpack.encode(recent | {"newest": part.blocks[used - 1 : used].astype("<f8").tobytes()})
    return part if part is None or isinstance(part, bytes) else msgspec.json.encode(part)


def _encode_closed_blocks(own: OwnData | None) -> bytes:
    """Encode all blocks but the newest one: they rarely change."""
    return b"" if own is None else own.blocks[: max(0, int(own.used[0]) - 1)].astype("<f8").tobytes()


def _decode_statistics(body: bytes | None, dimension: int) -> Statistics:
    if body is None:
        return Statistics.zero(dimension)
    return wire.unpack_statistics(body[24:], tuple(np.frombuffer(body[:24], "<i8").tolist()), dimension)


def _decode_own_data(recent: bytes, closed: bytes, empty: OwnData) -> OwnData | None:
    """Fill empty own data; return None if the bytes have the layout of another policy."""
    state = msgspec.msgpack.decode(recent)
    sizes = {name: getattr(empty, name).nbytes for name in OWN_ARRAYS}
    if state["places"] != len(empty.levels) or any(len(state[name]) != size for name, size in sizes.items()):
        return None
    for name in OWN_ARRAYS:
        array = getattr(empty, name)
        array[...] = np.frombuffer(state[name], "<f8").reshape(array.shape)
    used = len(state["levels"])
    empty.used[0], empty.levels[:used] = used, state["levels"]
    empty.blocks[:used] = np.frombuffer(closed + state["newest"], "<f8").reshape(used, empty.total.size)
    return empty


def _decode_state(store: LocalStore, policy: Policy, enrolment: wire.EnrolmentAnswer) -> SavedState:
    """Load the saved state, and continue it under a policy."""
    file, row, d = store.file, (store.agent,), enrolment.terms.dimension
    entries = {name: bytes(value) for name, value in file.execute("SELECT name, value FROM entry WHERE agent = ?", row)}
    progress = entries.get("progress")
    counts = (0, 0, 0, 1, 0, 0) if progress is None else np.frombuffer(progress[:COUNTS], "<i8").tolist()
    arrivals, uploads, rounds, agents, since, change_pending = counts
    [newest] = file.execute("SELECT coalesce(max(impression), 0) FROM open_list WHERE agent = ?", row).fetchone()
    sent = file.execute("SELECT sequence, cause, statistics FROM outbox WHERE agent = ? ORDER BY sequence", row)
    outbox = tuple(
        Upload(agent=enrolment.agent, sequence=sequence, cause=Cause(cause), statistics=_decode_statistics(body, d))
        for sequence, cause, body in sent
    )
    own, receipt = None, entries.get("receipt")
    if policy.keeps_own_data and "own" in entries:
        own = _decode_own_data(entries["own"], entries["blocks"], make_policy_data(policy, (), d))
    buffer = _decode_statistics(progress and progress[COUNTS:], d)
    local = begin(policy, d, enrolment.agent)._replace(
        arrivals=max(arrivals, newest), uploads=uploads, buffer=buffer, own=own, change_pending=bool(change_pending)
    )
    state = SavedState(
        local=local,
        enrolment=enrolment,
        confirmed=_decode_statistics(entries.get("confirmed"), d),
        outbox=outbox,
        rounds=rounds,
        agents=agents,
        since=since,
        is_settled="unsettled" not in entries,
        last_change=int(entries.get("last_change", 0)),
        receipt=None if receipt is None else msgspec.json.decode(receipt, type=wire.Receipt),
        lost=int(entries.get("lost", 0)),
    )
    if not change_pending:
        state = state._replace(local=local._replace(unanswered=sum_outbox(state)))
    return follow(policy, state, enrolment, _decode_statistics(entries.get("download"), d))
