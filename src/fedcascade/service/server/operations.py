"""Operations of agents and operators, each as a job for the writer."""

import hmac
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.arms import ArmCount, Trial
from fedcascade.service.protocol.auth import hash_token
from fedcascade.service.protocol.clock import SYSTEM_CLOCK
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.exchange import Job
from fedcascade.service.server.publication import load_publication
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import LOCAL, OPERATOR, AgentPage, Identity, Store, add_agent
from fedcascade.service.store.epoch import begin_epoch

SECONDS_PER_DAY = 86_400
RETIRED = "retired operator "  # prefix of settings, before the hash of a replaced token
MOST_FOLDED = 20_000  # uploads folded in one transaction, which delays others
TOKEN = "enrolment token "  # prefix of settings, before a token's hash; the value is its expiry, or how it was used
USED = "used"  # followed by the agent and the position of the prior that it got, 0 if none
ENROLMENT_KEY = "enrolment key "  # prefix of settings; the value: hash, tokens per hour, last hour, its tokens
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
) -> tuple[wire.Credential, wire.PriorMessage | None]:
    """Enrol a public key with a one-time token, or again with the credential of an agent that a restore has lost.

    A repeated call with the same key gets the same number. ``with_prior`` adds the published prior for an agent without
    uploads. A token gets one prior: a repeated call gets the same one or, after the next publication, none.
    """
    credential, token = _enrol_key(store, state, message, now)
    if not with_prior or token is None:
        return credential, None
    state.publish_prior(store, now)
    state.publication = load_publication(store)
    return credential, _give_prior(store, state, token, credential.agent, now)


def _give_prior(store: Store, state: ServerState, token: str, agent: int, now: float) -> wire.PriorMessage | None:
    """Return the prior for a token that an agent has used, and record which one it got."""
    use = store.get_setting(token)
    prior = state.get_prior(agent, now)
    if use == f"{USED} {agent}":
        store.set_setting(token, f"{use} {state.publication.position if prior else 0}")
        return prior
    return prior if use == f"{USED} {agent} {state.publication.position}" else None


def _enrol_key(
    store: Store, state: ServerState, message: wire.Enrolment, now: float
) -> tuple[wire.Credential, str | None]:
    """Find or create the agent of a key; refuse a key without a token or a credential.

    Return also the setting of the token, unless a credential sufficed.
    """
    epoch, key, credential = state.epoch, message.public_key, message.credential
    is_known = credential is not None and epoch.is_credential(credential, key)
    token = None if message.token is None else f"{TOKEN}{hash_token(message.token).hex()}"
    identity = store.find_identity(key)
    if identity is not None:
        if identity.revoked or not (is_known or (token is not None and use_token(store, token, now, identity.agent))):
            raise Refused(403, "enrolment", REFUSED_ENROLMENT)
        return epoch.give_credential(identity), None if is_known else token
    wanted, enrolled = None, now
    is_forgotten = store.get_setting(f"{TOKEN}{epoch.mark_forgotten(key).hex()}") is not None
    if credential is not None and is_known and not is_forgotten:
        wanted, enrolled = credential.agent, min(now, credential.enrolled)
        if credential.epoch == epoch.name:
            log.warning("the store was restored: it does not know agent %d, which it enrolled", wanted)
            epoch = state.epoch = begin_epoch(store)
    elif not is_unused(value := None if token is None else store.get_setting(token), now):
        fault = "unknown" if value is None else USED if value.startswith(USED) else "expired"
        raise Refused(403, "enrolment", f"this enrolment token is {fault}: ask the operator for a new one")
    agent = add_agent(store, key, enrolled, wanted)
    if wanted is None and token is not None:
        use_token(store, token, now, agent)
    _audit(store, f"agent {agent}", "enrolled" if wanted is None else "enrolled again", agent, now=now)
    return epoch.give_credential(Identity(agent, key, enrolled)), None if wanted else token


@defer
def add_tokens(store: Store, _: ServerState, tokens: Iterable[str], expires: float) -> None:
    """Store the hashes of new enrolment tokens."""
    hashes = [hash_token(token) for token in tokens]
    for token_hash in hashes:
        store.set_setting(f"{TOKEN}{token_hash.hex()}", repr(expires))
    _audit(store, OPERATOR, "created enrolment tokens", detail=str(len(hashes)))


