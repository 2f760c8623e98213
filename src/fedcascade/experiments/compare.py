"""``fedcascade.compare``: policies in the same environments, as a table and a figure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from fedcascade.checks import require, require_known
from fedcascade.environments.environment import Environment
from fedcascade.experiments.reports.figures import plot_traces, render_svg
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.learning.oracles import Oracle
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Trace, choose_baseline, compare_traces


@dataclass(frozen=True, eq=False)
class PolicyRuns:
    """Runs of policies in the same environments: ``traces`` by label, each in the order of ``seeds``."""

    policies: Mapping[str, Policy]
    seeds: tuple[int, ...]
    traces: Mapping[str, Sequence[Trace]]
    against: str

    @cached_property
    def table(self) -> pl.DataFrame:
        """Means over runs.

        ``difference`` is regret minus that of ``against``, run by run. A column that ends in ``_95`` is half of a 95%
        interval, which takes three seeds.
        """
        rows = []
        for each in compare_traces(self.traces, self.against):
            row: dict[str, Any] = {"policy": each.label, "beta": str(self.policies[each.label].constants().get("beta"))}
            for name in ("regret", "difference", "clicks", "exchanges", "clustering_error", "coverage", "gini"):
                if (mean := getattr(each, name)) is None:
                    continue
                value, half, _ = mean
                row |= {name: value, f"{name}_95": half if isfinite(half) else None}
            rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def figure(self) -> Figure:
        """Regret over rounds, with 95% intervals."""
        return self.plot()

    def plot(self, quantity: str = "regret") -> Figure:
        """Plot regret, exchanges or clustering error over rounds, with 95% intervals."""
        return plot_traces(self.traces, quantity, title="1 run" if len(self.seeds) == 1 else f"{len(self.seeds)} runs")

    def _repr_html_(self) -> str:
        return self.table._repr_html_() + render_svg(self.figure, "comparison")


def compare(
    environment: Environment | Callable[[int], Environment], policies: Sequence[str | Policy] | Mapping[str, Policy],
    seeds: int | Iterable[int] = 5, *, rounds: int = 20_000, oracle: Oracle | None = None, against: str | None = None,
) -> PolicyRuns:  # fmt: skip
    """Run policies in the same environments, and return their runs with a ``table`` and a ``figure``.

    Args:
        environment: an environment, of which there is one for each seed; or a function that builds one from a seed.
        policies: names of policies, or ``Policy`` objects; in a mapping, by label.
        seeds: their number, from the environment's own seed on, or the seeds themselves.
        rounds: T.
        oracle: chooses the list from the scores; ``TopK(length=4)`` if None.
        against: the policy that others are compared with; "fedind", or else the first, if None.

    >>> import fedcascade
    >>> environment = fedcascade.Synthetic(users=6, clusters=2, dimension=4, items=10)
    >>> runs = fedcascade.compare(environment, ["fedind", "known-clusters"], seeds=3, rounds=500)
    >>> runs.table.columns[:4], runs.seeds, type(runs.figure).__name__
    (['policy', 'beta', 'regret', 'regret_95'], (0, 1, 2), 'Figure')
    """
    if isinstance(policies, Mapping):
        chosen = dict(policies)
    else:
        found = [get_policy(each) if isinstance(each, str) else each for each in policies]
        chosen = {policy.name: policy for policy in found}
    require(0 < len(chosen) == len(policies), "policies must have distinct names: use a mapping of labels to policies")
    baseline = choose_baseline(list(chosen)) if against is None else against
    require_known("policy of this comparison", baseline, chosen)
    first = int(getattr(environment, "seed", 0))
    numbers = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(seeds)
    require(len(numbers) > 0, "seeds must be a number >= 1, or at least one seed")
    build = environment if callable(environment) else getattr(environment, "with_seed", None)
    if build is None:
        name = type(environment).__name__
        raise ValueError(f"{name} has no with_seed: give a function that builds it from a seed")
    traces: dict[str, list[Trace]] = {label: [] for label in chosen}
    for seed in numbers:
        built = build(seed)
        for label, policy in chosen.items():
            run = simulate(built, policy, rounds=rounds, oracle=oracle, checkpoints=min(100, rounds))
            traces[label].append(run)
    return PolicyRuns(chosen, numbers, traces, baseline)
