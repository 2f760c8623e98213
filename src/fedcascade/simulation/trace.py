"""What a simulation leaves behind: curves at checkpoints, a ledger of exchanges, the final partition."""

import csv
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require, require_integer
from fedcascade.environments.clustered import Clustered
from fedcascade.federation.agent import ShownList
from fedcascade.federation.grouping.partition import relabel_by_appearance
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.numerics.linear import Vector, sum_in_order
from fedcascade.simulation.ledger import ExchangeLedger, LedgerEntry
from fedcascade.simulation.user_regret import CohortCurve, OwnRounds, People, PersonRecord

ARITHMETIC = 4  # names what gives a Trace its bits; raised with every change that is meant to change them
Lists = NDArray[np.int32]  # one row of items per round, filled up with -1


@dataclass(frozen=True)
class Checkpoint:
    """Totals after ``round`` rounds."""

    round: int
    regret: float
    reward: int
    communications: int
    clustering_error: float


@dataclass(frozen=True)
class Trace:
    """A whole run. Two runs of the same environment and policy are equal; seconds and lists do not take part in ``==``.

    ``people`` says who each user of a living population was; it is empty where nothing happens to a population, and
    regret and reward are those of honest users.
    ``propensities`` are the chances of the items of ``lists``, where they are chosen by chance.
    ``own_curves`` are regret by the rounds of each user, where they were asked for.
    ``seconds`` is how long the rounds took; the exact engine's compilation before them does not count. Runs that took
    turns have equal shares of the time that all of them took.
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
    people: tuple[PersonRecord, ...] = field(default=(), repr=False)
    own_curves: tuple[CohortCurve, ...] = field(default=(), repr=False)

    @property
    def regret(self) -> float:
        """Expected regret over all rounds."""
        return self.curve[-1].regret

    @property
    def reward(self) -> int:
        """How many lists were clicked."""
        return self.curve[-1].reward

    @property
    def newcomer_regret(self) -> float:
        """The regret of users who came late, in their first 50 rounds."""
        return sum(record.early_regret for record in self.people if record.person.joined is not None)

    @property
    def clustering_error(self) -> float:
        return self.curve[-1].clustering_error

    @property
    def clusters(self) -> int:
        """How many groups the server ended with."""
        return len(set(self.partition))

    def to_columns(self) -> dict[str, list[Any]]:
        """The totals at checkpoints as columns, for a table of any kind."""
        columns = {column.name: [getattr(point, column.name) for point in self.curve] for column in fields(Checkpoint)}
        return {"policy": [self.policy] * len(self.curve), **columns}

    def to_polars(self) -> Any:
        """The totals at checkpoints as a polars.DataFrame."""
        return import_module("polars").DataFrame(self.to_columns())  # here, because simulations need no polars

    def write_csv(self, path: str | PathLike[str]) -> None:
        """Write the totals at checkpoints as CSV, a row each."""
        columns = self.to_columns()
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def communications(self, cause: Cause | None = None) -> int:
        """How many exchanges took place, all or of one cause."""
        return len(self.ledger) if cause is None else self.ledger.count_cause(cause)


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round: the list, the position that was clicked, and the upload that followed, if any.

    ``regret`` is expected regret, from the true weights; ``examined`` counts the positions that the user looked at.
    """

    shown: ShownList
    click: int | None
    upload: Upload | None
    regret: float
    examined: int


def compute_clustering_error(partition: ArrayLike, truth: ArrayLike) -> float:
    """The share of users whose estimated cluster is not exactly their true one.

    >>> compute_clustering_error([0, 0, 1, 1], [7, 7, 8, 9])
    0.5
    """
    _, estimated, estimated_sizes = np.unique(np.asarray(partition), return_inverse=True, return_counts=True)
    _, true, true_sizes = np.unique(np.asarray(truth), return_inverse=True, return_counts=True)
    _, common, common_sizes = np.unique(estimated * true_sizes.size + true, return_inverse=True, return_counts=True)
    shared = common_sizes[common]
    right = (estimated_sizes[estimated] == shared) & (true_sizes[true] == shared)
    return float(1.0 - np.mean(right))


def relabel_canonically(labels: ArrayLike) -> tuple[int, ...]:
    """Labels renamed in order of first appearance, so that equal partitions are equal tuples.

    >>> relabel_canonically([7, 3, 7])
    (0, 1, 0)
    """
    return tuple(relabel_by_appearance(np.asarray(labels))[1].tolist())