@defer
def put_enrolment_key(store: Store, _: ServerState, message: wire.EnrolmentKey) -> None:
    """Set an enrolment key and its rate, or revoke it."""
    digest = "" if message.key_hash is None else message.key_hash.hex()
    store.set_setting(f"{ENROLMENT_KEY}{message.name}", f"{digest} {message.per_hour} 0 0")
    _audit(store, OPERATOR, "set an enrolment key" if digest else "revoked an enrolment key", detail=message.name)


@defer
def use_enrolment_key(store: Store, _: ServerState, key: str, count: int, now: float) -> str:
    """Count tokens of an enrolment key in this hour; return its name, or refuse."""
    name, hour = key.partition(".")[0], int(now // 3_600)
    digest, per_hour, last, used = (store.get_setting(f"{ENROLMENT_KEY}{name}") or " 0 0 0").split(" ")
    if not hmac.compare_digest(hash_token(key).hex(), digest):
        raise Refused(401, "enrolment-key", "this enrolment key is unknown or revoked: ask the operator for one")
    total = count + (int(used) if int(last) == hour else 0)
    if total > int(per_hour):
        line = f"enrolment key '{name}' may create {per_hour} tokens per hour, {total} are asked for"
        raise Refused(429, "too-many-requests", line, retry_after=3_600 * (hour + 1) - now)
    store.set_setting(f"{ENROLMENT_KEY}{name}", f"{digest} {per_hour} {hour} {total}")
    return name


def is_unused(value: str | None, now: float) -> bool:
    """Return whether the setting of an enrolment token shows that it can be used."""
    return value is not None and not value.startswith(USED) and float(value) > now


def use_token(store: Store, token: str, now: float, agent: int) -> bool:
    """Mark an enrolment token as used by an agent; return False if it is unknown, expired or used by another."""
    value = store.get_setting(token)
    if is_unused(value, now):
        store.set_setting(token, value := f"{USED} {agent}")
    return value == USED or f"{value} ".startswith(f"{USED} {agent} ")


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
def forget(store: Store, state: ServerState, agent: int, actor: str = OPERATOR, now: float | None = None) -> None:
    """Remove an agent with its uploads, and save a snapshot without it in place of older ones."""
    identity = require_identity(store, agent)
    position = state.position + 1
    store.set_setting(f"{TOKEN}{state.epoch.mark_forgotten(identity.public_key).hex()}", USED)
    store.forget_agent(agent, position)
    if agent in state.places:
        state.expire_publication(store, SYSTEM_CLOCK.now() if now is None else now)
    state.forget(agent, position)
    save_snapshot(store, state)
    _audit(store, actor, "forgot", agent, now=now)


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


PAUSED, TRIAL = "paused", "trial"  # settings


@defer
def pause(store: Store, _: ServerState, paused: bool) -> None:
    """Pause or resume exchanges at all servers of the store."""
    store.set_setting(PAUSED, str(paused))
    _audit(store, OPERATOR, "paused exchanges" if paused else "resumed exchanges")


@defer
def count_arms(store: Store, _: ServerState, counts: list[ArmCount], level: float) -> Trial:
    """Add lists and clicks of an A/B test, and return it."""
    trial = Trial.from_text(store.get_setting(TRIAL))
    try:
        trial.add(counts, level)
    except ValueError as error:
        raise Refused(422, "request", str(error)) from None
    store.set_setting(TRIAL, trial.to_text())
    return trial


def read_switches(store: Store, _: ServerState) -> tuple[bool, Trial | None]:
    """Read whether exchanges are paused, and the A/B test, if there is one."""
    text = store.get_setting(TRIAL)
    return store.get_setting(PAUSED) == str(True), None if text is None else Trial.from_text(text)


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
            rounds=state.get_statistics(record.agent).rounds,
            cluster=labels.get(record.agent),
        )
        for record in records
    ]
    return wire.AgentList(
        protocol=wire.PROTOCOLS[-1],
        enrolled=page.enrolled,
        active=len(state.places),
        revoked=page.revoked,
        clusters=state.groups,
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
