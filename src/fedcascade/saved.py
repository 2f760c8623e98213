"""Save agents, servers and sums of logs to files, and load them with the same bits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from os import PathLike
from typing import Any

import numpy as np

from fedcascade.checks import require, require_integer
from fedcascade.federation.agent import Agent
from fedcascade.federation.own_data import MOST_BLOCKS
from fedcascade.federation.policies import Formula, Policy, get_policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.named_oracles import ORACLES, build_oracle
from fedcascade.learning.oracles import Oracle
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.state_file import AGENT, SERVER, SUMS, read_state_file, write_state_file

LARGEST_LABEL = 1 << 24
BROKEN = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


def save_agent(path: str | PathLike[str], agent: Agent) -> None:
    """Write an agent to a file atomically, usually .npz, for ``load_agent``.

    Includes unsent data and lists without feedback. Agents of ``connect`` save themselves.
    """
    facts = {"id": agent.id, "problem": asdict(agent.problem), "oracle": describe_oracle(agent.oracle)}
    write_state_file(path, AGENT, {"policy": describe_policy(agent.policy), **facts, "agent": agent.to_state()})


def load_agent(path: str | PathLike[str], *, policy: Policy | None = None, oracle: Oracle | None = None) -> Agent:
    """Read a file of ``save_agent``; ``policy`` and ``oracle`` are required if they are not built in."""
    state = read_state_file(path, AGENT)
    try:
        problem, held = ProblemSize(**state["problem"]), state["agent"]["buffer"].dimension
        require(held == problem.dimension, f"its dimension must be {held}, got {problem.dimension}")
        agent = Agent(
            id=int(state["id"]),
            policy=find_policy(state["policy"], policy),
            problem=problem,
            oracle=_find_oracle(state["oracle"], oracle),
        )
        _check_agent_state(state["agent"], agent)
        agent.load_state(state["agent"])
    except BROKEN as error:
        raise ValueError(f"{path} cannot be loaded: {_describe(error)}") from None
    return agent


def save_server(path: str | PathLike[str], server: Server) -> None:
    """Write a server to a file, for ``load_server``; ``fedcascade backup`` saves a deployed server."""
    facts = {"policy": describe_policy(server.policy), "dimension": server.holdings.dimension}
    write_state_file(path, SERVER, {**facts, "server": server.to_state()})


def load_server(path: str | PathLike[str], *, policy: Policy | None = None) -> Server:
    """Read a file of ``save_server``; ``policy`` is required if it has custom parts."""
    state = read_state_file(path, SERVER)
    try:
        found, d = find_policy(state["policy"], policy), state["dimension"]
        require_integer("dimension", d)
        _check_server_state(state["server"], found, d)
        return Server.from_state(state["server"], policy=found, dimension=d)
    except BROKEN as error:
        raise ValueError(f"{path} cannot be loaded: {_describe(error)}") from None


def _describe(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Return the name and constants of a policy, and whether they define it completely."""
    constants = {name: str(value) for name, value in policy.constants().items() if not isinstance(value, Formula)}
    facts = {"name": policy.name, "constants": constants}
    try:
        is_known = _build_policy(facts) == policy
    except ValueError:
        is_known = False
    return facts | {"known": is_known}


def _build_policy(facts: Mapping[str, Any]) -> Policy:
    policy = get_policy(facts["name"]).with_drift(facts["constants"])
    return policy.with_constants(
        **{name: policy.parse_constant(name, text) for name, text in facts["constants"].items()}
    )


def find_policy(facts: Mapping[str, Any], given: Policy | None) -> Policy:
    """Return the policy of a description: the built-in policy of that name, or the given one if it matches."""
    name = facts["name"]
    if given is None:
        require(bool(facts["known"]), f"its policy {name} has custom parts: give it as policy=")
        return _build_policy(facts)
    same = describe_policy(given)
    fits = same["name"] == name and same["constants"] == facts["constants"]
    require(fits, f"it is of the policy {name} with other constants, or of another, than {given.name}")
    return given


def describe_oracle(oracle: Oracle) -> dict[str, Any]:
    """Return the name and arguments of an oracle; the name of a custom oracle is None."""
    name = next((name for name, kind in ORACLES.items() if type(oracle) is kind), None)
    if name is None or not is_dataclass(oracle):
        return {"name": None, "class": type(oracle).__name__}
    return {"name": name, "arguments": asdict(oracle)}


def _find_oracle(facts: Mapping[str, Any], given: Oracle | None) -> Oracle:
    if given is not None:
        return given
    require(facts["name"] is not None, f"its oracle {facts.get('class')} is not built in: give it as oracle=")
    arguments = dict(facts["arguments"])
    return build_oracle(facts["name"], arguments.pop("length"), arguments)


def _check_agent_state(state: Mapping[str, Any], fresh: Agent) -> None:
    """Refuse an invalid state of an agent, because compiled code trusts its shapes and places."""
    d, known = fresh.problem.dimension, fresh.to_state()
    for name in ("arrivals", "uploads"):
        require_integer(name, state[name], 0)
    for name in ("buffer", "unanswered", "download", "personal"):
        _require_alike(name, state[name], known[name])
        if isinstance(state[name], Statistics):
            state[name].check(d)
            Ridge(state[name], fresh.policy.lambda_)
    _require_alike("own_data", state["own_data"], known["own_data"], is_sized=True)
    if state["own_data"] is not None:
        used, levels = state["own_data"]["used"], state["own_data"]["levels"]
        require(0 <= int(used[0]) <= len(levels) <= MOST_BLOCKS, "own_data has no such block")
        require(bool(np.all((levels >= 0) & (levels < 63))), "own_data has no such level")
    for shown in state["shown"]:
        require_integer("impression", shown["impression"])
        n = shown["items"].size
        fits = shown["items"].dtype == np.intp and shown["features"].dtype == np.float32
        require(fits and shown["items"].shape == (n,), "a shown list has no items")
        require(shown["features"].shape == (n, d), f"a shown list must have {d} features per item")


