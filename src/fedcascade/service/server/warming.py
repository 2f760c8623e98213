"""Warm start of a server from a click log: each user of the log becomes an agent with its data uploaded.

The store's log of uploads then replays to the state as usual, and these agents can be folded, forgotten and replayed
under another policy. Their private keys are thrown away, so they send no requests.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nacl.signing import SigningKey

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.warm_start import make_empty_upload
from fedcascade.learning.log_sums import LogSums
from fedcascade.platforms import write_atomically
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import check_upload
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import LOCAL, Store, add_agent

WARM = "warm"  # the setting with the digest of the warm start


@dataclass(frozen=True, eq=False, kw_only=True)
class WarmStart:
    """The output of ``fedcascade fit``: sums and name of each user, the policy, and a digest."""

    path: Path
    sums: LogSums
    users: tuple[str, ...]
    policy: str
    digest: str

    @property
    def agents_path(self) -> Path:
        """The table of users and their agents."""
        return self.path.with_suffix(".agents.csv")


def check_warm_start(warm: WarmStart, policy: Policy, dimension: int) -> None:
    """Refuse a warm start of another policy or dimension, or with impossible sums."""
    path, d = warm.path, warm.sums.dimension
    remedy = f"fit the log again with --policy {policy.name}"
    require(warm.policy == policy.name, f"{path} is for {warm.policy}, the server runs {policy.name}: {remedy}")
    require(d == dimension, f"{path} has {d} features per item, the server {dimension}: give --dimension {d}")
    for user, name in enumerate(warm.users):
        try:
            check_upload(warm.sums[user], dimension)
        except ValueError as error:
            raise ValueError(f"{path} has impossible sums for user {name}: {error}") from None


def warm_store(store: Store, warm: WarmStart, policy: Policy, dimension: int, now: float) -> int:
    """Enrol the users of a log in an empty store, within its transaction; return how many, 0 if done before."""
    held = store.get_setting(WARM)
    if held == warm.digest:
        return 0
    require(held is None, f"the store was not started from {warm.path} but from another file: use a new store")
    require(
        store.list_agents(0, 0).enrolled == 0,
        f"the store has agents already: a warm start from {warm.path} needs an empty store",
    )
    check_warm_start(warm, policy, dimension)
    agents = [add_agent(store, bytes(SigningKey.generate().verify_key), now) for _ in warm.users]
    state = ServerState(policy, dimension)
    for upload in _list_uploads(warm, agents):
        try:
            state.apply(upload, state.position + 1)
        except Refused as refusal:
            raise ValueError(f"cannot start from {warm.path}: {refusal}") from None
        store.append(state.position, upload)
    state.publish_prior(store, now)
    save_snapshot(store, state)
    store.set_setting(WARM, warm.digest)
    detail = f"{len(agents)} users, {state.observations} observations"
    store.record_audit(int(1000 * now), LOCAL, "started warm", detail=detail)
    _write_agents(warm, agents)
    return len(agents)


def _list_uploads(warm: WarmStart, agents: list[int]) -> Iterator[Upload]:
    """List one upload per user, then an empty one each, because the first users were grouped without the others."""
    for user, agent in enumerate(agents):
        yield Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=warm.sums[user])
    for agent in agents:
        yield replace(make_empty_upload(0, warm.sums.dimension), agent=agent)


def _write_agents(warm: WarmStart, agents: list[int]) -> None:
    """Write the table of users and agents, for ``fedcascade forget``; only the operator can read it."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["user", "agent"])
    writer.writerows(zip(warm.users, agents, strict=True))
    try:
        write_atomically(warm.agents_path, table.getvalue().encode(), is_private=True)
    except OSError as error:
        words = f"cannot write the table of users and agents to {warm.agents_path}"
        raise ValueError(f"{words}: {error.strerror}") from None
