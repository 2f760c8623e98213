"""The state of one agent, in memory and in its record, and its policy under the server's terms."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from fedcascade.federation.agent import begin
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data import OwnData
from fedcascade.federation.own_data_keeper import make_policy_data
from fedcascade.federation.policies import Policy
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.ledger import SavedState, follow, sum_outbox, take_prior
from fedcascade.service.agent.options import PolicyCache
from fedcascade.service.agent.record import ENROLMENT, UNSETTLED, SavedRecord
from fedcascade.service.protocol import wire

COUNTS = 48  # bytes of six integers before the buffer
UPLOAD = "upload "  # prefix of the entry of an unanswered upload, before its sequence number
LEDGER = ("confirmed", "receipt", "last_change", UNSETTLED, "own")  # entries about what the server holds
OWN_ARRAYS = ("total", "since", "others_gram", "others_moment", "cusum", "weight", "noise", "deviation")
Result = TypeVar("Result")
Change = Callable[[SavedState], tuple[SavedState, Result]]
log = logging.getLogger("fedcascade.agent")


class LocalMemory:
    """The state of one agent. The caller's thread and those of the exchange loop use it, and other processes change it.

    ``newcomer`` has terms and prior for an agent that has not enrolled.
    """

    def __init__(
        self, record: SavedRecord, policies: PolicyCache, newcomer: wire.EnrolmentAnswer | None = None
    ) -> None:
        self.record, self._policies, self._newcomer = record, policies, newcomer
        self._saved: dict[str, Any] = {}  # parts of the state in the record
        self._version: int | None = None  # of the record that ``state`` was decoded from
        self.policy: Policy
        self.state: SavedState
        self.load()

    @property
    def title(self) -> str:
        """The agent's name in messages."""
        number = f"agent {self.state.enrolment.agent}"
        return f"user '{self.record.name}' ({number})" if self.record.name else number

    def load(self) -> None:
        """Load the newest state, and take a new prior."""
        with self.record.lock:
            self.record.update(self._decode)
            if not isinstance(self.state.enrolment.prior, msgspec.UnsetType):
                self.update(lambda state: (self._take_prior(state), None))

    def refresh(self) -> SavedState:
        """Return the newest state; other processes may have changed it."""
        if self.record.has_changed():
            self.load()
        return self.state

    def _decode(self) -> None:
        """Decode the state if the record has another version."""
        if self._version is not None and self._version == self.record.version:
            return
        entries = self.record.entries
        stored = entries.get(ENROLMENT)
        enrolment = msgspec.json.decode(stored, type=wire.EnrolmentAnswer) if stored is not None else self._newcomer
        assert enrolment is not None
        self.policy = self._policies.follow_terms(enrolment.terms)
        self.state = _decode_state(self.record, entries, self.policy, enrolment)
        parts = _list_parts(self.state, {})
        self._saved = {
            name: part for name, part in parts.items() if name == "outbox" or _encode(part) == entries.get(name)
        }
        self._version = self.record.version

    def _take_prior(self, state: SavedState) -> SavedState:
        message = state.enrolment.prior
        if isinstance(message, msgspec.UnsetType):  # another process has taken it
            return state
        rest = state._replace(enrolment=msgspec.structs.replace(state.enrolment, prior=msgspec.UNSET))
        try:
            return take_prior(self.policy, rest, message)
        except ValueError as error:
            log.info("%s: the server's prior is invalid: %s", self.title, error)
            return rest

    def follow(self, terms: wire.Terms) -> None:
        """Continue under other terms."""
        policy = self._policies.follow_terms(terms)

        def change(state: SavedState) -> tuple[SavedState, None]:
            enrolment = msgspec.structs.replace(state.enrolment, terms=terms)
            return follow(policy, state, enrolment, state.local.download.statistics), None

        with self.record.lock:
            self.update(change)
            self.policy = policy

    def update(self, change: Change[Result], *, is_saved: bool = True, is_fenced: bool = False) -> Result:
        """Change the newest state in one transaction; ``change`` returns the next state and a result.

        ``change`` may also write lists in the same transaction. If these hold all changes, the state need not be saved.
        With ``is_fenced``, only the process with the agent's lease may change it.
        """
        attempt: list[tuple[SavedState, dict[str, Any]]] = []

        def run() -> Result:
            self._decode()
            after, result = change(self.state)
            attempt[:] = [(after, self._put(after) if is_saved else self._saved)]
            return result

        with self.record.lock:
            result = self.record.update(run, is_fenced=is_fenced)
            [(self.state, self._saved)], self._version = attempt, self.record.version
            return result

    def _put(self, state: SavedState) -> dict[str, Any]:
        """Put the parts of a state that have changed; return all parts."""
        known, puts = self._saved, self.record.puts
        parts = _list_parts(state, known)
        for name, part in parts.items():
            if part is known.get(name, ...):
                continue
            if name != "outbox":
                puts[name] = _encode(part)
                continue
            stored = {upload.sequence for upload in known.get(name) or ()}
            for sequence in stored - {upload.sequence for upload in part}:
                puts[f"{UPLOAD}{sequence}"] = None
            for upload in part:
                if upload.sequence not in stored:
                    body = _encode(upload.statistics) or b""
                    puts[f"{UPLOAD}{upload.sequence}"] = f"{upload.cause.value}\n".encode() + body
        self.record.waiting = len(state.outbox), int(not state.is_settled)
        return parts


