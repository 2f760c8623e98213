"""Operations of agents and operators, each as a job for the writer."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from fedcascade.federation.messages import Download
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import hash_token
from fedcascade.service.protocol.clock import SYSTEM_CLOCK
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.exchange import Job
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import LOCAL, OPERATOR, AgentPage, Identity, Store, add_agent
from fedcascade.service.store.epoch import begin_epoch

SECONDS_PER_DAY = 86_400
RETIRED = "retired operator "  # prefix of settings, before the hash of a replaced token
MOST_FOLDED = 20_000  # uploads folded in one transaction, which delays others
TOKEN = "enrolment token "  # prefix of settings, before a token's hash; the value is its expiry or ``USED``
USED = "used"
REFUSED_ENROLMENT = "this enrolment token is unknown, used or expired: ask the operator for a new one"
log = logging.getLogger("fedcascade.service")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def defer(operation: Callable[Concatenate[Store, ServerState, Arguments], Result]) -> Callable[Arguments, Job[Result]]:
    """Turn an operation on store and state into a function of its other arguments that returns a job."""
    return lambda *values, **named: lambda store, state: operation(store, state, *values, **named)


def _audit(
    store: Store, actor: str, action: str, agent: int | None = None, *, detail: str = "", now: float | None = None
) -> None:
    at = SYSTEM_CLOCK.read_milliseconds() if now is None else int(1000 * now)
    store.record_audit(at, actor, action, agent, detail)


def require_identity(store: Store, agent: int) -> Identity:
    """Find an agent; refuse a number that no agent has."""
    identity = store.find_identity(agent)
    if identity is None:
        raise Refused(404, "no-such-agent", f"there is no agent {agent}")
    return identity


@defer
def enrol(
    store: Store, state: ServerState, message: wire.Enrolment, now: float, *, with_prior: bool = False
) -> tuple[wire.Credential, Download | None]:
    """Enrol a public key with a one-time token, or again with the credential of an agent that a restore has lost.

    A repeated call with the same key gets the same number. ``with_prior`` adds the current prior for an agent without
    uploads. The prior is not stored: like an answer it holds data of other agents, which may ask to be forgotten.
    """
    credential = _enrol_key(store, state, message, now)
    return credential, state.get_prior(credential.agent) if with_prior else None


def _enrol_key(store: Store, state: ServerState, message: wire.Enrolment, now: float) -> wire.Credential:
    """Find or create the agent of a key; refuse a key without a token or a credential."""
    epoch, key, credential = state.epoch, message.public_key, message.credential
    is_known = credential is not None and epoch.is_credential(credential, key)
    token_hash = None if message.token is None else hash_token(message.token)
    identity = store.find_identity(key)
    if identity is not None:
        is_entitled = is_known or (token_hash is not None and has_token(store, token_hash))
        if identity.revoked or not is_entitled:
            raise Refused(403, "enrolment", REFUSED_ENROLMENT)
        return epoch.give_credential(identity)
    wanted, enrolled = None, now
    if credential is not None and is_known and not has_token(store, epoch.mark_forgotten(key)):
        wanted, enrolled = credential.agent, credential.enrolled
        if credential.epoch == epoch.name:
            log.warning("the store was restored: it does not know agent %d, which it enrolled", wanted)
            epoch = state.epoch = begin_epoch(store)
    elif token_hash is None or not use_token(store, token_hash, now):
        raise Refused(403, "enrolment", REFUSED_ENROLMENT)
    agent = add_agent(store, key, enrolled, wanted)
    _audit(store, f"agent {agent}", "enrolled" if wanted is None else "enrolled again", agent, now=now)
    return epoch.give_credential(Identity(agent, key, enrolled))


@defer
def add_tokens(store: Store, _: ServerState, tokens: Iterable[str], expires: float) -> None:
    """Store the hashes of new enrolment tokens."""
    hashes = [hash_token(token) for token in tokens]
    for token_hash in hashes:
        store.set_setting(f"{TOKEN}{token_hash.hex()}", repr(expires))
    _audit(store, OPERATOR, "created enrolment tokens", detail=str(len(hashes)))


def has_token(store: Store, token_hash: bytes) -> bool:
    """Return whether an enrolment token was ever created, used or not."""
    return store.get_setting(f"{TOKEN}{token_hash.hex()}") is not None


def use_token(store: Store, token_hash: bytes, now: float) -> bool:
    """Mark an enrolment token as used; return False if it is unknown, used or expired."""
    expires = store.get_setting(f"{TOKEN}{token_hash.hex()}")
    if expires is None or expires == USED or float(expires) <= now:
        return False
    store.set_setting(f"{TOKEN}{token_hash.hex()}", USED)
    return True


@defer
def read_standing(store: Store, state: ServerState, agent: int) -> wire.Standing:
    """Describe the data that the server holds of an agent."""
    identity = require_identity(store, agent)
    totals, held = store.sum_uploads(agent), state.get_statistics(agent)
    return wire.Standing(
        protocol=wire.PROTOCOLS[-1],
        agent=agent,
        uploads=totals.uploads,
        count=held.count,
        clicks=held.clicks,
        rounds=held.rounds,
        numbers=wire.pack_numbers(held) if totals.uploads else b"",
        last_sequence=totals.last_sequence,
        last_change=totals.last_change,
        epoch=state.epoch.name,
        revoked=identity.revoked is not None,
        credential=state.epoch.give_credential(identity),
    )


@defer
def revoke(store: Store, _: ServerState, agent: int, now: float) -> None:
    """Revoke an agent; its uploads stay."""
    identity = require_identity(store, agent)
    store.put_identity(replace(identity, revoked=identity.revoked or now))
    _audit(store, OPERATOR, "revoked", agent, now=now)


@defer
def forget(store: Store, state: ServerState, agent: int, actor: str = OPERATOR) -> None:
    """Remove an agent with its uploads, and save a snapshot without it in place of older ones."""
    identity = require_identity(store, agent)
    position = state.position + 1
    store.set_setting(f"{TOKEN}{state.epoch.mark_forgotten(identity.public_key).hex()}", USED)
    store.forget_agent(agent, position)
    state.forget(agent, position)
    save_snapshot(store, state)
    _audit(store, actor, "forgot", agent)


@defer
def retain(store: Store, state: ServerState, days: float, now: float) -> bool:
    """Fold some of the uploads that are older than ``days``; return whether there may be more.

    The state does not change, and is saved because the log no longer replays to it. If fewer uploads are old than there
    are agents, folding is not worth a snapshot.
    """
    before = int(1000 * (now - days * SECONDS_PER_DAY))
    horizon, uploads = store.fold_uploads(before, state.position + 1, len(state.places), MOST_FOLDED)
    if uploads <= len(state.places):
        return False
    state.position += 1
    save_snapshot(store, state)
    detail = f"{uploads} uploads older than {days:g} days, up to position {horizon}"
    _audit(store, "server", "folded", detail=detail, now=now)
    return uploads == MOST_FOLDED


@defer
def set_operator(store: Store, state: ServerState, token: str) -> None:
    """Set the operator's token from the command line; replacing one also renews the store's secret."""
    earlier, digest = store.get_setting(OPERATOR), hash_token(token).hex()
    if earlier is None:
        store.set_setting(OPERATOR, digest)
        _audit(store, LOCAL, "set the operator's token")
    elif earlier != digest:
        _retire_operator(store, state, digest)
        _audit(store, LOCAL, "replaced the operator's token")


@defer
def replace_operator(store: Store, state: ServerState, token_hash: bytes) -> None:
    """Replace the operator's token by the one with that hash, at the request of the operator."""
    _retire_operator(store, state, token_hash.hex())
    _audit(store, OPERATOR, "replaced the operator's token")


