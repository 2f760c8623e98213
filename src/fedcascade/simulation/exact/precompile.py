"""Compiling ahead: on a fresh machine the exact engine's code is compiled once, in two processes at a time.

Numba keeps what it compiled on disk, where other processes find it. The parts of a stage may be compiled at the
same time; each stage finds on disk what the one before it left there.
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
from fedcascade.simulation.exact.screening import make_scratch

_SMALL: dict[str, Any] = {"users": 2, "clusters": 1, "dimension": 3, "items": 4}


def compile_round() -> None:
    """Compile what happens within a round, which takes about as long as everything around it."""
    world = lowering.compile_world(Synthetic(**_SMALL))
    one = kernels.one_of(lowering.empty_fleet(2, 3), 0)
    numbers, flags, lists = np.zeros(1, np.int64), np.zeros(1, np.bool_), np.zeros((0, 1), np.int32)
    window = kernels.Window(
        1, numbers, numbers, numbers, numbers, numbers, np.zeros(1), flags, np.zeros(1, np.int64), lists
    )
    kernels._play(world, _rules(), world.thetas[0], one, window, make_scratch(3, 4, 1), 1, 0.0)


def _rules() -> kernels.Rules:
    problem = ProblemSize(users=2, dimension=3, list_length=1, rounds=2)
    return lowering.compile_rules(POLICIES["fedind"], TopK(length=1), problem)


def compile_around() -> None:
    """Compile what happens between rounds: who arrives, estimates, triggers."""
    kernels.sort_rounds(Synthetic(**_SMALL).arrivals(1, 2), 1, 2)
    _ = Ridge(Statistics.zero(3), 1.0).theta
    one = kernels.one_of(lowering.empty_fleet(2, 3), 0)
    kernels._prepare(_rules(), one, make_scratch(3, 4, 1))
    kernels._fires(np.uint64(0), _rules(), one, make_scratch(3, 4, 1), 1)


def compile_all() -> None:
    """Compile everything, by a run of two rounds."""
    exact.simulate(Synthetic(**_SMALL), POLICIES["fedc3ucb-h"], rounds=2, oracle=TopK(length=1), checkpoints=1)


STAGES: tuple[tuple[Callable[[], None], ...], ...] = ((compile_round, compile_around), (compile_all,))
