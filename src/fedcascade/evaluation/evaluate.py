"""Evaluation of policies on a log: learning from its first part, estimates of rewards on the rest."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import SHARE, Range, one_of, require, require_known, whole_numbers
from fedcascade.constants import Checked, constant
from fedcascade.data.logs.reader import open_log, slice_rows
from fedcascade.evaluation.estimators import (
    ESTIMATORS,
    LOGGED_CLICKS,
    LOGGED_MEAN,
    Evidence,
    compute_intervals,
    divide,
    gather_evidence,
)
from fedcascade.evaluation.fit import FrozenPolicy, add_batch, fit_attraction, freeze_policy
from fedcascade.evaluation.rating import rate_log
from fedcascade.federation.policies import DEFAULT_POLICY, Policy, get_policy
from fedcascade.learning.click_log import MISSING, ClickLog, Exposure
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.numerics.jit import jit
from fedcascade.numerics.streams import REPLAY, uniform

Progress = Callable[[int], None]  # called with the number of lists done
LOGGED, AVERAGE, CLICKED = "logged", "average", "clicked"  # the rows of the log itself: reward, and click rate
HEADER = ("policy", "estimator", "per list", "95% interval", "effective lists", "of")
ACCEPTANCE, FOLD = 0, 1  # numbers of a row's draws: whether replay accepts its list, and its fold
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
        "any",
        meaning="any: 1 for a clicked list; clicks: the number of clicks; value: the sum of their rewards",
        range=one_of("any", "clicks", "value"),
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
class Difference:
    """The estimated reward per list of a policy minus that of ``baseline``, with a 95% interval paired by user."""

    policy: str
    baseline: str
    estimator: str
    value: float
    low: float
    high: float

    def format(self) -> tuple[str, ...]:
        """Return the cells of a row of a table."""
        interval = "" if math.isnan(self.low) else f"{self.low:+.4f} to {self.high:+.4f}"
        return f"{self.policy} - {self.baseline}", f"{self.value:+.4f}", interval


@dataclass(frozen=True)
class Evaluation:
    """The estimates, the differences between policies, and the reasons why other estimators do not apply."""

    estimates: tuple[Estimate, ...]
    refusals: dict[str, str]
    differences: tuple[Difference, ...] = ()
    exposures: dict[str, Exposure] = field(default_factory=dict)  # by policy, for a log with a table of items

    @property
    def believed(self) -> str | None:
        """The estimator to believe; None if each needs an assumption that a log cannot show."""
        return next((name for name in BELIEVED if any(row.estimator == name for row in self.estimates)), None)

    @property
    def advice(self) -> str:
        """One sentence about which estimator to believe, and why."""
        name = self.believed
        if name is None:
            return ADVICE[None]
        least = min(row.effective for row in self.estimates if row.estimator == name)
        few = f" It rests on {least:,.0f} effective lists, which is few." if least < FEW_LISTS else ""
        return f"Believe {name}: {ADVICE[name]}{few}"


BELIEVED = ("cascade-dr", "rips", "snips", "ips")  # the first that was computed
FEW_LISTS = 100
ADVICE = {
    "cascade-dr": "propensities correct the errors of its model, if users read from the top (fedcascade data clicks);"
    " dm has no such correction, and its interval leaves out the error of its model.",
    "rips": "it needs right propensities, and users that read from the top (fedcascade data clicks).",
    "snips": "it needs right propensities, and no model of users.",
    "ips": "it needs right propensities, and no model of users.",
    None: "Believe none blindly: replay is right only if the logger chose uniformly at random, and dm only if its model"
    " is right. Log the propensities of shown items.",
}


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
        self.sums = np.zeros((2, 0, len(estimators)))  # numerators and denominators, by user and estimator
        self.weight = self.square = 0.0
        self.accepted = self.lists = 0

    def add(self, users: NDArray[np.int64], evidence: Evidence) -> None:
        most = max(self.sums.shape[1], int(users.max()) + 1)
        self.sums = np.pad(self.sums, ((0, 0), (0, most - self.sums.shape[1]), (0, 0)))
        for place, name in enumerate(self.estimators):
            logged = LOGGED_CLICKS if name == CLICKED else LOGGED_MEAN
            for part, values in enumerate(ESTIMATORS.get(name, logged).sum_up(evidence)):
                self.sums[part, :, place] += np.bincount(users, values, most)
        if evidence.whole is not None:
            self.weight += float(evidence.whole.sum())
            self.square += float((evidence.whole**2).sum())
        self.accepted += int(evidence.accepted.sum())
        self.lists += len(users)

    def count_effective(self, estimator: str) -> float:
        share = self.weight**2 / self.square if self.square else 0.0
        logged = dict.fromkeys((AVERAGE, CLICKED), float(self.lists))
        return (logged | {"replay": float(self.accepted), "dm": math.nan}).get(estimator, share)


def summarise(totals: Mapping[str, Totals], refusals: dict[str, str], options: EvaluationOptions) -> Evaluation:
    """Compute estimates, differences and their intervals from the totals of the log and of each policy."""
    rows = [(policy, estimator) for policy, total in totals.items() for estimator in total.estimators]
    above, below = np.concatenate([total.sums for total in totals.values()], axis=2)  # all with the same users
    first = next((policy for policy in totals if policy != LOGGED), LOGGED)
    pairs = [(policy, estimator, LOGGED, AVERAGE) for policy, estimator in rows if policy != LOGGED]
    pairs += [(policy, name, first, name) for policy, name in rows if policy not in (LOGGED, first)]
    contrasts = [(rows.index((one, name)), rows.index((other, base))) for one, name, other, base in pairs]
    present = below.any(axis=1)
    sampling = {"resamples": options.resamples, "seed": options.seed}
    ends = compute_intervals(above[present], below[present], contrasts=contrasts, **sampling)
    values = divide(above.sum(axis=0), below.sum(axis=0))
    estimates = []
    for (policy, name), value, (low, high) in zip(rows, values.tolist(), ends[: len(rows)].tolist(), strict=True):
        total = totals[policy]
        estimates.append(Estimate(policy, name, value, low, high, total.count_effective(name), total.lists))
    differences = tuple(
        Difference(pair[0], pair[2], pair[1], float(values[one] - values[other]), *ends[len(rows) + place].tolist())
        for place, (pair, (one, other)) in enumerate(zip(pairs, contrasts, strict=True))
    )
    return Evaluation(tuple(estimates), refusals, differences)


def evaluate_frozen(
    batches: Iterator[tuple[int, ClickLog]],
    policies: Sequence[FrozenPolicy],
    model: NDArray[np.float64],
    table: NDArray[np.float32] | None,
    options: EvaluationOptions = PLAIN,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate frozen policies on batches of a log, each with the number of its first row.

    ``model`` is that of ``fit_attraction``, or two of them, of which each list uses that of the other fold.
    """
    require(len(policies) > 0, "policies must hold at least one policy")
    names = [policy.name for policy in policies]
    require(len(set(names)) == len(names), f"policies must have different names, got {', '.join(names)}")
    seed = np.uint64(options.seed)
    totals: dict[str, Totals] = {}
    shown = {name: Exposure(np.zeros(0 if table is None else len(table), np.int64)) for name in (LOGGED, *names)}
    refusals: dict[str, str] = {}
    for first, batch in batches:
        if not totals:
            refusals = find_refusals(batch, options.reward)
            chosen = choose_estimators(options.estimators, refusals)
            own = [AVERAGE, CLICKED] if options.reward == "value" else [AVERAGE]
            totals = {LOGGED: Totals(own)} | {name: Totals(chosen) for name in names}
        draws = draw_uniforms(seed, first, len(batch), ACCEPTANCE)
        folds = draw_folds(seed, first, len(batch)) if model.ndim == 3 else None
        for policy in policies:
            ratings = rate_log(policy, model, batch, table, folds=folds, first_row=first, threads=options.threads)
            evidence = gather_evidence(batch, ratings, draws, reward=options.reward)
            totals[policy.name].add(batch.users, evidence)
            shown[policy.name].add(find_items(batch, ratings.chosen))
        shown[LOGGED].add(batch.items)
        totals[LOGGED].add(batch.users, evidence)
        if progress is not None:
            progress(first + len(batch))
    require(len(totals) > 0, "no list of the log is left to evaluate: lower the share for learning")
    return replace(summarise(totals, refusals, options), exposures={} if table is None else shown)