def space_checkpoints(rounds: int, checkpoints: int) -> list[int]:
    """The rounds at which totals are recorded: evenly spaced, the last one included.

    >>> space_checkpoints(10, 4)
    [2, 5, 7, 10]
    """
    require_integer("rounds", rounds)
    require_integer("checkpoints", checkpoints)
    require(checkpoints <= rounds, f"checkpoints must be <= rounds ({rounds}), got {checkpoints}")
    return [rounds * step // checkpoints for step in range(1, checkpoints + 1)]


class Recorder:
    """Collects a Trace while a simulation runs."""

    def __init__(
        self,
        *,
        rounds: int,
        checkpoints: int,
        truth: NDArray[np.int64],
        list_length: int = 0,
        has_propensities: bool = False,
        living: Clustered | None = None,
        own_rounds: int = 0,
    ) -> None:
        self.rounds, self.truth, self.living = rounds, truth, living
        self.people = None if living is None else People(living.history.persons)
        self.regret, self.reward, self.observations = 0.0, 0, 0
        self.curve: list[Checkpoint] = []
        self.ledger = ExchangeLedger()
        self.own_rounds = OwnRounds(users=truth.size, most=own_rounds) if own_rounds else None
        self.lists = np.full((rounds, list_length), -1, np.int32) if list_length else None
        self.propensities = np.ones((rounds, list_length)) if list_length and has_propensities else None
        self.stops = space_checkpoints(rounds, checkpoints)
        self.start_clock()

    def start_clock(self) -> None:
        self._started = time.perf_counter()

    def record_rounds(
        self, first: int, users: NDArray[np.int64], regret: Vector, clicked: NDArray[np.bool_],
        examined: NDArray[np.int64], lists: Lists, chances: NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        """Add the rounds from ``first`` on to the totals, in their order."""
        if self.people is not None:
            regret, clicked = self.people.record(users, regret), clicked & self.people.honest[users]
        if self.own_rounds is not None:
            self.own_rounds.record(users, regret)
        self.regret = sum_in_order(self.regret, regret)
        self.reward += int(clicked.sum())
        self.observations += int(examined.sum())
        if self.lists is not None:
            self.lists[first - 1 : first - 1 + len(lists)] = lists
        if self.propensities is not None and chances is not None:
            self.propensities[first - 1 : first - 1 + len(chances)] = chances

    def record_round(self, round_: int, user: int, played: Round) -> None:
        """Add one round to the totals: as ``record_rounds``, without arrays where it can."""
        shown, regret, has_click = played.shown, played.regret, played.click is not None
        if self.people is not None:
            regret = float(self.people.record(np.array([user]), np.array([regret]))[0])
            has_click = has_click and bool(self.people.honest[user])
        if self.own_rounds is not None:
            self.own_rounds.record(np.array([user]), np.array([regret]))
        self.regret += regret
        self.reward += has_click
        self.observations += played.examined
        if self.lists is not None:
            self.lists[round_ - 1, : shown.items.size] = shown.items
        if self.propensities is not None and shown.propensities is not None:
            self.propensities[round_ - 1, : shown.items.size] = shown.propensities

    def record_exchange(
        self, round_: int, uploads: Sequence[Upload], downloads: Sequence[Download], alone: Cause | None = None
    ) -> None:
        """Write the messages of one exchange into the ledger.

        ``alone`` is the cause under which a download counts by itself; None if it belongs to its upload.
        """
        down = sum(download.bytes for download in downloads) if alone is None else 0
        self.ledger.extend(LedgerEntry(round_, each.agent, each.cause, each.bytes, down) for each in uploads)
        if alone is not None:
            self.ledger.extend(LedgerEntry(round_, each.agent, alone, 0, each.bytes) for each in downloads)

    def record_checkpoint(self, round_: int, labels: NDArray[np.int64]) -> None:
        """Store the totals, if this round is a checkpoint."""
        if round_ == self.stops[len(self.curve)]:
            error = self._compare_with_truth(round_, labels[: self.truth.size])
            self.curve.append(Checkpoint(round_, self.regret, self.reward, len(self.ledger), error))

    def _compare_with_truth(self, round_: int, labels: NDArray[np.int64]) -> float:
        """The clustering error; in a living population, that of honest users who are there."""
        if self.living is None or self.people is None:
            return compute_clustering_error(labels, self.truth)
        moment = self.living.find_moment(round_)
        counted = moment.present & self.people.honest
        return compute_clustering_error(labels[counted], moment.clusters[counted])

    def build_trace(self, policy: str, engine: str, labels: NDArray[np.int64]) -> Trace:
        partition = relabel_canonically(labels[: self.truth.size])
        people = () if self.people is None else self.people.build_records()
        own_curves = () if self.own_rounds is None else self.own_rounds.list_curves()
        seconds = time.perf_counter() - self._started
        return Trace(policy, engine, self.rounds, self.observations, tuple(self.curve), self.ledger, partition, seconds,
                     self.lists, self.propensities, people, own_curves)  # fmt: skip


def summarise(trace: Trace, *, seed: int) -> dict[str, Any]:
    """The totals and the curve of a Trace, ready for JSON."""
    people = [{**asdict(record.person), "rounds": record.rounds, "regret": record.regret} for record in trace.people]
    return {
        "policy": trace.policy,
        "engine": trace.engine,
        "seed": seed,
        **{name: getattr(trace, name) for name in ("rounds", "regret", "reward", "observations")},
        "communications": {"total": trace.communications(), **_count_by_cause(trace)},
        "bytes": dict(zip(("up", "down"), trace.ledger.sum_bytes(), strict=True)),
        **{name: getattr(trace, name) for name in ("clusters", "clustering_error", "seconds")},
        "curve": [asdict(point) for point in trace.curve],
        **({"people": people, "newcomer_regret": trace.newcomer_regret} if people else {}),
        **({"own_curves": [asdict(curve) for curve in trace.own_curves]} if trace.own_curves else {}),
    }


def _count_by_cause(trace: Trace) -> dict[str, int]:
    """How many exchanges had which cause: always those of the paper, others where there are any."""
    counts = {cause: trace.communications(cause) for cause in Cause}
    paper = (Cause.DETERMINANT, Cause.AUXILIARY, Cause.FORCED)
    return {cause.value: count for cause, count in counts.items() if count or cause in paper}
