"""What the server does for agents and operators, each as a job for the writer."""

from collections.abc import Iterable

import msgspec

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import Unauthorised, hash_token
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState
from fedcascade.service.server.writer import Job
from fedcascade.service.store.contract import Identity, LogEntry, Revoked, Store, UploadLog, is_same_upload

OPERATOR = "operator"


def record_upload(store: UploadLog, state: ServerState, upload: Upload, nonce: int) -> bytes:
    """Count an upload once, and answer it: the answer as MessagePack, in the newest protocol.

    The same upload again gets the same answer; another upload under the same sequence number is refused.
    """
    entry = LogEntry(position=state.position + 1, upload=upload, nonce=nonce.to_bytes(8, "big"))
    earlier = store.find_entry(upload.agent, upload.sequence)
    if earlier is not None:
        return _repeat_answer(store, earlier, entry)
    download = state.apply(entry)
    message = wire.AnswerMessage.from_download(download, upload.sequence, state.count_group(upload.agent))
    answer = msgspec.msgpack.encode(message)
    store.append(entry, answer)
    return answer


def _repeat_answer(store: UploadLog, earlier: LogEntry, entry: LogEntry) -> bytes:
    if entry.nonce == earlier.nonce:  # another process, or this one before a restart, has seen this very request
        raise Unauthorised("replayed", "this signature was used before: sign every request anew")
    if not is_same_upload(earlier.upload, entry.upload):
        raise Refused(409, "conflict", f"upload {entry.upload.sequence} was already received with another content")
    return store.read_answer(earlier.position)


def require_active(agent: int) -> Job[None]:
    """Refuse an agent that was revoked or forgotten."""

    def job(store: Store, state: ServerState) -> None:  # noqa: ARG001
        identity = store.find_identity(agent)
        if identity is None or identity.revoked:
            raise Revoked(agent)

    return job


def enrol(token: str, public_key: bytes, now: float) -> Job[int]:
    """Strike out a token and take in a key; a repeated call with the same key gets the same number."""

    def job(store: Store, state: ServerState) -> int:  # noqa: ARG001
        identity = store.find_identity_by_key(public_key)
        if identity is not None and not identity.revoked:
            return identity.agent
        if identity is not None or not store.use_token(hash_token(token), now):
            raise Refused(403, "enrolment", "this enrolment token is unknown, used or too old")
        return store.add_agent(public_key, now)

    return job


def add_tokens(tokens: Iterable[str], expires: float) -> Job[None]:
    """Keep new enrolment tokens."""
    hashes = [hash_token(token) for token in tokens]
    return lambda store, _: store.add_tokens(hashes, expires)


def get_identity(agent: int) -> Job[Identity | None]:
    """An agent's key and whether it is revoked; None if there is no such agent."""
    return lambda store, _: store.find_identity(agent)


def revoke(agent: int, now: float) -> Job[None]:
    """Let an agent speak no more; what it taught stays."""

    def job(store: Store, state: ServerState) -> None:  # noqa: ARG001
        if not store.revoke_agent(agent, now):
            raise Refused(404, "no-such-agent", f"there is no agent {agent}")

    return job


def forget(agent: int) -> Job[None]:
    """Remove an agent and everything it uploaded, and take a snapshot that holds nothing of it.

    Older snapshots go, so the log need not explain the state any more: nothing of the agent is left.
    """

    def job(store: Store, state: ServerState) -> None:
        if store.find_identity(agent) is None:
            raise Refused(404, "no-such-agent", f"there is no agent {agent}")
        position = state.position + 1
        store.forget_agent(agent, position)
        state.forget(agent, position)
        save_snapshot(store, state)

    return job


def set_operator(token: str) -> Job[None]:
    """Replace the operator's token."""
    return lambda store, _: store.set_setting(OPERATOR, hash_token(token).hex())


def get_operator_hash() -> Job[bytes | None]:
    """The hash of the operator's token; None if there is none yet."""

    def job(store: Store, state: ServerState) -> bytes | None:  # noqa: ARG001
        hash_hex = store.get_setting(OPERATOR)
        return None if hash_hex is None else bytes.fromhex(hash_hex)

    return job


def read_overview(store: Store, state: ServerState) -> wire.Overview:
    """What the server holds."""
    labels = {str(agent): label for agent, label in state.get_labels().items()}
    return wire.Overview(
        protocol=wire.PROTOCOLS[-1],
        position=state.position,
        enrolled=store.count_agents(),
        rounds=state.rounds,
        labels=labels,
    )
