"""A server that starts from a log: its users enter the store as agents that have uploaded what the log taught.

So the log of uploads explains the state, and whatever is done to agents can be done to them: folding, forgetting, a
replay under another policy. Nobody holds their keys, so none of them ever speaks.
"""

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nacl.signing import SigningKey

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.warm_start import make_empty_upload
from fedcascade.learning.log_sums import LogSums
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import check_upload
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import LOCAL, Store, add_agent

WARM = "warm"  # the setting that says which state a store started from


@dataclass(frozen=True, eq=False, kw_only=True)
class WarmStart:
    """What ``fedcascade fit`` wrote: the sums of each user, the users' names, the policy it is for, and a digest."""

    path: Path
    sums: LogSums
    users: tuple[str, ...]
    policy: str
    digest: str

    @property
    def agents_path(self) -> Path:
        """The table that says which agent of the server stands for which user of the log."""
        return self.path.with_suffix(".agents.csv")


def check_warm_start(warm: WarmStart, policy: Policy, dimension: int) -> None:
    """Refuse a state that does not fit a server."""
    path, d = warm.path, warm.sums.dimension
    remedy = f"fit the log again with --policy {policy.name}"
    require(warm.policy == policy.name, f"{path} is for {warm.policy}, the server runs {policy.name}: {remedy}")
    require(d == dimension, f"{path} has {d} features per item, the server {dimension}: give --dimension {d}")
    for user, name in enumerate(warm.users):
        try:
            check_upload(warm.sums[user], dimension)
        except ValueError as error:
            raise ValueError(f"{path} cannot be what a log taught about user {name}: {error}") from None


def warm_store(store: Store, warm: WarmStart, policy: Policy, dimension: int, now: float) -> int:
    """Let the users of a log enter a store, within its transaction; returns how many did, 0 if they are in it already.

    A store that has agents of its own is refused: who of them the users of the log are, nobody can say.
    """
    held = store.get_setting(WARM)
    if held == warm.digest:
        return 0
    require(held is None, f"the store was started from another state than {warm.path}: take a new store")
    require(store.list_agents(0, 0).enrolled == 0, f"{warm.path} can start a new store alone, and this one has agents")
    check_warm_start(warm, policy, dimension)
    agents = [add_agent(store, bytes(SigningKey.generate().verify_key), now) for _ in warm.users]
    state = ServerState(policy, dimension)
    for upload in _list_uploads(warm, agents):
        try:
            state.apply(upload, state.position + 1)
        except Refused as refusal:
            raise ValueError(f"{warm.path} cannot start a server: {refusal}") from None
        store.append(state.position, upload)
    save_snapshot(store, state)
    store.set_setting(WARM, warm.digest)
    detail = f"{len(agents)} users, {state.observations} observations"
    store.record_audit(int(1000 * now), LOCAL, "started warm", detail=detail)
    _write_agents(warm, agents)
    return len(agents)


def _list_uploads(warm: WarmStart, agents: list[int]) -> Iterator[Upload]:
    """What each user of a log teaches; then all ask once more, because the first were grouped without the others."""
    for user, agent in enumerate(agents):
        yield Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=warm.sums[user])
    for agent in agents:
        yield replace(make_empty_upload(0, warm.sums.dimension), agent=agent)


def _write_agents(warm: WarmStart, agents: list[int]) -> None:
    """Write who is who, for ``fedcascade forget``; readable by the operator alone, because it has users' names."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["user", "agent"])
    writer.writerows(zip(warm.users, agents, strict=True))
    path = warm.agents_path
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(table.getvalue())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(f"cannot write which agent stands for which user to {path}: {error.strerror}") from None
