"""Evaluation of policies on a log: learning from its first part, estimates of rewards on the rest."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import SHARE, Range, one_of, require, require_known, whole_numbers
from fedcascade.constants import Checked, constant
from fedcascade.data.logs.reader import Log
from fedcascade.evaluation.estimators import (
    ESTIMATORS,
    LOGGED_MEAN,
    Evidence,
    compute_intervals,
    divide,
    gather_evidence,
)
from fedcascade.evaluation.fit import FrozenPolicy, fit_attraction, freeze_policy, sum_first
from fedcascade.evaluation.rating import rate_log
from fedcascade.federation.policies import Policy
from fedcascade.learning.click_log import MISSING, ClickLog
from fedcascade.learning.oracles import Oracle
from fedcascade.numerics.jit import jit
from fedcascade.numerics.streams import REPLAY, uniform

Progress = Callable[[int], None]  # called with the number of lists done
LOGGED, AVERAGE = "logged", "average"  # the row of the log itself
HEADER = ("policy", "estimator", "per list", "95% interval", "effective lists", "of")
UNIFORM = 1e-6  # largest relative difference between propensities of uniformly random lists
NAMES = Range(
    "names of estimators, separated by commas",
    lambda value: not isinstance(value, str),
    lambda text: tuple(text.split(",")),
)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(Checked):
    """Options of an evaluation."""

    train: float = constant(0.5, meaning="first share of the log, for learning", range=SHARE)
    estimators: Sequence[str] | None = constant(
        None, meaning="replay, dm, ips, snips, rips or cascade-dr, separated by commas. [all that apply]", range=NAMES
    )
    reward: str = constant(
        "any", meaning="any: 1 for a clicked list; clicks: the number of clicks", range=one_of("any", "clicks")
    )
    resamples: int = constant(1000, meaning="resamples of users for the intervals", range=whole_numbers(1))
    seed: int = constant(0, meaning="seed of resampling and rejection", range=whole_numbers(0))
    threads: int = constant(2, meaning="cores", range=whole_numbers(1))


PLAIN = EvaluationOptions()


@dataclass(frozen=True)
class Estimate:
    """The estimated reward per list of a policy, the ends of its 95% interval, and the effective number of lists.

    ``effective`` is (sum of weights)^2 / (sum of squared weights), or the number of accepted lists; NaN for a model.
    """

    policy: str
    estimator: str
    value: float
    low: float
    high: float
    effective: float
    lists: int

    def format(self) -> tuple[str, ...]:
        """Return the cells of a row of a table; unknown values are empty."""
        interval = "" if math.isnan(self.low) else f"{self.low:.4f} to {self.high:.4f}"
        effective = "" if math.isnan(self.effective) else f"{self.effective:,.0f}"
        value = "none accepted" if math.isnan(self.value) else f"{self.value:.4f}"
        return self.policy, self.estimator, value, interval, effective, f"{self.lists:,}"


@dataclass(frozen=True)
class Evaluation:
    """The estimates, and the reasons why other estimators do not apply."""

    estimates: tuple[Estimate, ...]
    refusals: dict[str, str]


def find_refusals(log: ClickLog, reward: str) -> dict[str, str]:
    """Return the estimators that do not apply to a log, with reasons."""
    refusals = {}
    for name, estimator in ESTIMATORS.items():
        if estimator.needs_propensity and log.list_propensity is None:
            refusals[name] = "this log has no propensities: only replay and the direct method apply"
        elif estimator.needs_propensities and log.propensities is None:
            refusals[name] = "this log has no propensities of positions: give them as the column propensities"
        elif estimator.is_model and reward != "any":
            refusals[name] = "its model covers the first click only: use the reward 'any'"
        elif name == "replay" and log.list_propensity is not None and not _is_uniform(log):
            refusals[name] = "the lists of this log were not chosen uniformly at random: use ips or snips"
    return refusals


def _is_uniform(log: ClickLog) -> bool:
    chances, lengths = log.list_propensity, log.lengths
    assert chances is not None
    if log.offered is None:  # lists of one length, among equally many items
        alike = chances[lengths == lengths[0]]
        return float(np.ptp(alike)) <= UNIFORM * float(alike.min())
    left = (log.offered != MISSING).sum(axis=1)[:, None] - np.arange(log.items.shape[1])
    fair = np.where(log.items != MISSING, 1.0 / np.maximum(left, 1), 1.0).prod(axis=1)
    return bool((np.abs(chances - fair) <= UNIFORM * fair).all())


class Totals:
    """Sums of numerators and denominators by user, for the estimators of one policy."""

    def __init__(self, estimators: Sequence[str]) -> None:
        self.estimators = list(estimators)
        self.numerators, self.denominators = np.zeros((0, len(estimators))), np.zeros((0, len(estimators)))
        self.weight = self.square = 0.0
        self.accepted = self.lists = 0

    def add(self, users: NDArray[np.int64], evidence: Evidence) -> None:
        """Add the lists of a batch to the sums of their users."""
        most = max(len(self.numerators), int(users.max()) + 1)
        more = most - len(self.numerators)
        self.numerators, self.denominators = (np.pad(part, ((0, more), (0, 0))) for part in self.parts)
        for place, name in enumerate(self.estimators):
            above, below = ESTIMATORS.get(name, LOGGED_MEAN).sum_up(evidence)
            self.numerators[:, place] += np.bincount(users, above, most)
            self.denominators[:, place] += np.bincount(users, below, most)
        if evidence.whole is not None:
            self.weight += float(evidence.whole.sum())
            self.square += float((evidence.whole**2).sum())
        self.accepted += int(evidence.accepted.sum())
        self.lists += len(users)

    @property
    def parts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.numerators, self.denominators

    def estimate(self, policy: str, *, resamples: int, seed: int) -> Iterator[Estimate]:
        """Yield estimates with intervals, from the users of the evaluated part."""
        present = self.denominators.any(axis=1) | self.numerators.any(axis=1)
        above, below = self.numerators[present], self.denominators[present]
        ends = compute_intervals(above, below, resamples=resamples, seed=seed)
        values = divide(above.sum(axis=0), below.sum(axis=0))
        share = self.weight**2 / self.square if self.square else 0.0
        for place, name in enumerate(self.estimators):
            effective = {"replay": float(self.accepted), "dm": np.nan, AVERAGE: float(self.lists)}.get(name, share)
            low, high = ends[place].tolist()
            yield Estimate(policy, name, float(values[place]), low, high, effective, self.lists)


def evaluate_frozen(
    batches: Iterator[tuple[int, ClickLog]],
    policies: Sequence[FrozenPolicy],
    model: NDArray[np.float64],
    table: NDArray[np.float32] | None,
    options: EvaluationOptions = PLAIN,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate frozen policies on batches of a log, each with the number of its first row."""
    require(len(policies) > 0, "policies must hold at least one policy")
    reward, seed = options.reward, options.seed
    totals: list[Totals] = []
    logged = Totals([AVERAGE])
    refusals: dict[str, str] = {}
    for first, batch in batches:
        if not totals:
            refusals = find_refusals(batch, reward)
            chosen = choose_estimators(options.estimators, refusals)
            totals = [Totals(chosen) for _ in policies]
        draws = draw_replay(np.uint64(seed), first, len(batch))
        for policy, total in zip(policies, totals, strict=True):
            ratings = rate_log(policy, model, batch, table, first_row=first, threads=options.threads)
            evidence = gather_evidence(batch, ratings, draws, reward=reward)
            total.add(batch.users, evidence)
        logged.add(batch.users, evidence)
        if progress is not None:
            progress(first + len(batch))
    require(len(totals) > 0, "no list of the log is left to evaluate: lower the share for learning")
    estimates: list[Estimate] = []
    for name, total in [(LOGGED, logged), *zip((policy.name for policy in policies), totals, strict=True)]:
        estimates += total.estimate(name, resamples=options.resamples, seed=seed)
    return Evaluation(tuple(estimates), refusals)


