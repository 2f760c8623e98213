"""``fedcascade theory``: what Theorem 1 promises, in numbers."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from rich.table import Table

from fedcascade.checks import require
from fedcascade.cli import terminal
from fedcascade.cli.options import Json, Whole, option

THEORY = {  # the terms of the bounds, and what they are
    "delta": "delta = |U|^2 / T",
    "beta": "beta of Lemma 1",
    "lambda_tilde": "lambda~_x",
    "T_0": "T_0: rounds until users can be told apart",
    "T_1": "T_1: rounds more until the server has heard of it",
    "regret_learning": "regret of learning within clusters",
    "regret_partition": "regret until then: T_0 + T_1",
    "regret_failure": "regret where the bounds fail",
    "regret": "regret, in all",
    "exchanges_determinant": "exchanges for the determinant (equation 37)",
    "exchanges_auxiliary": "auxiliary exchanges (equation 38)",
    "exchanges": "exchanges, in all",
}


def theory(
    *,
    users: Annotated[Whole, option("|U|, how many users.")] = 40,
    clusters: Annotated[Whole, option("J, how many clusters of users.")] = 10,
    dimension: Annotated[Whole, option("d, how many features an item has.")] = 20,
    items: Annotated[Whole, option("I, the most items on offer in a round.")] = 200,
    list_length: Annotated[Whole, option("K, the longest list.")] = 4,
    rounds: Annotated[Whole, option("T.")] = 1_000_000,
    gamma: Annotated[
        float, option("How far the thetas of two clusters are apart; 1 in the synthetic environment.")
    ] = 1.0,
    lambda_x: Annotated[
        float | None,
        option("Smallest eigenvalue of E[x x^T]. [default: 1 / (2 (d - 1)), as in the synthetic environment]"),
    ] = None,
    sigma: Annotated[
        float | None,
        option(
            "(theta . x)^2 is sub-Gaussian with it. [default: lambda_x / sqrt(8 ln(4 I)), what earlier work assumes]"
        ),
    ] = None,
    lambda_: Annotated[float, option("Regulariser of the ridge estimate.")] = 4.0,
    alpha_c: Annotated[float, option("An agent speaks when its determinant has grown by this factor plus one.")] = 1.0,
    p_scale: Annotated[float, option("Scale of the random exchanges: p_t = scale ln(t) / t.")] = 3.0,
    noise: Annotated[float, option("R of Lemma 1.")] = 0.5,
    json_: Json = False,
) -> None:
    """Print the bounds of Theorem 1 on regret and exchanges, and what they are made of.

    Example: fedcascade theory --users 40 --clusters 10 --rounds 1000000 --alpha-c 0.1
    """
    from fedcascade.learning.confidence import ProblemSize
    from fedcascade.learning.theory import compute_guarantee

    require(lambda_x is not None or dimension >= 2, f"dimension must be >= 2, got {dimension}")
    regular = lambda_x if lambda_x is not None else 1 / (2 * (dimension - 1))
    if sigma is None:
        sigma = regular / math.sqrt(8 * math.log(4 * items))
    size = ProblemSize(users=users, dimension=dimension, list_length=list_length, rounds=rounds)
    bound = compute_guarantee(size, clusters=clusters, items=items, gamma=gamma, lambda_x=regular, sigma=sigma,
                              lambda_=lambda_, alpha_c=alpha_c, p_scale=p_scale, noise=noise)  # fmt: skip
    bounds = asdict(bound) | {"regret": bound.regret, "exchanges": bound.exchanges, "rounds": rounds}
    if json_:
        print(json.dumps({name: value if math.isfinite(value) else None for name, value in bounds.items()}))
    else:
        terminal.show(make_theory_table(bounds))


def make_theory_table(bounds: Mapping[str, float]) -> Table:
    """Make a table of Theorem 1, term by term."""
    rows = [(words, _format_number(bounds[name])) for name, words in THEORY.items()]
    table = terminal.make_table("Theorem 1, with the constants of the appendix", ("what", "value"), rows, ("value",))
    for name in ("T_1", "regret"):
        table.rows[list(THEORY).index(name)].end_section = True
    if bounds["regret"] >= bounds["rounds"]:
        table.caption = f"The regret bound is above T = {bounds['rounds']:,}: at these sizes it says nothing."
    return table


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.4g}"
