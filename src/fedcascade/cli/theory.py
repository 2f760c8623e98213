"""``fedcascade theory``: the bounds of Theorem 1 as numbers, by the paper and by our derivation."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.table import Table

from fedcascade.checks import require, require_integer
from fedcascade.cli import terminal
from fedcascade.cli.options import PLAIN, EnvironmentOptions, Json, Whole, option
from fedcascade.environments.clustered import compute_arrival_steps, compute_arrival_weights
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.theory import Assumptions, Guarantee, Settings, Source, bound_regret_below

SOURCES: tuple[Source, ...] = ("paper", "derived")
THEORY = {  # the terms of the bounds
    "delta": "delta = |U|^2 / T",
    "beta": "beta of Lemma 1",
    "lambda_tilde": "lambda~_x",
    "T_0": "T_0: rounds until clusters are separated",
    "T_1": "T_1: further rounds until all agents have uploaded",
    "regret_learning": "regret of learning within clusters",
    "regret_partition": "regret before: T_0 + T_1",
    "regret_failure": "regret if the confidence bounds fail",
    "regret": "total regret",
    "exchanges_determinant": "exchanges by the determinant (equation 37)",
    "exchanges_other": "other exchanges (equation 38, or forced)",
    "exchanges": "total exchanges",
}
DIFFERENCES = (
    "T_1 differs because p_t falls in every round, not only in the rounds of one user; with --protocol force-comm, "
    "because no user arrives in all T_0 rounds. Equation 37 has 1/alpha_c for all clusters together; the proof gives "
    "1/alpha_c for each cluster, and runs exceed the paper's bound. Regret counts doublings by log2. Derivations: "
    "docs/reference-paper-to-code.md, Errata."
)


@Parameter(name="*", group=PLAIN)
@dataclass(frozen=True, kw_only=True)
class AssumptionFlags:
    """The assumptions of Theorem 1 on an environment; None takes the value of the synthetic environment.

    Attributes:
        gamma: Smallest distance between the thetas of two clusters. [default: 1, as in the synthetic environment]
        lambda_x: Smallest eigenvalue of E[x x^T]. [default: 1 / (2 (d - 1)), as in the synthetic environment]
        sigma: Sub-Gaussian parameter of (theta . x)^2. [default: lambda_x / sqrt(8 ln(4 I)), as in earlier work]
    """

    gamma: float | None = None
    lambda_x: float | None = None
    sigma: float | None = None


def theory(
    *,
    rounds: Annotated[Whole, option("T.")] = 1_000_000,
    list_length: Annotated[Whole, option("K, the longest list.")] = 4,
    assumption_flags: AssumptionFlags = AssumptionFlags(),  # noqa: B008 (frozen)
    settings: Annotated[Settings, Parameter(name="*", group=PLAIN)] = Settings(),  # noqa: B008 (frozen)
    json_: Json = False,
    environment_options: EnvironmentOptions = EnvironmentOptions(),  # noqa: B008 (frozen)
) -> None:
    """Print the bounds of Theorem 1 on regret and exchanges, term by term."""
    require_integer("rounds", rounds)
    known = {name: value for name, value in vars(assumption_flags).items() if value is not None}
    assumed = _assume_sizes(environment_options, known)
    dimension = environment_options.dimension
    problem = ProblemSize(users=assumed.users, dimension=dimension, list_length=list_length, rounds=rounds)
    bounds: dict[str, dict[str, float]] = {}
    for source in SOURCES:
        bound = Guarantee(problem, assumed, settings, source)
        bounds[source] = {name: getattr(bound, name) for name in THEORY}
    # Near-optimal regret takes |U| exchanges (He et al. 2022), up to a constant.
    least = bound_regret_below(problem, clusters=assumed.clusters)
    bounds["lower"] = {"regret": least, "exchanges": float(assumed.users)}
    if json_:
        terminal.print_json({"rounds": rounds, "assumptions": asdict(assumed), **bounds})
    else:
        terminal.show(make_theory_table(bounds, rounds))


def _assume_sizes(options: EnvironmentOptions, known: Mapping[str, float]) -> Assumptions:
    """Return the assumptions of the theorem for an environment of these sizes."""
    sizes = ("users", "clusters", "dimension", "items", "arrivals")
    others = options.list_given(name for name in vars(options) if name not in sizes)
    require(not others, f"theory takes only the sizes of an environment, not {', '.join(others)}")
    clusters, items, users, d = options.clusters, options.items, options.users, options.dimension
    most = items if isinstance(items, int) else items[1]
    shares = np.diff(compute_arrival_steps(compute_arrival_weights(users, options.arrivals)), prepend=0.0, append=1.0)
    assumed = {"gamma": 1.0, "lambda_x": 1 / (2 * (d - 1))} | dict(known)
    assumed = {"sigma": assumed["lambda_x"] / math.sqrt(8 * math.log(4 * most))} | assumed
    count = clusters if isinstance(clusters, int) else len(clusters)
    chances = {"p_min": float(shares.min()), "p_max": float(shares.max())}
    return Assumptions(users=users, clusters=count, items=most, **assumed, **chances)


def make_theory_table(bounds: Mapping[str, Mapping[str, float]], rounds: int) -> Table:
    """Make a table of Theorem 1, term by term, with a note on our corrections."""
    lower = bounds["lower"]
    rows = [
        (
            words,
            *(_format_number(bounds[source][name]) for source in SOURCES),
            _format_number(lower[name]) if name in lower else "",
        )
        for name, words in THEORY.items()
    ]
    columns = ("term", "paper", "derived", "order of the lower bound")
    table = terminal.make_table("Theorem 1, with the constants of the appendix", columns, rows, columns[1:])
    for name in ("T_1", "regret"):
        table.rows[list(THEORY).index(name)].end_section = True
    table.caption = DIFFERENCES
    if bounds["paper"]["regret"] >= rounds:
        table.caption += f"\nThe regret bound is above T = {rounds:,}: it is vacuous at these sizes."
    return table


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.4g}"
