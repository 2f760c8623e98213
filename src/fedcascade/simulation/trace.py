"""The result of a simulation: totals at checkpoints, a ledger of exchanges, the final partition."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require, require_extra, require_integer
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.draws import count_shown
from fedcascade.federation.agent import ShownList
from fedcascade.federation.grouping.partition import relabel_canonically
from fedcascade.federation.messages import Cause, Downloads, Upload, count_payload_bytes
from fedcascade.intervals import Interval, estimate_mean
from fedcascade.learning.click_log import Exposure
from fedcascade.numerics.linear import Vector
from fedcascade.simulation.ledger import ExchangeLedger, LedgerEntry
from fedcascade.simulation.user_regret import RegretByUser, UserRecord

ARITHMETIC = 7  # version of the arithmetic; incremented by changes that alter the bits of a Trace
Lists = NDArray[np.int32]  # one row of items per round, padded with -1


@dataclass(frozen=True)
class Checkpoint:
    """The totals after ``round`` rounds."""

    round: int
    regret: float
    reward: float  # a whole number unless the environment has values
    communications: int
    clustering_error: float


@dataclass(frozen=True)
class Trace:
    """The result of a run. Runs of the same scenario compare equal; ``seconds`` and lists are not compared.

    Regret and reward are those of honest users. ``user_records`` is empty without events such as change or joins.
    ``propensities`` are those of the items of ``lists``, for oracles that explore. ``exposure`` counts how often each
    item was shown, in environments with a catalogue. ``seconds`` excludes compilation.
    """

    policy: str
    engine: str
    rounds: int
    observations: int
    curve: tuple[Checkpoint, ...]
    ledger: ExchangeLedger
    partition: tuple[int, ...]
    seconds: float = field(compare=False)
    lists: Lists | None = field(default=None, compare=False, repr=False)
    propensities: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    user_records: tuple[UserRecord, ...] = field(default=(), repr=False)
    clicked: int = 0
    exposure: Exposure | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        totals = f"regret={self.regret:.1f}, exchanges={self.communications()}, groups={self.clusters}"
        return f"<Trace {self.policy}: rounds={self.rounds}, {totals}>"

    @property
    def regret(self) -> float:
        """Expected regret over all rounds."""
        return self.curve[-1].regret

    @property
    def reward(self) -> float:
        """Sum of the rewards of lists: without values, the number of lists with a click, which is ``clicked``."""
        return self.curve[-1].reward

    @property
    def newcomer_regret(self) -> float:
        """Regret of users that joined late, in their first 50 rounds."""
        return sum(record.early_regret for record in self.user_records if record.role.joined is not None)

    @property
    def clustering_error(self) -> float:
        return self.curve[-1].clustering_error

    @property
    def clusters(self) -> int:
        """Number of groups at the end."""
        return len(set(self.partition))

    def to_columns(self) -> dict[str, list[Any]]:
        """Return the totals at checkpoints as columns."""
        columns = {column.name: [getattr(point, column.name) for point in self.curve] for column in fields(Checkpoint)}
        return {"policy": [self.policy] * len(self.curve), **columns}

    def to_polars(self) -> Any:
        """Return the totals at checkpoints as a polars.DataFrame."""
        return import_module("polars").DataFrame(self.to_columns())  # polars is optional

    def plot(self, quantity: str = "regret") -> Any:
        """Plot regret, exchanges or clustering error over rounds as a matplotlib Figure (extra 'experiments')."""
        require_extra("experiments", "a figure")
        figures = import_module("fedcascade.experiments.reports.figures")  # matplotlib is optional
        return figures.plot_traces({self.policy: [self]}, quantity, title=self.policy)

    def communications(self, cause: Cause | None = None) -> int:
        """Return the number of exchanges, of all causes or of one."""
        return len(self.ledger) if cause is None else self.ledger.count_cause(cause)


@dataclass(frozen=True, eq=False)
class Round:
    """A played round: the list, the clicked position and the upload, if any.

    ``regret`` is expected regret, from the true weights, and ``examined`` counts examined positions. ``reward`` is
    that of the clicks, or None if it is 1 after a click.
    """

    shown: ShownList
    click: int | None
    upload: Upload | None
    regret: float
    examined: int
    reward: float | None = None


def compute_clustering_error(partition: ArrayLike, truth: ArrayLike) -> float:
    """Return the share of users whose estimated cluster differs from their true one.

    >>> compute_clustering_error([0, 0, 1, 1], [7, 7, 8, 9])
    0.5
    """
    _, estimated, estimated_sizes = np.unique(np.asarray(partition), return_inverse=True, return_counts=True)
    _, true, true_sizes = np.unique(np.asarray(truth), return_inverse=True, return_counts=True)
    _, common, common_sizes = np.unique(estimated * true_sizes.size + true, return_inverse=True, return_counts=True)
    shared = common_sizes[common]
    right = (estimated_sizes[estimated] == shared) & (true_sizes[true] == shared)
    return float(1.0 - np.mean(right))


def space_checkpoints(rounds: int, checkpoints: int) -> list[int]:
    """Return the rounds of checkpoints: evenly spaced, including the last round.

    >>> space_checkpoints(10, 4)
    [2, 5, 7, 10]
    """
    require_integer("rounds", rounds)
    require_integer("checkpoints", checkpoints)
    require(checkpoints <= rounds, f"checkpoints must be <= rounds ({rounds}), got {checkpoints}")
    return [rounds * step // checkpoints for step in range(1, checkpoints + 1)]


class Recorder:
    """A collector of the Trace of a running simulation; ``environment`` is given to count by user and by item."""

    def __init__(
        self,
        *,
        rounds: int,
        checkpoints: int,
        truth: NDArray[np.int64],
        list_length: int = 0,
        has_propensities: bool = False,
        environment: Clustered | None = None,
    ) -> None:
        self.rounds, self.truth, self.environment = rounds, truth, environment
        roles = () if environment is None else environment.history.user_roles
        items = 0 if environment is None else environment.catalogue.shape[1]
        self.regret_by_user = RegretByUser(roles) if roles else None
        self.regret = 0.0
        self.reward: float = 0
        self.clicked = self.observations = 0
        self.curve: list[Checkpoint] = []
        self.ledger = ExchangeLedger()
        self.lists = np.full((rounds, list_length), -1, np.int32) if list_length else None
        self.propensities = np.ones((rounds, list_length)) if list_length and has_propensities else None
        self.stops = space_checkpoints(rounds, checkpoints)
        self.shown = np.zeros(items, np.int64) if items else None
        self.start_clock()

    def start_clock(self) -> None:
        self._started = time.perf_counter()

    def record_rounds(
        self,
        first: int,
        users: NDArray[np.int64],
        regret: Vector,
        clicked: NDArray[np.bool_],
        examined: NDArray[np.int64],
        lists: Lists,
        chances: NDArray[np.float64] | None = None,
        rewards: Vector | None = None,
    ) -> None:
        """Add the rounds from ``first`` on to the totals, in order; without ``rewards``, each click is worth 1."""
        if self.regret_by_user is not None:
            regret = self.regret_by_user.record(users, regret)
            clicked = clicked & self.regret_by_user.is_honest[users]
        self.regret = float(np.cumsum(np.append(self.regret, regret))[-1])  # added in order
        self.clicked += int(clicked.sum())
        self.reward += int(clicked.sum()) if rewards is None or not rewards.size else float(rewards.sum())
        self.observations += int(examined.sum())
        if self.lists is not None:
            self.lists[first - 1 : first - 1 + len(lists)] = lists
        self._count_shown(first, lists)
        if self.propensities is not None and chances is not None:
            self.propensities[first - 1 : first - 1 + len(chances)] = chances

    def record_round(self, round_: int, user: int, played: Round) -> None:
        """Add one round to the totals; faster than ``record_rounds``."""
        shown, regret = played.shown, played.regret
        has_click = played.click is not None
        if self.regret_by_user is not None:
            regret = float(self.regret_by_user.record(np.array([user]), np.array([regret]))[0])
            has_click = has_click and bool(self.regret_by_user.is_honest[user])
        self.regret += regret
        self.clicked += has_click
        self.reward += has_click if played.reward is None else has_click * played.reward
        self.observations += played.examined
        if self.lists is not None:
            self.lists[round_ - 1, : shown.items.size] = shown.items
        if self.shown is not None:
            self._count_shown(round_, shown.items[None].astype(np.int32))
        if self.propensities is not None and shown.propensities is not None:
            self.propensities[round_ - 1, : shown.items.size] = shown.propensities

    def _count_shown(self, first: int, lists: Lists) -> None:
        if self.environment is not None and self.shown is not None:
            count_shown(self.environment.seed, np.uint64(first), lists, self.environment.most_items, self.shown)

    def record_exchange(
        self, round_: int, uploads: Sequence[Upload], downloads: Downloads, alone: Cause | None = None
    ) -> None:
        """Add the messages of one exchange to the ledger.

        ``alone`` is the cause of downloads that count as exchanges of their own; None adds them to the uploads.
        """
        sizes = [(agent, count_payload_bytes(statistics.dimension)) for agent, statistics in downloads]
        down = sum(size for _, size in sizes) if alone is None else 0
        self.ledger.extend(LedgerEntry(round_, each.agent, each.cause, each.bytes, down) for each in uploads)
        if alone is not None:
            self.ledger.extend(LedgerEntry(round_, agent, alone, 0, size) for agent, size in sizes)

    def record_checkpoint(self, round_: int, labels: NDArray[np.int64]) -> None:
        """Store the totals if this round is a checkpoint."""
        if round_ == self.stops[len(self.curve)]:
            error = self._compare_with_truth(round_, labels[: self.truth.size])
            self.curve.append(Checkpoint(round_, self.regret, self.reward, len(self.ledger), error))

    def _compare_with_truth(self, round_: int, labels: NDArray[np.int64]) -> float:
        """Return the clustering error of honest users that are present."""
        if self.environment is None or self.regret_by_user is None:
            return compute_clustering_error(labels, self.truth)
        moment = self.environment.find_moment(round_)
        counted = moment.present & self.regret_by_user.is_honest
        return compute_clustering_error(labels[counted], moment.clusters[counted])

    def build_trace(self, policy: str, engine: str, labels: NDArray[np.int64]) -> Trace:
        return Trace(
            policy=policy,
            engine=engine,
            rounds=self.rounds,
            observations=self.observations,
            curve=tuple(self.curve),
            ledger=self.ledger,
            partition=relabel_canonically(labels[: self.truth.size]),
            seconds=time.perf_counter() - self._started,
            lists=self.lists,
            propensities=self.propensities,
            user_records=() if self.regret_by_user is None else self.regret_by_user.build_records(),
            clicked=self.clicked,
            exposure=Exposure(self.shown) if self.shown is not None and self.shown.any() else None,
        )


def summarise(trace: Trace, *, seed: int) -> dict[str, Any]:
    """Return the totals and the curve of a Trace, for JSON."""
    users = [{**asdict(each.role), "rounds": each.rounds, "regret": each.regret} for each in trace.user_records]
    return {
        "policy": trace.policy,
        "engine": trace.engine,
        "seed": seed,
        **{name: getattr(trace, name) for name in ("rounds", "regret", "reward", "clicked", "observations")},
        "communications": {"total": trace.communications(), **_count_by_cause(trace)},
        "bytes": dict(zip(("up", "down"), trace.ledger.sum_bytes(), strict=True)),
        **{name: getattr(trace, name) for name in ("clusters", "clustering_error", "seconds")},
        "curve": [asdict(point) for point in trace.curve],
        **({"users": users, "newcomer_regret": trace.newcomer_regret} if users else {}),
        **({"exposure": trace.exposure.describe()} if trace.exposure is not None else {}),
    }


def _count_by_cause(trace: Trace) -> dict[str, int]:
    """Count exchanges by cause: those of the paper always, others if there are any."""
    counts = {cause: trace.communications(cause) for cause in Cause}
    paper = (Cause.DETERMINANT, Cause.AUXILIARY, Cause.FORCED)
    return {cause.value: count for cause, count in counts.items() if count or cause in paper}


class ComparedPolicy(NamedTuple):
    """The runs of a policy: means, and the difference of its regret from the baseline's, run by run."""

    label: str
    regret: Interval
    difference: Interval
    clicks: Interval
    exchanges: Interval
    clustering_error: Interval
    coverage: Interval | None = None
    gini: Interval | None = None


def compare_traces(traces: Mapping[str, Sequence[Trace]], against: str) -> list[ComparedPolicy]:
    """Compare policies with one of them, over runs that are paired by their order."""
    compared = []
    for label, runs in traces.items():
        gaps = [run.regret - other.regret for run, other in zip(runs, traces[against], strict=True)]
        totals = [(run.regret, run.clicked, float(run.communications()), run.clustering_error) for run in runs]
        regret, clicks, exchanges, error = map(estimate_mean, zip(*totals, strict=True))
        shown = [run.exposure for run in runs if run.exposure is not None]
        means = [estimate_mean([getattr(each, name) for each in shown]) for name in ("coverage", "gini") if shown]
        compared.append(ComparedPolicy(label, regret, estimate_mean(gaps), clicks, exchanges, error, *means))
    return compared


def choose_baseline(labels: Sequence[str]) -> str:
    """Return the policy that others are compared with: the one that learns alone, or else the first."""
    return "fedind" if "fedind" in labels else labels[0]
