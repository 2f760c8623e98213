"""One table of what our policy reaches: a quantity, where it was measured, its mean, and the 95% interval.

Regret is a share of that of another policy in the same runs, seed by seed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from fedcascade.experiments.environments import count_users
from fedcascade.experiments.intervals import Interval, estimate_mean, estimate_ratio
from fedcascade.experiments.plan import NamedEnvironment
from fedcascade.experiments.results import Results

OURS, ALONE, KNOWN = "population", "fedind", "known-clusters"
BETAS = (ALONE, f"{ALONE} beta=0.2", f"{ALONE} beta=2.0")  # the default is 0.7
RESTART, DETECTING = f"{OURS}, drift restart", f"{ALONE}, drift restart"
OWN_ROUNDS = (25, 50, 150, 500, 1_000)  # rounds of a user, on average, after which shares are listed
FIRST_OWN, FIRST = OWN_ROUNDS[0], 250  # first checkpoint of 'worst checkpoint': of a user's rounds, of all rounds
PER_ROUNDS = 10_000  # own rounds of a user in which false alarms are counted

STILL, NEWCOMERS = "nothing happens", "newcomers and leavers"
DRIFTS = ("abrupt, to new tastes", "abrupt, to existing clusters", "gradual", "recurring", "generated ratings, abrupt")
POISONED = {
    "30% inverters": 0.3,
    "30% promoters": 0.3,
    "20% mimics who invert": 0.2,
    "20% mimics who promote": 0.2,
    "20% mimics who collude": 0.2,
}


class Share(NamedTuple):
    """A line of the table."""

    quantity: str
    where: str
    share: Interval


class _Regret(NamedTuple):
    """Regret by policy, round and seed, in one environment."""

    curves: pl.DataFrame

    @property
    def rounds(self) -> list[int]:
        return sorted(self.curves["round"].unique())

    def list_at(self, system: str, round_: int) -> list[float]:
        """Return the regret of each run after a round, by seed; 0 before the first checkpoint."""
        own = self.curves.filter(pl.col("system") == system).sort("seed")
        values = own.filter(pl.col("round") == round_)["regret"].to_list()
        return values if round_ > 0 else [0.0] * own["seed"].n_unique()

    def compare(self, system: str, rivals: Sequence[str], round_: int, after: int = 0) -> Interval:
        """Return the regret from one round to another as a share of that of the best rival."""
        theirs = min((self._list_between(rival, after, round_) for rival in rivals), key=sum)
        return estimate_ratio(self._list_between(system, after, round_), theirs)

    def _list_between(self, system: str, after: int, round_: int) -> list[float]:
        ends, begins = self.list_at(system, round_), self.list_at(system, after)
        return [end - begin for end, begin in zip(ends, begins, strict=True)]

    def find_worst(self, system: str, rivals: Sequence[str], first: int) -> Interval | None:
        """Return the highest share at a checkpoint from a round on; None where there is no such checkpoint."""
        shares = [self.compare(system, rivals, round_) for round_ in self.rounds if round_ >= first]
        return max(shares, key=lambda share: share.mean, default=None)


def has_shares(results: Results) -> bool:
    """Return whether a results folder holds all runs of a built-in plan that has this table."""
    return len(results.plans) == 1 and results.plans[0].name in MEASURES and results.planned is None


def measure_shares(results: Results) -> list[Share]:
    """Return the lines of the table of a plan."""
    return list(MEASURES[results.plans[0].name](results))


def _select_regret(results: Results, environment: str) -> _Regret:
    return _Regret(results.curves.filter(pl.col("environment") == environment))


def _list_column(results: Results, environment: str, system: str, column: str) -> list[float]:
    """Return a column of the table of runs, by seed."""
    wanted = (pl.col("environment") == environment) & (pl.col("system") == system)
    runs = results.runs.filter(wanted).sort("seed")
    return [float(value or 0.0) for value in runs[column]] if column in runs.columns else [0.0] * len(runs)


def _measure_own_rounds(results: Results) -> Iterator[Share]:
    """Yield shares of learning alone after own rounds, and exchanges per user, in each environment."""
    for environment in results.plans[0].environments:
        yield from _measure_environment(results, environment)


def _measure_environment(results: Results, environment: NamedEnvironment) -> Iterator[Share]:
    name, users, regret = environment.name, count_users(environment.spec), _select_regret(results, environment.name)
    for rivals, words in (((ALONE,), ALONE), (BETAS, f"{ALONE}, best beta")):
        for own in OWN_ROUNDS:
            if own * users in regret.rounds:
                share = regret.compare(OURS, rivals, own * users)
                yield Share(f"regret after {own:,} own rounds, of {words}", name, share)
        worst = regret.find_worst(OURS, rivals, FIRST_OWN * users)
        if worst is not None:
            yield Share(f"worst checkpoint from own round {FIRST_OWN} on, of {words}", name, worst)
    exchanges = [count / users for count in _list_column(results, name, OURS, "exchanges")]
    yield Share("exchanges per user", name, estimate_mean(exchanges))


def _measure_living(results: Results) -> Iterator[Share]:
    """Yield, with and without drift detection, shares among users that drift, join, leave and poison."""
    for system in (RESTART, OURS):
        for name in (STILL, *DRIFTS):
            regret = _select_regret(results, name)
            last, half = regret.rounds[-1], results.plans[0].rounds // 2
            after, words = (half, " after the change") if "abrupt" in name else (0, "")
            for rival in (ALONE, DETECTING, KNOWN):
                share = regret.compare(system, (rival,), last, after)
                yield Share(f"{system}: regret{words}, of {rival}", name, share)
        yield from _measure_poisoning(results, system)
        newcomers = [_list_column(results, NEWCOMERS, each, "newcomer_regret") for each in (system, ALONE)]
        yield Share(f"{system}: regret of first 50 rounds, of {ALONE}", NEWCOMERS, estimate_ratio(*newcomers))
        yield from _measure_worst(results, system)
    alarms = _list_column(results, STILL, RESTART, "exchanges_change")
    rate = estimate_mean([count / (results.plans[0].rounds / PER_ROUNDS) for count in alarms])
    yield Share(f"{RESTART}: false alarms per user and {PER_ROUNDS:,} own rounds", STILL, rate)


def _measure_poisoning(results: Results, system: str) -> Iterator[Share]:
    """Yield the regret of an honest user as a share of that without poisoning."""
    still = _select_regret(results, STILL)
    usual = still.list_at(system, still.rounds[-1])
    for name, poisoning in POISONED.items():
        regret = _select_regret(results, name)
        honest = estimate_ratio(
            regret.list_at(system, regret.rounds[-1]), [(1.0 - poisoning) * value for value in usual]
        )
        yield Share(f"{system}: honest regret, of that without poisoning", name, honest)


def _measure_worst(results: Results, system: str) -> Iterator[Share]:
    """Yield the highest share of learning alone over all environments and checkpoints."""
    names = [environment.name for environment in results.plans[0].environments]
    shares = {name: _select_regret(results, name).find_worst(system, (ALONE,), FIRST) for name in names}
    found = [(share, name) for name, share in shares.items() if share is not None]
    if found:
        share, name = max(found, key=lambda pair: pair[0].mean)
        yield Share(f"{system}: worst checkpoint from round {FIRST} on, of {ALONE}", name, share)


MEASURES: Mapping[str, Callable[[Results], Iterator[Share]]] = {
    "living": _measure_living,
    "population": _measure_own_rounds,
    "rare-clicks": _measure_own_rounds,
}
