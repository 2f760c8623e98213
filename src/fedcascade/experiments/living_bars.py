"""Living populations: what ``fedc3ucb-l`` is to reach among people who change, arrive, leave and lie."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import polars as pl

from fedcascade.experiments.beyond_bars import Verdict, judge_measurement
from fedcascade.experiments.intervals import Interval, estimate_mean, estimate_ratio
from fedcascade.experiments.results import Results

PLAN = "living"
OURS, BEFORE, ALONE, DETECTING, KNOWN = "fedc3ucb-l", "fedc3ucb-e", "fedind", "fedind-c", "known-clusters"
STILL, NEWCOMERS = "nothing happens", "newcomers and leavers"
ABRUPT, MOVED = "abrupt, to new tastes", "abrupt, to existing clusters"
LIARS = {
    "20% mimics who invert": 0.2,
    "20% mimics who promote": 0.2,
    "20% mimics who collude": 0.2,
    "30% inverters": 0.3,
    "30% promoters": 0.3,
}
FIRST = 250  # the first checkpoint that is judged
PER_ROUNDS = 10_000  # of one user, in which false alarms are counted


class Finding(NamedTuple):
    """A wish, what ``fedc3ucb-e`` and ``fedc3ucb-l`` reach of it, and the verdict on the latter."""

    what: str
    most: float
    before: Interval | None
    ours: Interval
    verdict: Verdict


class _Tables(NamedTuple):
    """The results by environment and policy."""

    curves: pl.DataFrame
    runs: pl.DataFrame
    rounds: int

    def list_regret(self, environment: str, policy: str, after: int = 0) -> list[float]:
        """The regret of each run from a round on, by seed."""
        last, first = (self._list_at(environment, policy, round_) for round_ in (self.rounds, after))
        return [end - begin for end, begin in zip(last, first or [0.0] * len(last), strict=True)]

    def _list_at(self, environment: str, policy: str, round_: int) -> list[float]:
        wanted = (pl.col("environment") == environment) & (pl.col("system") == policy) & (pl.col("round") == round_)
        return list(self.curves.filter(wanted).sort("seed")["regret"])

    def list_column(self, environment: str, policy: str, column: str) -> list[float]:
        """A column of the table of runs, by seed."""
        wanted = (pl.col("environment") == environment) & (pl.col("system") == policy)
        return [float(value or 0.0) for value in self.runs.filter(wanted).sort("seed")[column]]

    def find_worst_checkpoint(self, policy: str) -> Interval:
        """The highest ratio of regret to that of agents alone, over all environments and checkpoints from 250 on."""
        ratios = []
        for environment in self.curves["environment"].unique(maintain_order=True):
            both = self.curves.filter((pl.col("environment") == environment) & (pl.col("round") >= FIRST))
            ours, alone = (both.filter(pl.col("system") == name).sort("round", "seed") for name in (policy, ALONE))
            seeds = ours["seed"].n_unique()
            pairs = list(zip(ours["regret"], alone["regret"], strict=True))
            ratios += [estimate_ratio(*zip(*pairs[at : at + seeds], strict=True)) for at in range(0, len(pairs), seeds)]
        return max(ratios, key=lambda ratio: ratio.mean)


def is_living(results: Results) -> bool:
    """Return whether a results folder holds all runs of the built-in plan."""
    return [plan.name for plan in results.plans] == [PLAN] and results.planned is None


def judge_bars(results: Results) -> list[Finding]:
    """Judge every wish, in the order of the table."""
    rounds = results.plans[0].rounds
    tables = _Tables(results.curves, results.runs, rounds)
    half = rounds // 2

    def compare(environment: str, rival: str, after: int = 0) -> Callable[[str], Interval]:
        against = tables.list_regret(environment, rival, after)
        return lambda policy: estimate_ratio(tables.list_regret(environment, policy, after), against)

    def compare_with_honest(environment: str) -> Callable[[str], Interval]:
        share = 1.0 - LIARS[environment]
        return lambda policy: estimate_ratio(
            tables.list_regret(environment, policy),
            [share * regret for regret in tables.list_regret(STILL, policy)],
        )

    wishes: list[tuple[str, float, Callable[[str], Interval]]] = [
        (f"{ABRUPT}: regret after it, of {KNOWN}", 1.5, compare(ABRUPT, KNOWN, half)),
        (f"{MOVED}: regret after it, of {KNOWN}", 4.0, compare(MOVED, KNOWN, half)),
        (f"gradual: regret, of {DETECTING}", 0.7, compare("gradual", DETECTING)),
        (f"recurring: regret, of {DETECTING}", 0.6, compare("recurring", DETECTING)),
        (f"{STILL}: regret, of {BEFORE}", 1.03, compare(STILL, BEFORE)),
        *(
            (f"{name}: honest regret, of that without liars", 1.05 if share < 0.25 else 1.1, compare_with_honest(name))
            for name, share in LIARS.items()
        ),
        (f"newcomers: regret of their first 50 rounds, of {ALONE}", 0.4, lambda policy: estimate_ratio(
            tables.list_column(NEWCOMERS, policy, "newcomer_regret"),
            tables.list_column(NEWCOMERS, ALONE, "newcomer_regret"),
        )),
        (f"worst checkpoint from round {FIRST} on, in all worlds, of {ALONE}", 1.02, tables.find_worst_checkpoint),
    ]  # fmt: skip
    findings = [_judge(what, most, measure) for what, most, measure in wishes]
    alarms = [count / (rounds / PER_ROUNDS) for count in tables.list_column(STILL, OURS, "exchanges_change")]
    false_alarms = estimate_mean(alarms)
    words = f"{STILL}: false alarms, per user and {PER_ROUNDS:,} rounds of its own"
    return [*findings, Finding(words, 0.01, None, false_alarms, judge_measurement(false_alarms, 0.01))]


def _judge(what: str, most: float, measure: Callable[[str], Interval]) -> Finding:
    ours = measure(OURS)
    return Finding(what, most, measure(BEFORE), ours, judge_measurement(ours, most))


def format_findings(findings: Sequence[Finding]) -> list[tuple[str, str, str, str, str]]:
    """Format findings as the lines of a table."""
    return [
        (finding.what, _format(finding.before), _format(finding.ours), f"≤ {finding.most:g}", finding.verdict)
        for finding in findings
    ]


def _format(measured: Interval | None) -> str:
    if measured is None:
        return "-"
    return f"{measured.mean:.2f}" + (f" ± {measured.half_width:.2f}" if measured.runs > 1 else "")