@jit
def draw_replay(seed: np.uint64, first: int, count: int) -> NDArray[np.float64]:
    """Draw a uniform number for each row of a log from ``first`` on, for the acceptance of lists."""
    draws = np.empty(count)
    for row in range(count):
        draws[row] = uniform(seed, REPLAY, first + row, 0)
    return draws


def choose_estimators(wanted: Sequence[str] | None, refusals: dict[str, str]) -> list[str]:
    """Return the wanted estimators, which must apply, or else all that apply."""
    if wanted is None:
        return [name for name in ESTIMATORS if name not in refusals]
    for name in wanted:
        require_known("estimator", name, ESTIMATORS)
        require(name not in refusals, f"{name}: {refusals.get(name)}")
    return list(wanted)


def evaluate(
    log: Log,
    policies: Sequence[Policy],
    oracle: Oracle,
    *,
    options: EvaluationOptions = PLAIN,
    progress: Progress | None = None,
) -> Evaluation:
    """Let policies learn from the first share of a log, and estimate their rewards on the rest.

    Args:
        log: the result of ``read_log``.
        policies: each is frozen after the first part.
        oracle: chooses lists from scores: top-k, plackett-luce or epsilon.
        options: the share for learning, the estimators, the reward and the intervals.
        progress: called with the number of lists done.
    """
    lists = log.count()
    split = int(options.train * lists)
    require(0 < split < lists, f"train must leave lists on both sides of {lists:,}, got {options.train}")
    sums = sum_first(log, split)
    frozen = [freeze_policy(policy, sums, oracle) for policy in policies]
    table = None if log.table is None else log.table.features
    rest = skip_rows(log.batches(), split)
    return evaluate_frozen(rest, frozen, fit_attraction(sums), table, options, progress)


def skip_rows(batches: Iterator[ClickLog], rows: int) -> Iterator[tuple[int, ClickLog]]:
    """Yield the batches from a row on, each with the number of its first row."""
    first = 0
    for batch in batches:
        if first + len(batch) > rows:
            start = max(0, rows - first)
            yield first + start, batch.select(slice(start, None))
        first += len(batch)