def _check_server_state(state: Mapping[str, Any], policy: Policy, dimension: int) -> None:
    """Refuse an invalid state of a server, because compiled code trusts its shapes and places."""
    holdings = state["holdings"]
    agents, held = holdings["moment"].shape
    require_integer("agents", agents)
    require(held == dimension, f"its dimension must be {held}, got {dimension}")
    fresh = Server(policy=policy, agents=agents, dimension=dimension, truth=np.zeros(agents, np.int64)).to_state()
    require_integer("rounds", state["rounds"], 0)
    _require_alike("holdings", holdings, fresh["holdings"], is_sized=True)
    for name in ("groups", "replies"):
        _require_alike(name, state[name], fresh[name])
    _check_places(state["groups"], agents)
    for agent in range(agents):
        counts = (int(holdings[name][agent]) for name in ("count", "clicks", "rounds"))
        held = Statistics(holdings["gram"][agent], holdings["moment"][agent], *counts)
        held.check(dimension)
        Ridge(held, policy.lambda_)


def _check_places(groups: Mapping[str, Any], agents: int) -> None:
    """Refuse labels and places that are those of no agent, which compiled code would look up."""
    for name in ("labels", "regrouped"):
        require(groups[name].shape == (agents,), f"groups.{name} must have {agents} places")
    for name, most in {"labels": LARGEST_LABEL + 4 * agents, "active": agents - 1}.items():
        if name in groups and groups[name].size:
            is_place = int(groups[name].min()) >= 0 and int(groups[name].max()) <= most
            require(is_place, f"groups.{name} must be in 0..{most}")


def _require_alike(name: str, value: Any, fresh: Any, *, is_sized: bool = False) -> None:
    """Refuse a value of another type than a fresh agent's or server's or, with ``is_sized``, of another shape."""
    wanted = type(fresh).__name__
    require(type(value) is type(fresh), f"{name} must be of type {wanted}, got {type(value).__name__}")
    if isinstance(fresh, np.ndarray):
        require(value.dtype == fresh.dtype, f"{name} must hold {fresh.dtype}, got {value.dtype}")
        require(value.ndim == fresh.ndim, f"{name} must have {fresh.ndim} axes, got {value.ndim}")
        fits = value.shape == fresh.shape or not is_sized
        require(fits, f"{name} must have the shape {fresh.shape}, got {value.shape}")
        is_finite = value.dtype.kind != "f" or not np.isnan(value).any()
        require(bool(is_finite), f"{name} must hold numbers")
    if isinstance(fresh, dict) and all(isinstance(key, str) for key in fresh):
        for key, item in fresh.items():
            require(key in value, f"{name} has no {key}")
            _require_alike(f"{name}.{key}", value[key], item, is_sized=is_sized)


@dataclass(frozen=True, eq=False, kw_only=True)
class WarmState:
    """The sums of each user, the users' names in order, and the number of lists.

    ``ranker`` holds the rest of a ``Ranker``; it is empty in a file of ``fedcascade fit``.
    """

    sums: LogSums
    users: tuple[str, ...]
    policy: str
    log: str
    lists: int
    is_complete: bool
    ranker: Mapping[str, Any] = field(default_factory=dict)


def save_warm(path: str | PathLike[str], state: WarmState) -> None:
    """Write a warm state to a file atomically."""
    sums, count = state.sums, state.sums.users
    facts = {"policy": state.policy, "log": state.log, "lists": state.lists, "complete": state.is_complete}
    arrays = {"gram": sums.gram[:count], "moment": sums.moment[:count], "counts": sums.counts[:count]}
    ranker = {"ranker": state.ranker} if state.ranker else {}
    write_state_file(path, SUMS, {**facts, "users": list(state.users), **arrays, **ranker})


def load_warm(path: str | PathLike[str]) -> WarmState:
    """Read a file of ``save_warm``."""
    state = read_state_file(path, SUMS)
    try:
        return _make_state(state)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a file of 'fedcascade fit': {error}") from None


def _make_state(state: Mapping[str, Any]) -> WarmState:
    gram, moment, counts = (np.asarray(state[name]) for name in ("gram", "moment", "counts"))
    require(moment.ndim == 2 and moment.shape[1] > 0, f"moments must be a row for each user, got {moment.shape}")
    n, d = moment.shape
    fits = gram.shape == (n, d, d) and counts.shape == (n, 3)
    require(fits, f"grams of {gram.shape} and counts of {counts.shape} do not fit moments of {moment.shape}")
    kinds = [array.dtype.str[1:] for array in (gram, moment, counts)]
    require(kinds == ["f8", "f8", "i8"], "sums must be of float64 and counts of int64")
    users = tuple(state["users"])
    named = len(users) == n == len(set(users)) and all(isinstance(name, str) for name in users)
    require(named, f"users must be {n} different names")
    sums = LogSums(d)
    sums.gram, sums.moment, sums.counts, sums.users = gram, moment, counts, n
    return WarmState(
        sums=sums,
        users=users,
        policy=str(state["policy"]),
        log=str(state["log"]),
        lists=int(state["lists"]),
        is_complete=bool(state["complete"]),
        ranker=state.get("ranker", {}),
    )
