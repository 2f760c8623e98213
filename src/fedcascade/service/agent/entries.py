"""The entries of an agent in its store: their names, and the encoding of its state as entries."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from fedcascade.federation.agent import begin
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data import OwnData
from fedcascade.federation.own_data_keeper import make_policy_data
from fedcascade.federation.policies import Policy
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.ledger import SavedState, follow, sum_outbox
from fedcascade.service.agent.sealed_rows import UNSETTLED, UPLOAD
from fedcascade.service.protocol import wire

KEY, NEXT_KEY, TOKEN, ENROLMENT, HISTORY = "key", "next_key", "token", "enrolment", "history"
IDENTITY = (KEY, NEXT_KEY, TOKEN, ENROLMENT, HISTORY)  # entries that survive damage of others
# The changes for a new identity, of which the server holds nothing.
NEW_LEDGER: dict[str, bytes | None] = dict.fromkeys(("confirmed", "receipt", "last_change", UNSETTLED, "own"))
COUNTS = 48  # bytes of six integers before the buffer
OWN_ARRAYS = ("total", "since", "others_gram", "others_moment", "cusum", "weight", "noise", "deviation")


def list_parts(state: SavedState, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a state to save. A part keeps its identity while it does not change."""
    local, own = state.local, state.local.own
    is_same = "blocks" in known and known.get("own", ...) is own
    closed = b""  # all blocks but the newest one: they rarely change
    if own is not None:
        closed = known["blocks"] if is_same else own.blocks[: max(0, int(own.used[0]) - 1)].astype("<f8").tobytes()
    counts = local.arrivals, local.uploads, state.rounds, state.agents, state.since, local.change_pending
    parts = {f"{UPLOAD}{upload.sequence}": upload for upload in state.outbox}
    return parts | {
        "progress": (local.buffer, counts),
        "first": local.first,
        "download": local.download.statistics,
        "own": own,
        "blocks": known["blocks"] if closed == known.get("blocks") else closed,
        "confirmed": state.confirmed,
        "receipt": state.receipt,
        "last_change": state.last_change,
        "lost": state.lost,
        UNSETTLED: None if state.is_settled else True,
        ENROLMENT: state.enrolment if state.enrolment.agent else None,
    }


def encode_part(part: Any) -> bytes | None:
    """Encode a part of a state; closed blocks of own data are a separate part."""
    match part:
        case Upload():
            return f"{part.cause.value}\n".encode() + (encode_part(part.statistics) or b"")
        case Statistics():
            return np.array((part.count, part.clicks, part.rounds), "<i8").tobytes() + wire.pack_numbers(part)
        case Statistics() as buffer, counts:
            return np.array(counts, "<i8").tobytes() + (encode_part(buffer) or b"")
        case OwnData():
            used = int(part.used[0])
            recent: dict[str, Any] = {name: getattr(part, name).astype("<f8").tobytes() for name in OWN_ARRAYS}
            recent |= {"levels": part.levels[:used].tolist(), "places": len(part.levels)}
            return msgspec.msgpack.encode(recent | {"newest": part.blocks[used - 1 : used].astype("<f8").tobytes()})
        case None | bytes():
            return part
    return msgspec.json.encode(part)


def decode_state(
    entries: Mapping[str, bytes], policy: Policy, enrolment: wire.EnrolmentAnswer, newest: int
) -> SavedState:
    """Decode the saved state, and continue it under a policy; ``newest`` is the arrival of the newest list."""
    d, progress = enrolment.terms.dimension, entries.get("progress")
    counts = (0, 0, 0, 1, 0, 0) if progress is None else np.frombuffer(progress[:COUNTS], "<i8").tolist()
    arrivals, uploads, rounds, agents, since, change_pending = counts
    if progress is None and UNSETTLED in entries and policy.privacy is not None:
        uploads = policy.privacy.uploads  # it starts over: what its user has spent is lost, so it may be all
    own, receipt = None, entries.get("receipt")
    if policy.keeps_own_data and "own" in entries:
        own = _decode_own_data(entries["own"], entries["blocks"], make_policy_data(policy, (), d))
    buffer = _decode_statistics(progress and progress[COUNTS:], d)
    local = begin(policy, d, enrolment.agent)._replace(
        arrivals=max(arrivals, newest), uploads=uploads, buffer=buffer, own=own, change_pending=bool(change_pending),
        first=_decode_statistics(entries.get("first"), d) if "first" in entries else None,
    )  # fmt: skip
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


def _decode_outbox(entries: Mapping[str, bytes], agent: int, dimension: int) -> tuple[Upload, ...]:
    outbox = []
    for number in sorted(int(name.removeprefix(UPLOAD)) for name in entries if name.startswith(UPLOAD)):
        cause, _, body = entries[f"{UPLOAD}{number}"].partition(b"\n")
        statistics = _decode_statistics(body, dimension)
        outbox.append(Upload(agent=agent, sequence=number, cause=Cause(cause.decode()), statistics=statistics))
    return tuple(outbox)