def require_current_token(store: Store, digest: str) -> None:
    """Refuse an operator's token that was replaced."""
    if store.get_setting(f"{RETIRED}{digest}") is not None:
        raise Refused(409, "retired-token", "this operator's token was replaced before: use the newest one")


def _retire_operator(store: Store, state: ServerState, digest: str) -> None:
    """Set the hash of the operator's token and retire the earlier one for good."""
    require_current_token(store, digest)
    earlier = store.get_setting(OPERATOR)
    if earlier is not None:
        store.set_setting(f"{RETIRED}{earlier}", "")
    store.set_setting(OPERATOR, digest)
    state.epoch = begin_epoch(store, renew_secret=True)


@defer
def get_operator_hash(store: Store, _: ServerState) -> bytes | None:
    """Return the hash of the operator's token; None if there is none yet."""
    hash_hex = store.get_setting(OPERATOR)
    return None if hash_hex is None else bytes.fromhex(hash_hex)


@defer
def describe_agents(_: Store, state: ServerState, page: AgentPage, most: int) -> wire.AgentList:
    """Describe the first ``most`` agents of a page, with their rounds and clusters."""
    records = page.records[:most]
    labels = state.get_labels(record.agent for record in records)
    rows = [
        wire.AgentRow(
            agent=record.agent,
            enrolled=int(1000 * record.enrolled),
            revoked=record.revoked,
            last=record.last,
            rounds=state.count_held(record.agent)[1],
            cluster=labels.get(record.agent),
        )
        for record in records
    ]
    return wire.AgentList(
        protocol=wire.PROTOCOLS[-1],
        enrolled=page.enrolled,
        active=len(state.places),
        revoked=page.revoked,
        clusters=state.clusters,
        agents=rows,
        more=len(page.records) > most,
    )


def read_overview(store: Store, state: ServerState) -> wire.Overview:
    """Describe the log, the agents and the groups of the server."""
    labels = state.get_labels() if len(state.places) <= wire.MOST_LABELS else {}
    return wire.Overview(
        protocol=wire.PROTOCOLS[-1],
        position=state.position,
        rounds=state.rounds,
        enrolled=store.list_agents(0, 0).enrolled,
        active=len(state.places),
        clusters=state.clusters,
        labels={str(agent): label for agent, label in labels.items()},
        sizes=state.list_sizes(wire.LARGEST_GROUPS),
        resets=state.resets,
    )
