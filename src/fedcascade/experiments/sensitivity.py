"""How the paper's figures depend on the constants, which are ours: each one halved and doubled, at J = 10."""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from fedcascade.experiments.intervals import Interval, estimate_mean
from fedcascade.experiments.paper_claims import BELOW, EXCHANGES, OURS, TEN
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.results import Results

PLAN = "sensitivity"
SPEAKERS = tuple(EXCHANGES[TEN])
RIVALS = tuple(rival for plan, quantity, rival, _ in BELOW if (plan, quantity) == (TEN, "regret"))
AS_CHOSEN = ""


class Row(NamedTuple):
    """The figures with one change: exchanges of each system, and how far FedC3UCB-H is below each of the others."""

    change: str
    exchanges: Sequence[Interval]
    below: Sequence[Interval]


def is_sensitivity(results: Results) -> bool:
    """Return whether a results folder holds the built-in plan."""
    return [plan.name for plan in results.plans] == [PLAN]


def measure_changes(results: Results) -> list[Row]:
    """Return a row for the constants as chosen, one for each change of a constant, and one for other features."""
    plan = results.plans[0]
    chosen, *others = [environment.name for environment in plan.environments]
    return [_measure(results, chosen, change) for change in list_changes(plan)] + [
        _measure(results, other, AS_CHOSEN, other) for other in others
    ]


def list_changes(plan: Plan) -> list[str]:
    """Return the changes of constants, as labels of systems name them: none, then 'lambda=2.0' and so on."""
    return list(dict.fromkeys(system.label.removeprefix(system.policy).strip() for system in plan.systems))


def _measure(results: Results, environment: str, change: str, words: str = "") -> Row:
    totals = {system: _select_totals(results, environment, system, change) for system in (*SPEAKERS, *RIVALS)}
    exchanges = [estimate_mean(totals[system]["exchanges"].to_list()) for system in SPEAKERS]
    ours = totals[OURS]["regret"]
    below = [estimate_mean((1 - ours / totals[rival]["regret"]).to_list()) for rival in RIVALS]
    return Row(words or describe_change(results.plans[0], change), exchanges, below)


def _select_totals(results: Results, environment: str, policy: str, change: str) -> pl.DataFrame:
    """Return the runs of a system with a change, by seed; as chosen where it does not have the constant."""
    own = results.runs.filter((pl.col("environment") == environment) & (pl.col("policy") == policy)).sort("seed")
    changed = own.filter(pl.col("system") == f"{policy} {change}")
    return changed if len(changed) else own.filter(pl.col("system") == policy)


def describe_change(plan: Plan, change: str) -> str:
    """Return a change in words, such as 'lambda 2 (x 0.5)'."""
    if change == AS_CHOSEN:
        return "as chosen"
    name, _, value = change.partition("=")
    chosen = next(system.constants[name] for system in plan.systems if name in system.constants)
    return f"{name} {float(value):g} (x {float(value) / float(chosen):g})"
