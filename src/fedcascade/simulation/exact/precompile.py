"""Precompilation of the exact engine, in two processes at the same time.

Numba caches compiled code on disk. The loops over rounds and the code around them share nothing, so two processes can
compile them in parallel.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fedcascade.environments.clustered import Clustered
from fedcascade.environments.history import OneChange
from fedcascade.environments.options import ClusteredOptions
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data_keeper import make_policy_data
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import arrays, kernels, lowering
from fedcascade.simulation.exact import sequential_kernels as loops
from fedcascade.simulation.exact.driver import ExchangeDriver, make_packed_states, make_pushed_state, make_states
from fedcascade.simulation.exact.lowering import RoundOrder
from fedcascade.simulation.exact.screening import make_scratch
from fedcascade.simulation.exact.windows import make_batch, record_batch
from fedcascade.simulation.scenario import Scenario, prepare_simulation

Step = Callable[[], None]
_USERS, _DIMENSION = 2, 3


def list_steps(policies: Sequence[Policy]) -> list[Step]:
    """Return the steps that compile the code for policies; each may run in its own process."""
    return [partial(compile_loops, policies), partial(compile_around, policies)]


def compile_loops(policies: Sequence[Policy]) -> None:
    """Compile the loops over rounds of these policies."""
    d, none = _DIMENSION, np.zeros(0, np.int64)
    history = OneChange(np.zeros(_USERS, np.int64), np.zeros((_USERS, d)))
    clustered = Clustered(ClusteredOptions(items=4), seed=0, history=history, lifted=True)
    personal = arrays.PersonalState(np.zeros((0, d, d)), np.zeros((0, d)), np.zeros((0, d, d)))
    pushed = make_pushed_state(0, d)
    numbers, flags = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    results = np.zeros(1), flags, numbers, np.zeros((0, 1), np.int32), np.ones((0, 1)), np.empty(0)
    window = arrays.Window(1, numbers, numbers, numbers, numbers, numbers, *results)
    problem = ProblemSize(users=_USERS, dimension=d, list_length=1, rounds=2)
    states, scratch = make_states(_USERS, d), make_scratch(d, 4, 1)
    packed, environment = make_packed_states(_USERS, d), lowering.ENVIRONMENTS[Synthetic](clustered)
    by_agent = [policy for policy in policies if _get_order(policy) is RoundOrder.BY_AGENT]
    for trust, changes in dict.fromkeys((policy.trust, policy.changes) for policy in by_agent):
        shape = replace(POLICIES["fedind"], trust=trust, changes=changes)
        own = make_policy_data(shape, (_USERS,), d) if shape.keeps_own_data else None
        compiled = lowering.compile_policy(shape, TopK(length=1), problem)
        simulation = arrays.CompiledSimulation(environment, compiled, states, packed, personal, pushed, own)
        kernels.advance_agents(simulation, window, none, np.zeros(1, np.int64), scratch, arrays.select_agent(states, 0))
    if any(_get_order(policy) in (RoundOrder.BY_TIME, RoundOrder.ON_ARRIVAL) for policy in policies):
        compiled = lowering.compile_policy(POLICIES["fedind"], TopK(length=1), problem)
        simulation = arrays.CompiledSimulation(environment, compiled, states, packed, personal, pushed)
        lists = loops.make_open_lists(1, numbers, 1, d)
        loops.advance_by_time(simulation, window, none, none, lists, 0, 0, scratch)


def _get_order(policy: Policy) -> RoundOrder | None:
    return lowering.REPLY_RULES.get(type(policy.reply_rule))


def compile_around(policies: Sequence[Policy]) -> None:
    """Compile the code between rounds: arrivals, estimates and the servers of these policies."""
    for policy in policies:
        environment = Synthetic(users=_USERS, clusters=1, dimension=_DIMENSION, items=4)
        scenario = Scenario(environment, policy, 2, TopK(length=1), checkpoints=1)
        if lowering.find_unsupported(scenario) is None:
            by_agent = lowering.REPLY_RULES[type(policy.reply_rule)] is RoundOrder.BY_AGENT
            driver = ExchangeDriver(scenario, prepare_simulation(scenario), is_packed=by_agent)
            record_batch(driver, make_batch(driver, 1, 2))
            for agent in range(_USERS):
                driver.run_exchange(agent + 1, agent, Cause.FORCED)
            if policy.trust is not None:
                _exchange_data(policy)


def _exchange_data(policy: Policy) -> None:
    """Upload data of two clusters of users, until the server has grouped them."""
    server = Server(policy=policy, agents=8, dimension=_DIMENSION)
    seen = Statistics(50.0 * np.eye(_DIMENSION), np.array([40.0, 10.0, 25.0]), 150, 75, 150)
    other = Statistics(seen.gram, seen.moment[::-1].copy(), 150, 75, 150)
    for sequence in range(1, 9):
        for agent in range(8):
            statistics = (seen, other)[agent % 2]
            server.take(Upload(agent=agent, sequence=sequence, cause=Cause.FORCED, statistics=statistics))
