"""Compare estimators with the truth on many simulated logs: errors, and coverage of 95% intervals.

Usage: python tools/estimator_study.py [--logs 200] [--seed 1] [--learned 40]

The last part lets policies learn from the first half of a log, and knows the tastes of all users.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.evaluation.evaluate import Evaluation, evaluate, evaluate_frozen
from fedcascade.evaluation.fit import FrozenPolicy, freeze_policy
from fedcascade.federation.policies import get_policy
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.exploration import EPSILON, PLACKETT_LUCE, compute_propensities, explore
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.numerics.grid import round_to_grid

DIMENSION = 4


@dataclass(frozen=True)
class Shape:
    """The sizes of a population and of a log."""

    items: int
    length: int
    users: int
    lists: int  # per user


SHAPES = (Shape(4, 2, 200, 10), Shape(8, 3, 200, 10), Shape(6, 4, 150, 20), Shape(8, 2, 80, 60))
# The logger: kind, level, and whether its taste differs from that of the evaluated policy.
LOGGERS = {
    "uniform": (EPSILON, 1.0, False),
    "warm": (PLACKETT_LUCE, 1.0, False),
    "sharp": (PLACKETT_LUCE, 0.3, False),
    "other taste": (PLACKETT_LUCE, 0.5, True),
    "half greedy": (EPSILON, 0.5, False),
}
TARGET = (PLACKETT_LUCE, 0.25)


class World:
    """Users with individual tastes from one population; all items are always available."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        draw = np.random.default_rng([seed, 1])
        self.items = round_to_grid(_make_units(draw, shape.items))
        self.taste, self.other = _make_units(draw, 2) * 0.8

    def draw_users(self, draw: np.random.Generator, users: int) -> NDArray[np.float64]:
        """Return the probability that each user clicks each examined item, (users, items)."""
        tastes = np.abs(self.taste * 0.6 + draw.normal(0, 0.25, (users, DIMENSION)))
        tastes /= np.maximum(1.0, np.linalg.norm(tastes, axis=1, keepdims=True))
        weights: NDArray[np.float64] = np.clip(tastes @ self.items.T, 0.0, 0.9)
        return weights

    def make_policy(self) -> FrozenPolicy:
        """Make the evaluated policy, with one taste for all users."""
        d = DIMENSION
        return FrozenPolicy(name="target", theta=self.taste[None], root=np.zeros((1, d, d)), beta=np.zeros(1),
                            kind=TARGET[0], level=TARGET[1], length=self.shape.length)  # fmt: skip

    def compute_truth(self, users: int = 100_000) -> float:
        """Return the reward of the policy per list, averaged over the population."""
        draw = np.random.default_rng(99)
        weights, scores = self.draw_users(draw, users), self.items @ self.taste
        earned = 0.0
        for row in weights:
            chosen = explore(*TARGET, scores, _draw_words(draw, self.shape.items), self.shape.length)
            earned += 1.0 - float(np.prod(1.0 - row[chosen]))
        return earned / users


def _make_units(draw: np.random.Generator, rows: int) -> NDArray[np.float64]:
    vectors = np.abs(draw.normal(size=(rows, DIMENSION)))
    units: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * 0.99
    return units


def _draw_words(draw: np.random.Generator, count: int) -> NDArray[np.uint32]:
    return draw.integers(0, 2**32, count, np.uint32)


def simulate_log(world: World, logger: str, seed: int, *, upwards: bool = False) -> ClickLog:
    """Simulate a log of new users; with ``upwards``, they examine the last item first, against the cascade."""
    kind, level, is_other = LOGGERS[logger]
    shape, draw = world.shape, np.random.default_rng([seed, 2])
    weights = world.draw_users(draw, shape.users)
    scores = world.items @ (world.other if is_other else world.taste)
    users = np.repeat(np.arange(shape.users), shape.lists)
    items = np.empty((users.size, shape.length), np.int64)
    chances, clicks = np.empty(items.shape), np.zeros(items.shape, bool)
    for row, user in enumerate(users):
        items[row] = explore(kind, level, scores, _draw_words(draw, shape.items), shape.length)
        chances[row] = compute_propensities(kind, level, scores, items[row])
        hits = np.flatnonzero(draw.random(shape.length) < weights[user, items[row]])
        if hits.size:
            clicks[row, hits[-1 if upwards else 0]] = True
    return ClickLog(users=users, items=items, clicks=clicks, propensities=chances)


def evaluate_log(world: World, log: ClickLog, model: NDArray[np.float64]) -> Evaluation:
    """Return all applicable estimates of the target policy on a log."""
    return evaluate_frozen(iter([(0, log)]), [world.make_policy()], model, world.items)


