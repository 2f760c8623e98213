"""Compiling ahead: on a fresh machine the exact engine's code is compiled once, in two processes at a time.

Numba keeps what it compiled on disk, where other processes find it. The steps of a stage may be compiled at the
same time; each stage finds on disk what the stage before it left there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact import kernels, lowering
from fedcascade.simulation.exact.driver import make_states
from fedcascade.simulation.exact.screening import make_scratch
from fedcascade.simulation.scenario import Scenario

_SMALL: dict[str, Any] = {"users": 2, "clusters": 1, "dimension": 3, "items": 4}


def compile_round() -> None:
    """Compile what happens within a round, which takes about as long as everything around it."""
    environment = lowering.ENVIRONMENTS[Synthetic](Synthetic(**_SMALL))
    state = kernels.select_agent(make_states(2, 3), 0)
    numbers, flags, lists = np.zeros(1, np.int64), np.zeros(1, np.bool_), np.zeros((0, 1), np.int32)
    none = np.ones((0, 1))
    window = kernels.Window(1, numbers, numbers, numbers, numbers, numbers, np.zeros(1), flags, numbers, lists, none)
    theta, scratch = environment.thetas[0], make_scratch(3, 4, 1)
    kernels.play_round(environment, _compile_policy(), theta, state, window, scratch, 1, 0.0)


def _compile_policy() -> kernels.CompiledPolicy:
    problem = ProblemSize(users=2, dimension=3, list_length=1, rounds=2)
    return lowering.compile_policy(POLICIES["fedind"], TopK(length=1), problem)


def compile_around() -> None:
    """Compile what happens between rounds: who arrives, estimates, triggers."""
    kernels.sort_rounds(Synthetic(**_SMALL).arrivals(1, 2), 1, 2)
    _ = Ridge(Statistics.zero(3), 1.0).theta
    policy, state = _compile_policy(), kernels.select_agent(make_states(2, 3), 0)
    kernels.prepare_decision(policy, state, make_scratch(3, 4, 1))
    kernels.find_trigger(np.uint64(0), policy, state, make_scratch(3, 4, 1), 1)


def compile_all() -> None:
    """Compile everything, by a run of two rounds."""
    exact.simulate(Scenario(Synthetic(**_SMALL), POLICIES["fedc3ucb-h"], 2, TopK(length=1), checkpoints=1))


STAGES: tuple[tuple[Callable[[], None], ...], ...] = ((compile_round, compile_around), (compile_all,))
