"""``fedcascade evaluate`` and ``fedcascade fit``: what other systems would have earned on a log, and learn from it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import Json, LogOptions, Whole, option, parse_value, split_assignments
from fedcascade.cli.progress import add_bar, show_progress_bars
from fedcascade.federation.policies import DEFAULT_POLICY
from fedcascade.learning.named_oracles import build_oracle

if TYPE_CHECKING:
    from rich.table import Table

    from fedcascade.evaluation.evaluate import Estimate


def evaluate(
    file: Annotated[Path, Parameter(help="A log of lists (see docs/reference-logs.md).")],
    /,
    *,
    policy: Annotated[
        list[str], option("System to evaluate (see 'fedcascade policies'). Give it several times to compare.")
    ] = [DEFAULT_POLICY],  # noqa: B006 (cyclopts shows it, nobody changes it)
    list_length: Annotated[Whole | None, option("K, the longest list a system shows. [that of the log]")] = None,
    oracle: Annotated[
        str, option("How a system chooses lists from scores: top-k, plackett-luce (temperature) or epsilon (epsilon).")
    ] = "top-k",
    set_oracle: Annotated[
        list[str], option("Set an argument of the oracle: temperature=0.2.", show_default=False)
    ] = [],  # noqa: B006
    train: Annotated[float, option("The share of the log, from its beginning, that systems learn from.")] = 0.5,
    estimator: Annotated[
        list[str], option("replay, dm, ips, snips, rips or cascade-dr. [all that apply]", show_default=False)
    ] = [],  # noqa: B006
    reward: Annotated[Literal["any", "clicks"], option("any: whether a list was clicked; clicks: how often.")] = "any",
    resamples: Annotated[Whole, option("How often users are resampled for the intervals.")] = 1000,
    seed: Annotated[Whole, option("Names the random numbers of resampling and rejection.")] = 0,
    threads: Annotated[Whole, option("How many cores rate lists.")] = 2,
    report: Annotated[Path | None, option("Also write a page with figures into this folder.")] = None,
    json_: Json = False,
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Let systems learn from the first part of a log, and estimate what they would have earned on the rest.

    Example: fedcascade evaluate log.parquet --policy population --policy fedind
    """
    from fedcascade.evaluation.evaluate import EvaluationOptions
    from fedcascade.evaluation.evaluate import evaluate as evaluate_log

    options = EvaluationOptions(
        estimators=estimator or None, reward=reward, resamples=resamples, seed=seed, threads=threads
    )
    log = log_options.open(file)
    arguments = {name: parse_value(text) for name, text in split_assignments("set-oracle", set_oracle).items()}
    length = list_length or next(log.batches(1)).items.shape[1]
    with show_progress_bars() as bars:
        progress = add_bar(bars, "evaluating", log.count())
        found = evaluate_log(
            log,
            constant_options.select_policies(policy),
            build_oracle(oracle, length, arguments),
            train=train,
            options=options,
            progress=progress,
        )
    if report is not None:
        from fedcascade.experiments.reports.evaluation_report import write_report

        write_report(report, str(file), found)
    if json_:
        print(json.dumps({"estimates": [_clean(row) for row in found.estimates], "refused": found.refusals}))
        return
    terminal.show(make_estimates_table(found.estimates))
    for name, reason in found.refusals.items():
        print(f"{name}: {reason}")


def fit(
    file: Annotated[Path, Parameter(help="A log of lists (see docs/reference-logs.md).")],
    /,
    *,
    out: Annotated[Path, option("The file to write, .npz; an interrupted fit of the same log is continued.")],
    policy: Annotated[str, option("The system that will start from it.")] = DEFAULT_POLICY,
    json_: Json = False,
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
) -> None:
    """Learn from logged lists, whoever chose them: sum up what each user looked at and clicked.

    Example: fedcascade fit log.parquet --policy population --out warm.npz
    """
    from fedcascade.evaluation.fit import fit_log
    from fedcascade.federation.policies import get_policy
    from fedcascade.federation.warm_start import require_teachable

    system = get_policy(policy)
    require_teachable(system)
    log = log_options.open(file)
    with show_progress_bars() as bars:
        progress = add_bar(bars, "learning", log.count())
        state = fit_log(log, system.name, out, progress=progress)
    total = state.sums.total()
    facts = {"lists": state.lists, "users": state.sums.users, "dimension": state.sums.dimension, "looked": total.count,
             "clicks": total.clicks, "out": str(out)}  # fmt: skip
    if json_:
        print(json.dumps(facts))
        return
    print(f"{state.lists:,} lists of {state.sums.users:,} users: {total.clicks:,} clicks on {total.count:,} items")
    print(f"written to {out}")


def _clean(row: "Estimate") -> dict[str, object]:
    """An estimate for JSON, which has no NaN."""
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value for key, value in asdict(row).items()
    }


def make_estimates_table(rows: Sequence["Estimate"]) -> "Table":
    """Make a table with one line per system and estimator."""
    columns = ("system", "estimator", "per list", "95% interval", "effective lists", "of")
    lines = [
        (
            row.policy,
            row.estimator,
            "none accepted" if math.isnan(row.value) else f"{row.value:.4f}",
            "" if math.isnan(row.low) else f"{row.low:.4f} to {row.high:.4f}",
            "" if math.isnan(row.effective) else f"{row.effective:,.0f}",
            f"{row.lists:,}",
        )
        for row in rows
    ]
    return terminal.make_table("what a list earns", columns, lines, right=columns[2:])
