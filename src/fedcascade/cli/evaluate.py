"""``fedcascade evaluate`` and ``fedcascade fit``: what other systems would have earned on a log, and learn from it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import Json, LogOptions, OracleFlags, declare_flags, option, select_options
from fedcascade.cli.progress import add_bar, show_progress_bars
from fedcascade.evaluation.evaluate import Estimate, EvaluationOptions
from fedcascade.federation.policies import DEFAULT_POLICY

if TYPE_CHECKING:
    from rich.table import Table


_DeclaredFlags = declare_flags(EvaluationOptions)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluationFlags(_DeclaredFlags):  # type: ignore[misc, valid-type]
    """How systems are evaluated on a log."""


def evaluate(
    file: Annotated[Path, Parameter(help="A log of lists (see docs/reference-logs.md).")],
    /,
    *,
    policy: Annotated[
        list[str], option("System to evaluate (see 'fedcascade policies'). Give it several times to compare.")
    ] = [DEFAULT_POLICY],  # noqa: B006 (cyclopts shows it, nobody changes it)
    report: Annotated[Path | None, option("Also write a page with figures into this folder.")] = None,
    json_: Json = False,
    oracle_flags: OracleFlags = OracleFlags(),  # noqa: B008 (frozen)
    evaluation_flags: EvaluationFlags = EvaluationFlags(),  # noqa: B008 (frozen)
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Let systems learn from the first part of a log, and estimate what they would have earned on the rest.

    Example: fedcascade evaluate log.parquet --policy population --policy fedind
    """
    from fedcascade.evaluation.evaluate import evaluate as evaluate_log

    log = log_options.open(file)
    systems, oracle = constant_options.select_policies(policy), oracle_flags.build(next(log.batches(1)).items.shape[1])
    options = select_options(EvaluationOptions, evaluation_flags)
    with show_progress_bars() as bars:
        found = evaluate_log(log, systems, oracle, options=options, progress=add_bar(bars, "evaluating", log.count()))
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


def _clean(row: Estimate) -> dict[str, object]:
    """An estimate for JSON, which has no NaN."""
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value for key, value in asdict(row).items()
    }


def make_estimates_table(rows: Sequence[Estimate]) -> "Table":
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
