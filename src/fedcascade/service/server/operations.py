"""What the server does for agents and operators, each as a job for the writer."""

from collections.abc import Iterable

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol.auth import token_hash, unauthorised
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import (
    MSGPACK,
    PROTOCOLS,
    Overview,
    answer_of,
    encoded,
    said,
    said_again,
    unpacked,
)
from fedcascade.service.server.state import Fold
from fedcascade.service.server.verifier import Content
from fedcascade.service.server.writer import Job, SignedJob, save_snapshot
from fedcascade.service.store.contract import Identity, LogEntry, Revoked, Store, is_same_upload

OPERATOR = "operator"


def exchange(agent: int, nonce: int) -> SignedJob[tuple[Content, bytes]]:
    """Count an upload once, and answer it: what it said, and the answer as MessagePack, in the newest protocol.

    The same upload again gets the same answer; another upload under the same sequence number is refused.
    """

    def job(store: Store, fold: Fold, offer: Content | None) -> tuple[Content, bytes]:
        assert offer is not None
        known = store.find_entry(agent, offer.sequence)
        statistics = unpacked(offer.numbers, (offer.count, offer.clicks, offer.rounds), fold.dimension)
        upload = Upload(agent=agent, sequence=offer.sequence, cause=offer.cause, statistics=statistics)
        entry = LogEntry(position=fold.position + 1, upload=upload, nonce=nonce.to_bytes(8, "big"))
        if known is not None:
            return offer, said_again(_again(store, known, entry), fold.dimension)
        download = fold.apply(entry)
        answer = answer_of(download, offer.sequence, fold.group_agents(agent))
        store.append(entry, encoded(answer, MSGPACK))
        return offer, said(answer, fold.dimension)

    return job


def _again(store: Store, known: LogEntry, entry: LogEntry) -> bytes:
    if entry.nonce == known.nonce:  # another process, or this one before a restart, has seen this very request
        raise unauthorised("replayed", "this signature was used before: sign every request anew")
    if not is_same_upload(known.upload, entry.upload):
        raise Refused(409, "conflict", f"upload {entry.upload.sequence} was already received with another content")
    return store.read_answer(known.position)


def may_speak(agent: int) -> Job[None]:
    """Refuse an agent that was revoked or forgotten."""

    def job(store: Store, fold: Fold) -> None:  # noqa: ARG001
        identity = store.find_identity(agent)
        if identity is None or identity.revoked:
            raise Revoked(agent)

    return job


def enrol(token: str, public_key: bytes, now: float) -> Job[int]:
    """Strike out a token and take in a key; a repeated call with the same key gets the same number."""

    def job(store: Store, fold: Fold) -> int:  # noqa: ARG001
        known = store.find_identity_by_key(public_key)
        if known is not None and not known.revoked:
            return known.agent
        if known is not None or not store.use_token(token_hash(token), now):
            raise Refused(403, "enrolment", "this enrolment token is unknown, used or too old")
        return store.add_agent(public_key, now)

    return job


def add_tokens(tokens: Iterable[str], expires: float) -> Job[None]:
    """Keep new enrolment tokens."""
    hashes = [token_hash(token) for token in tokens]
    return lambda store, _: store.add_tokens(hashes, expires)


def identity(agent: int) -> Job[Identity | None]:
    """Who an agent is."""
    return lambda store, _: store.find_identity(agent)


def revoke(agent: int, now: float) -> Job[None]:
    """Let an agent speak no more; what it taught stays."""

    def job(store: Store, fold: Fold) -> None:  # noqa: ARG001
        if not store.revoke_agent(agent, now):
            raise Refused(404, "no-such-agent", f"there is no agent {agent}")

    return job


def forget(agent: int) -> Job[None]:
    """Remove an agent and everything it uploaded, and take a snapshot that holds nothing of it.

    Older snapshots go, so the log need not explain the state any more: nothing of the agent is left.
    """

    def job(store: Store, fold: Fold) -> None:
        if store.find_identity(agent) is None:
            raise Refused(404, "no-such-agent", f"there is no agent {agent}")
        position = fold.position + 1
        store.forget_agent(agent, position)
        fold.forget(agent, position)
        save_snapshot(store, fold)

    return job


def set_operator(token: str) -> Job[None]:
    """Replace the operator's token."""
    return lambda store, _: store.set_setting(OPERATOR, token_hash(token).hex())


def operator_hash() -> Job[bytes | None]:
    """What is kept of the operator's token."""

    def job(store: Store, fold: Fold) -> bytes | None:  # noqa: ARG001
        kept = store.get_setting(OPERATOR)
        return None if kept is None else bytes.fromhex(kept)

    return job


def overview(store: Store, fold: Fold) -> Overview:
    """What the server holds."""
    labels = {str(agent): label for agent, label in fold.labels().items()}
    return Overview(
        protocol=PROTOCOLS[-1], position=fold.position, enrolled=store.count_agents(), rounds=fold.rounds, labels=labels
    )
