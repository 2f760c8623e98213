"""Save agents, servers and sums of logs to files, and load them with the same bits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from os import PathLike
from typing import Any

import numpy as np

from fedcascade.checks import require, require_integer
from fedcascade.federation.agent import OPEN_LISTS, Agent, fits_policy, read_features
from fedcascade.federation.holdings import Holdings, require_alike, require_places, solve_all
from fedcascade.federation.own_data import OwnData, unpack_row
from fedcascade.federation.policies import Formula, Policy, get_policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.named_oracles import ORACLES, build_oracle
from fedcascade.learning.oracles import Oracle
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import MIN_NOISE, Statistics
from fedcascade.state_file import AGENT, INVALID, SERVER, SUMS, describe_fault, read_state_file, write_state_file


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
    except INVALID as error:
        raise ValueError(f"{path} cannot be loaded: {describe_fault(error)}") from None
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
        return Server.from_state(state["server"], policy=found, dimension=d)
    except INVALID as error:
        raise ValueError(f"{path} cannot be loaded: {describe_fault(error)}") from None


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
    """Refuse an invalid state of an agent, because compiled code trusts its shapes, places and numbers."""
    d, known = fresh.problem.dimension, fresh.to_state()
    for name, value in known.items():
        if name not in ("format", "shown", "pushed"):
            require(name in state, f"it has no {name}")
            require_alike(name, state[name], value)
    for name in ("arrivals", "uploads"):
        require_integer(name, state[name], 0)
    if state.get("pushed") is not None:
        require_alike("pushed", state["pushed"], known["download"])
    for name in ("buffer", "unanswered", "first", "download", "pushed", "personal"):
        if isinstance(state.get(name), Statistics):
            _require_sums(state[name]) if name in ("buffer", "unanswered", "first") else Ridge(
                state[name], fresh.policy.lambda_
            )
    if state["own_data"] is not None:
        own = OwnData(**state["own_data"])
        _check_own_data(own, fresh)
        _require_sums(unpack_row(own.total, d) - (state["buffer"] + state["unanswered"]))
    require(isinstance(state["shown"], list) and len(state["shown"]) <= OPEN_LISTS, "it has too many open lists")
    for shown in state["shown"]:
        _check_list(shown, d)


def _require_sums(statistics: Statistics) -> None:
    """Refuse a gram that is no sum of squares, up to rounding."""
    Ridge(statistics, 1e-9 * (1.0 + float(np.abs(statistics.gram).max())))


def _check_own_data(own: OwnData, fresh: Agent) -> None:
    """Refuse own data that no rounds give."""
    levels, d = own.levels, fresh.problem.dimension
    require_places("own_data.used", own.used, len(levels) + 1)
    require_places("own_data.levels", levels, 63)
    for row in (own.total, own.since, *own.blocks):
        held = unpack_row(row, d)
        held.check(d)
        Ridge(held, fresh.policy.lambda_)
    for array, least, most in ((own.weight, 0.0, 1.0), (own.noise, MIN_NOISE, 0.25), (own.deviation, 0.0, 1.0)):
        require(bool(least <= array[0] <= most), f"own_data must have numbers in {least:g}..{most:g}")
    fits = fits_policy(fresh.policy, own) and np.array_equal(own.others_gram, own.others_gram.T)
    require(bool(own.cusum[0] >= 0.0) and fits, "own_data must have a CUSUM >= 0, and a prior")


def _check_list(shown: Mapping[str, Any], dimension: int) -> None:
    """Refuse an open list that no agent has shown."""
    require_integer("impression", shown["impression"])
    items, features, chances = (shown[name] for name in ("items", "features", "propensities"))
    n = items.size
    require(n > 0, "a shown list has no items")
    fresh = np.zeros(n, np.intp), np.zeros((n, dimension), np.float32), None if chances is None else np.zeros(n)
    require_alike("a shown list", (items, features, chances), fresh)
    read_features(features, dimension)
    require_places("a shown list", items, np.iinfo(np.intp).max)
    is_chance = chances is None or bool(np.all((chances > 0) & (chances <= 1)))
    require(is_chance, "propensities must be in (0, 1]")


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
    arrays = {name: getattr(sums, name)[:count] for name in ("gram", "moment", "counts", "shortfall")}
    ranker = {"ranker": state.ranker} if state.ranker else {}
    write_state_file(path, SUMS, {**facts, "users": list(state.users), **arrays, **ranker})


def load_warm(path: str | PathLike[str]) -> WarmState:
    """Read a file of ``save_warm``."""
    state = read_state_file(path, SUMS)
    try:
        return _make_state(state)
    except INVALID as error:
        raise ValueError(f"{path} is not a file of 'fedcascade fit': {error}") from None


def _make_state(state: Mapping[str, Any]) -> WarmState:
    gram, moment, counts = (np.asarray(state[name]) for name in ("gram", "moment", "counts"))
    require(moment.ndim == 2 and moment.shape[1] > 0, f"moments must be a row for each user, got {moment.shape}")
    n, d = moment.shape
    fits = gram.shape == (n, d, d) and counts.shape == (n, 3)
    require(fits, f"grams of {gram.shape} and counts of {counts.shape} do not fit moments of {moment.shape}")
    kinds = [array.dtype.str[1:] for array in (gram, moment, counts)]
    require(kinds == ["f8", "f8", "i8"], "sums must be of float64 and counts of int64")
    shortfall = np.asarray(state["shortfall"], np.float64)
    is_bounded = shortfall.shape == (n,) and bool(np.all((shortfall >= 0) & (shortfall <= counts[:, 1])))
    require(is_bounded, "rewards must sum to at most the clicks of each user")
    held = Holdings(n, d, 1.0)
    held.gram, held.moment, (held.count, held.clicks, held.rounds) = gram, moment, counts.T.copy()
    invalid = solve_all(held.arrays, 1.0)
    require(invalid < 0, f"the sums of user {invalid} must be finite and bounded, gram positive semi-definite")
    users = tuple(state["users"])
    named = len(users) == n == len(set(users)) and all(isinstance(name, str) for name in users)
    require(named, f"users must be {n} different names")
    sums = LogSums(d)
    sums.gram, sums.moment, sums.counts, sums.shortfall, sums.users = gram, moment, counts, shortfall, n
    return WarmState(
        sums=sums,
        users=users,
        policy=str(state["policy"]),
        log=str(state["log"]),
        lists=int(state["lists"]),
        is_complete=bool(state["complete"]),
        ranker=state.get("ranker", {}),
    )
