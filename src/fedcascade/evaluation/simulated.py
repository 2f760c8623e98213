"""Logs of simulations: what a run showed, what was on offer, what was clicked, and with which chance it was chosen."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedcascade.checks import require
from fedcascade.data.logs.writer import LogWriter
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import get_policy
from fedcascade.learning.click_log import MISSING, ClickLog
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.log_sums import LogSums
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.reference import click_list
from fedcascade.simulation.trace import Trace

LOG_SEEDS = 2**40  # added to the seed of a world names the rounds of its log
BATCH = 2_000  # rounds; each holds the features of all items on offer


def iterate_simulated_log(environment: Environment, trace: Trace, *, rounds: int = BATCH) -> Iterator[ClickLog]:
    """The log of a run that kept its lists, some rounds at a time; items are numbered within their round.

    The world answers by the round alone, so that what was on offer and clicked need not be kept by the run.
    """
    require(trace.lists is not None, "a log needs the lists of the run: simulate with keep_lists=True")
    assert trace.lists is not None
    for first in range(1, trace.rounds + 1, rounds):
        last = min(trace.rounds, first + rounds - 1)
        yield _make_batch(environment, trace, first, last)


def _make_batch(environment: Environment, trace: Trace, first: int, last: int) -> ClickLog:
    assert trace.lists is not None
    count, most = last - first + 1, environment.most_items
    items = trace.lists[first - 1 : last].astype(np.int64)
    users, clicks = np.empty(count, np.int64), np.zeros(items.shape, bool)
    offered = np.full((count, most), MISSING, np.int64)
    features = np.zeros((count, most, environment.dimension), np.float32)
    for row, t in enumerate(range(first, last + 1)):
        on_offer, user = environment.items(t), environment.arrival(t)
        shown = items[row][items[row] != MISSING]
        weights = environment.weights(t, user, on_offer)
        clicked, _ = click_list(environment, t, shown, weights[shown])
        users[row], offered[row, : len(on_offer)], features[row, : len(on_offer)] = user, range(len(on_offer)), on_offer
        clicks[row, list(clicked)] = True
    chances = None if trace.propensities is None else trace.propensities[first - 1 : last]
    return ClickLog(users=users, items=items, clicks=clicks, times=np.arange(first, last + 1, dtype=np.float64),
                    propensities=chances, offered=offered, features=features)  # fmt: skip


def write_simulated_log(path: Path, environment: Environment, trace: Trace) -> None:
    """Write the log of a run to a file."""
    with LogWriter(path) as writer:
        for batch in iterate_simulated_log(environment, trace):
            writer.write(batch)


def learn_from_random_lists(environment: Clustered, rounds_per_user: int, *, list_length: int = 4) -> LogSums:
    """What a log of uniformly random lists teaches about the users of a world, from rounds that it does not play."""
    world, sums = environment.with_other_rounds(int(environment.seed) + LOG_SEEDS), LogSums(environment.dimension)
    trace = simulate(world, get_policy("fedind"), rounds=rounds_per_user * world.users, checkpoints=1, threads=1,
                     oracle=EpsilonMixed(length=list_length, epsilon=1.0), keep_lists=True)  # fmt: skip
    for batch in iterate_simulated_log(world, trace):
        sums.add(batch, None)
    return sums