def _list_parts(state: SavedState, known: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a state to save. A part keeps its identity while it does not change."""
    local, own = state.local, state.local.own
    is_same = "blocks" in known and known.get("own", ...) is own
    closed = known["blocks"] if is_same else _encode_closed_blocks(own)
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
        UNSETTLED: None if state.is_settled else True,
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
    used, width = len(state["levels"]), empty.total.size
    newest = np.frombuffer(closed + state["newest"], "<f8").reshape(used, -1) if used else empty.blocks[:0]
    if len(state["total"]) == 8 * (width - 1):  # of version 0.3, without shortfalls
        state |= {name: state[name] + bytes(8) for name in ("total", "since")}
        newest = np.pad(newest, ((0, 0), (0, width - newest.shape[1])))
    if state["places"] != len(empty.levels) or any(len(state[name]) != size for name, size in sizes.items()):
        return None
    for name in OWN_ARRAYS:
        array = getattr(empty, name)
        array[...] = np.frombuffer(state[name], "<f8").reshape(array.shape)
    empty.used[0], empty.levels[:used], empty.blocks[:used] = used, state["levels"], newest
    return empty


def _decode_state(
    record: SavedRecord, entries: dict[str, bytes], policy: Policy, enrolment: wire.EnrolmentAnswer
) -> SavedState:
    """Decode the saved state, and continue it under a policy."""
    d, progress = enrolment.terms.dimension, entries.get("progress")
    counts = (0, 0, 0, 1, 0, 0) if progress is None else np.frombuffer(progress[:COUNTS], "<i8").tolist()
    arrivals, uploads, rounds, agents, since, change_pending = counts
    [[newest]] = record.run("SELECT coalesce(max(arrival), 0) FROM pool_list WHERE agent = ?", record.number)
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
        outbox=_decode_outbox(entries, enrolment.agent, d),
        rounds=rounds,
        agents=agents,
        since=since,
        is_settled=UNSETTLED not in entries,
        last_change=int(entries.get("last_change", 0)),
        receipt=None if receipt is None else msgspec.json.decode(receipt, type=wire.Receipt),
        lost=int(entries.get("lost", 0)),
    )
    if not change_pending:
        state = state._replace(local=local._replace(unanswered=sum_outbox(state)))
    return follow(policy, state, enrolment, _decode_statistics(entries.get("download"), d))


def _decode_outbox(entries: dict[str, bytes], agent: int, dimension: int) -> tuple[Upload, ...]:
    outbox = []
    for number in sorted(int(name.removeprefix(UPLOAD)) for name in entries if name.startswith(UPLOAD)):
        cause, _, body = entries[f"{UPLOAD}{number}"].partition(b"\n")
        statistics = _decode_statistics(body, dimension)
        outbox.append(Upload(agent=agent, sequence=number, cause=Cause(cause.decode()), statistics=statistics))
    return tuple(outbox)


def begin_ledger(record: SavedRecord) -> None:
    """Reset the ledger in the transaction under way, for a new identity, of which the server holds nothing."""
    for name in LEDGER:
        record.puts[name] = None
    record.waiting = record.waiting[0], 0