def find_items(log: ClickLog, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of items from their places among those on offer, in each row."""
    if log.offered is None:
        return places
    return np.where(places == MISSING, MISSING, np.take_along_axis(log.offered, np.maximum(places, 0), axis=1))


@jit
def draw_uniforms(seed: np.uint64, first: int, count: int, which: int) -> NDArray[np.float64]:
    """Draw a uniform number for each row of a log from ``first`` on, of those of which each row has several."""
    draws = np.empty(count)
    for row in range(count):
        draws[row] = uniform(seed, REPLAY, first + row, which)
    return draws


def draw_folds(seed: np.uint64, first: int, count: int) -> NDArray[np.int64]:
    """Draw the fold, 0 or 1, of each row of a log from ``first`` on."""
    return (draw_uniforms(seed, first, count, FOLD) < 0.5).astype(np.int64)


def fit_folds(
    batches: Iterator[tuple[int, ClickLog]], d: int, table: NDArray[np.float32] | None, options: EvaluationOptions
) -> NDArray[np.float64]:
    """Fit a model of attraction for the lists of each fold, (2, users + 1, d), from the lists of the other fold.

    No list is rated by a model that has seen it, nor by one that has learned from the lists that a policy learned from.
    """
    sums = LogSums(d), LogSums(d)
    for first, batch in batches:
        folds = draw_folds(np.uint64(options.seed), first, len(batch))
        rated = batch if options.reward == "value" else replace(batch, rewards=None)  # else it models clicks
        for fold in range(2):
            sums[1 - fold].add(rated.select(folds == fold), table)
    users = max(each.users for each in sums)
    return np.stack([fit_attraction(each, users) for each in sums])


def choose_estimators(wanted: Sequence[str] | None, refusals: dict[str, str]) -> list[str]:
    """Return the wanted estimators, which must apply, or else all that apply."""
    if wanted is None:
        return [name for name in ESTIMATORS if name not in refusals]
    for name in wanted:
        require_known("estimator", name, ESTIMATORS)
        require(name not in refusals, f"{name}: {refusals.get(name)}")
    return list(wanted)


def evaluate(
    log: Any,
    policies: Sequence[str | Policy] = (DEFAULT_POLICY,),
    oracle: Oracle | None = None,
    *,
    items: Any = None,
    options: EvaluationOptions = PLAIN,
    progress: Progress | None = None,
) -> Evaluation:
    """Let policies learn from the first share of a log, and estimate their rewards on the rest.

    Lists are taken in order of time, where a log has it. The model of ``dm`` and ``cascade-dr`` is cross-fitted on the
    rest of the log, so that it shares no list with a policy.

    Args:
        log: the result of ``read_log``, a path, a table of pandas or polars, a mapping of columns, or a ``ClickLog``.
        policies: names or ``Policy`` objects; each is frozen after the first part.
        oracle: chooses lists from scores: top-k, plackett-luce or epsilon. As long as the first list and top-k if None.
        items: the features of items, as for a ``Ranker``; not for a result of ``read_log``.
        options: the share for learning, the estimators, the reward and the intervals.
        progress: called with the number of lists done.

    >>> log = {"user": ["a", "b"] * 6, "items": [["tea", "milk"], ["milk", "tea"]] * 6, "clicks": [[0], []] * 6}
    >>> table = {"item": ["tea", "milk"], "warm": [0.9, 0.1], "white": [0.0, 0.9]}
    >>> found = evaluate(log, ["fedind"], items=table, options=EvaluationOptions(resamples=10))
    >>> [(row.policy, row.estimator, row.lists) for row in found.estimates]
    [('logged', 'average', 6), ('fedind', 'replay', 6), ('fedind', 'dm', 6)]
    """
    log = open_log(log, items=items)
    chosen = [get_policy(policy) if isinstance(policy, str) else policy for policy in policies]
    oracle = TopK(length=next(log.batches(1)).items.shape[1]) if oracle is None else oracle
    lists = log.count()
    split = int(options.train * lists)
    require(0 < split < lists, f"train must leave lists on both sides of {lists:,}, got {options.train}")
    table, sums = None if log.table is None else log.table.features, None
    for _, batch in slice_rows(log.batches(), 0, split):
        sums = add_batch(sums, batch, table)
    assert sums is not None
    frozen = [freeze_policy(policy, sums, oracle) for policy in chosen]
    model = fit_folds(slice_rows(log.batches(), split), sums.dimension, table, options)
    return evaluate_frozen(slice_rows(log.batches(), split), frozen, model, table, options, progress)
