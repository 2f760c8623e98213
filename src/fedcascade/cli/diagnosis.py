"""What ``fedcascade theory --world`` adds: assumptions estimated, bounds beside a run, and the lemmas in many runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from fedcascade.cli import terminal
from fedcascade.cli.options import EnvironmentOptions
from fedcascade.environments.clustered import Clustered
from fedcascade.experiments.diagnosis.estimates import estimate_assumptions
from fedcascade.experiments.diagnosis.lemmas import LEMMAS, Coverage, measure_coverage
from fedcascade.experiments.diagnosis.measurement import (
    Point,
    compare_over_time,
    find_round_of_partition,
    play_world,
)
from fedcascade.experiments.diagnosis.silence import Silence, measure_silence
from fedcascade.federation.messages import Cause
from fedcascade.learning.theory.assumptions import Assumptions, compute_failure_probability
from fedcascade.learning.theory.guarantee import Settings

DELTA = 0.1  # of the lemmas that hold with probability 1 - delta
ASSUMPTIONS = {
    "gamma": "gamma: least distance between two thetas",
    "lambda_x": "lambda_x: least eigenvalue of E(x x^T)",
    "sigma": "sigma: of the lower tail of (theta . x)^2",
    "p_min": "p_min: how likely the rarest user is to arrive",
    "p_max": "p_max: how likely the most frequent one is",
}


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a world and its runs."""

    assumed: Assumptions
    dimension: int
    points: list[Point]
    partition_round: int | None
    coverage: dict[str, Coverage]
    silence: list[Silence]
    settings: Settings

    def describe(self) -> dict[str, Any]:
        """The measurements, ready for JSON."""
        last = self.points[-1]
        names = ("round", "regret", "exchanges_determinant", "exchanges_beside", "clustering_error")
        return {
            **{name: getattr(last, name) for name in names},
            "partition_round": self.partition_round,
            "curve": [{name: getattr(point, name) for name in names} for point in self.points],
            "coverage": {name: asdict(coverage) for name, coverage in self.coverage.items()},
            "silence": [asdict(silence) for silence in self.silence],
        }

    def save_figure(self, folder: Path | None) -> None:
        """Write theory.svg, theory.pdf and theory.png into a folder, if one is given."""
        from fedcascade.experiments.reports.figures import save_figure
        from fedcascade.experiments.reports.theory_figure import plot_bounds

        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_figure(plot_bounds(self.points, self.settings.protocol), folder, "theory")

    def make_tables(self) -> list[Table]:
        """Make the tables of assumptions, of a run beside its bounds, of the lemmas and of the silent."""
        rows = [(words, f"{getattr(self.assumed, name):.4g}") for name, words in ASSUMPTIONS.items()]
        assumed = terminal.make_table("Assumptions, estimated from this world", ("what", "value"), rows, ("value",))
        tables = [assumed, _make_measured_table(self), _make_coverage_table(self.coverage)]
        return [*tables, _make_silence_table(self.silence)] if self.silence else tables


def diagnose_world(
    options: EnvironmentOptions,
    known: Mapping[str, float],
    settings: Settings,
    *,
    rounds: int,
    list_length: int,
    policy: str | None,
    runs: int,
    run_rounds: int,
) -> Diagnosis:
    """Estimate the assumptions, but for those that are ``known``, play the world, and look for the lemmas."""

    def build_world(seed: int) -> Clustered:
        return cast(Clustered, replace(options, seed=seed).build())  # the next line refuses all others

    world = build_world(options.seed)
    assumed = Assumptions(**asdict(estimate_assumptions(world)) | dict(known))
    delta = compute_failure_probability(world.users, rounds)
    trace = play_world(world, settings, rounds=rounds, list_length=list_length, policy=policy)
    points = compare_over_time(world, assumed, settings, trace, list_length)
    seeds = range(options.seed, options.seed + runs)
    coverage = measure_coverage(build_world, seeds, rounds=run_rounds,
                                list_length=list_length, settings=settings, delta=DELTA)  # fmt: skip
    starts = [rounds // share for share in (1000, 100, 10, 2)] if trace.communications(Cause.AUXILIARY) else []
    silence = measure_silence(world, trace, starts=starts, delta=delta, p_scale=settings.p_scale)
    right = find_round_of_partition(trace)
    return Diagnosis(assumed, world.dimension, points, right, coverage, silence, settings)


def _make_measured_table(diagnosis: Diagnosis) -> Table:
    last, right = diagnosis.points[-1], diagnosis.partition_round
    rows = [
        (words, *(f"{value:,.0f}" for value in (found, getattr(last.paper, term), getattr(last.derived, term))))
        for words, found, term in (
            ("regret", last.regret, "regret"),
            ("regret, bound of learning within clusters alone", last.regret, "regret_learning"),
            ("exchanges for the determinant", last.exchanges_determinant, "exchanges_determinant"),
            ("exchanges by chance or by force", last.exchanges_beside, "exchanges_beside"),
        )
    ]  # fmt: skip
    words = f"{right:,}" if right is not None else "never"
    bounds = (f"{bound.regret_partition:,.0f}" for bound in (last.paper, last.derived))
    rows.append(("rounds until everybody is grouped rightly", words, *bounds))
    columns = ("what", "measured", "paper's bound", "derived bound")
    return terminal.make_table(f"A run of {last.round:,} rounds, beside its bounds", columns, rows, columns[1:])


def _make_coverage_table(coverage: Mapping[str, Coverage]) -> Table:
    rows = [
        (words, f"{coverage[name].held} of {coverage[name].runs}", f"{coverage[name].largest_ratio:.3f}")
        for name, words in LEMMAS.items()
    ]
    columns = ("lemma", "runs in which it held", "nearest, 1 is the bound")
    return terminal.make_table(f"Lemmas in runs with known clusters, delta = {DELTA}", columns, rows, columns[1:])


def _make_silence_table(silence: list[Silence]) -> Table:
    rows = [
        (f"{each.start:,}", f"{each.agents}", f"{each.claimed:.2g}", f"{each.expected:.3f}", f"{each.by_chance:.3f}",
         f"{each.at_all:.3f}")
        for each in silence
    ]  # fmt: skip
    columns = ("after round", "agents", "claimed", "expected by p_t", "no exchange by chance", "none at all")
    title = f"Lemma 1.1: shares of agents that are silent for {silence[0].arrivals} arrivals"
    return terminal.make_table(title, columns, rows, columns)