def run_study(logs: int, seed: int, *, upwards: bool = False) -> Iterator[tuple[str, str, bool, float, float]]:
    """Yield logger, estimator, whether the interval holds the truth, error and width, for each log and estimator."""
    worlds = [World(shape, seed) for shape in SHAPES]
    truths = [world.compute_truth() for world in worlds]
    names = list(LOGGERS)
    for number in range(logs):
        place, logger = number % len(worlds), names[number // len(worlds) % len(names)]
        world, truth = worlds[place], truths[place]
        log = simulate_log(world, logger, seed * 100_000 + number, upwards=upwards)
        # The model has only the average taste, so that the doubly robust estimator has an error to correct.
        for estimate in evaluate_log(world, log, world.taste[None] * 0.5).estimates[1:]:
            if np.isnan(estimate.low):  # too little data for an interval
                continue
            held = estimate.low <= truth <= estimate.high
            yield logger, estimate.estimator, held, estimate.value - truth, estimate.high - estimate.low


LEARNED = ("fedind", "population", "oful")


def run_learned(logs: int, seed: int) -> Iterator[tuple[str, str, bool, float, float]]:
    """Yield policy or difference, estimator, whether the interval holds the truth, error and width, for each log."""
    shape = Shape(items=8, length=2, users=60, lists=100)
    policies = [get_policy(name).with_beta(0.0) for name in LEARNED]
    for number in range(logs):
        world, log_seed = World(shape, seed + number), seed * 100_000 + number
        draw = np.random.default_rng([log_seed, 3])
        log = simulate_log(world, "uniform", log_seed)
        log = log.select(draw.permutation(len(log)))
        weights = world.draw_users(np.random.default_rng([log_seed, 2]), shape.users)  # those of the log
        sums, half = LogSums(DIMENSION), len(log) // 2
        sums.add(log.select(slice(0, half)), world.items)
        truths = {"logged": _expect_random(weights, log.select(slice(half, None)))}
        for policy in policies:
            frozen = freeze_policy(policy, sums, TopK(length=shape.length))
            best = np.argsort(-(frozen.theta[: shape.users] @ world.items.T), axis=1)[:, : shape.length]
            earned = 1.0 - np.prod(1.0 - np.take_along_axis(weights, best, axis=1), axis=1)
            truths[policy.name] = float(earned[log.users[half:]].mean())
        found = evaluate(log, policies, items=world.items)
        for row in found.estimates:
            error = row.value - truths[row.policy]
            yield row.policy, row.estimator, row.low <= row.value - error <= row.high, error, row.high - row.low
        for pair in found.differences:
            error = pair.value - (truths[pair.policy] - truths[pair.baseline])
            held = pair.low <= pair.value - error <= pair.high
            yield f"{pair.policy} - {pair.baseline}", pair.estimator, held, error, pair.high - pair.low


def _expect_random(weights: NDArray[np.float64], log: ClickLog) -> float:
    """Return the expected reward of the lists of a log."""
    return float((1.0 - np.prod(1.0 - weights[log.users[:, None], log.items], axis=1)).mean())


def summarise(rows: list[tuple[str, str, bool, float, float]]) -> dict[str, tuple[int, float, float, float]]:
    """Return for each estimator the logs, the coverage of its intervals, the mean error and the mean width."""
    table = {}
    for name in dict.fromkeys(row[1] for row in rows):
        held, errors, widths = (np.array([row[k] for row in rows if row[1] == name], float) for k in (2, 3, 4))
        table[name] = (held.size, float(held.mean()), float(errors.mean()), float(widths.mean()))
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learned", type=int, default=40)
    options = parser.parse_args()
    print(f"policies that learn from the first half of {options.learned} logs")
    learned = list(run_learned(options.learned, options.seed))
    for policy in dict.fromkeys(row[0] for row in learned):
        for name, (count, held, error, width) in summarise([row for row in learned if row[0] == policy]).items():
            figures = f"covered {held:6.1%}  mean error {error:+.4f}  mean width {width:.4f}"
            print(f"  {policy:20} {name:11} {count:4} logs  {figures}")
    for title, upwards in (("users look from the top", False), ("users look from the bottom: no cascade", True)):
        print(title)
        rows = list(run_study(options.logs, options.seed, upwards=upwards))
        for name, (count, held, error, width) in summarise(rows).items():
            print(f"  {name:11} {count:4} logs  covered {held:6.1%}  mean error {error:+.4f}  mean width {width:.4f}")
            shares = {logger: summarise([row for row in rows if row[:2] == (logger, name)]) for logger in LOGGERS}
            print("    " + ", ".join(f"{logger} {found[name][1]:.0%}" for logger, found in shares.items() if found))


if __name__ == "__main__":
    main()
