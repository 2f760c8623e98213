"""Click logs of simulations: lists, items on offer, clicks and propensities."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedcascade.checks import require
from fedcascade.data.logs.writer import write_log
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import get_policy
from fedcascade.learning.click_log import MISSING, ClickLog
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.log_sums import LogSums
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.reference import show_list
from fedcascade.simulation.trace import Trace

LOG_SEEDS = 2**40  # offset of the seeds of logs from those of their environments
BATCH = 2_000  # rounds per batch


def iterate_simulated_log(environment: Environment, trace: Trace, *, rounds: int = BATCH) -> Iterator[ClickLog]:
    """Yield the log of a run in batches of rounds; items are numbered within their round.

    The environment reproduces the items and clicks of each round; the run must have kept its lists.
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
    users, clicks, rewards = np.empty(count, np.int64), np.zeros(items.shape, bool), np.zeros(items.shape)
    offered = np.full((count, most), MISSING, np.int64)
    features = np.zeros((count, most, environment.dimension), np.float32)
    for row, t in enumerate(range(first, last + 1)):
        on_offer, user = environment.items(t), environment.arrival(t)
        shown = items[row][items[row] != MISSING]
        seen, _, _ = show_list(environment, t, user, on_offer, shown)
        users[row] = user
        offered[row, : len(on_offer)] = range(len(on_offer))
        features[row, : len(on_offer)] = on_offer
        clicks[row, list(seen.clicks)], rewards[row, list(seen.clicks)] = True, seen.values
    chances = None if trace.propensities is None else trace.propensities[first - 1 : last]
    times = np.arange(first, last + 1, dtype=np.float64)
    shown = {"users": users, "items": items, "clicks": clicks, "times": times}
    has_values = getattr(environment, "value_thetas", None) is not None
    return ClickLog(
        **shown, rewards=rewards if has_values else None, propensities=chances, offered=offered, features=features
    )


def write_simulated_log(path: Path, environment: Environment, trace: Trace) -> None:
    """Write the log of a run to a file."""
    write_log(path, iterate_simulated_log(environment, trace))


def learn_from_random_lists(environment: Clustered, rounds_per_user: int, *, list_length: int = 4) -> LogSums:
    """Return the sums of a log of uniformly random lists, from rounds that the environment does not play."""
    logged = environment.with_other_rounds(int(environment.seed) + LOG_SEEDS)
    oracle, rounds = EpsilonMixed(length=list_length, epsilon=1.0), rounds_per_user * logged.users
    policy = get_policy("fedind")
    trace = simulate(logged, policy, rounds=rounds, oracle=oracle, checkpoints=1, threads=1, keep_lists=True)
    sums = LogSums(environment.dimension)
    for batch in iterate_simulated_log(logged, trace):
        sums.add(batch, None)
    return sums
