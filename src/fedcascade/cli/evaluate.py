"""``fedcascade evaluate`` and ``fedcascade fit``: estimate rewards from a log, and learn from it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import Json, LogOptions, OracleFlags, option, take_options
from fedcascade.cli.progress import add_bar, show_progress_bars
from fedcascade.evaluation import evaluate as evaluation
from fedcascade.evaluation.fit import fit_log
from fedcascade.federation.policies import DEFAULT_POLICY, get_policy
from fedcascade.federation.warm_start import require_teachable

if TYPE_CHECKING:
    from fedcascade.evaluation.evaluate import EvaluationOptions
else:
    EvaluationOptions = take_options(evaluation.EvaluationOptions)

EVALUATED = [DEFAULT_POLICY]  # unless --policy is given


def evaluate(
    file: Annotated[Path, Parameter(help="A log of lists (see docs/reference-logs.md).")],
    /,
    *,
    policy: Annotated[list[str], option("Policy to evaluate (see 'fedcascade policies'). Repeatable.")] = EVALUATED,
    report: Annotated[Path | None, option("Also write a page with figures into this folder.")] = None,
    json_: Json = False,
    oracle_flags: OracleFlags = OracleFlags(),  # noqa: B008 (frozen)
    options: EvaluationOptions = EvaluationOptions(),  # noqa: B008 (frozen)
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Train policies on the first part of a log, and estimate their reward on the rest."""
    log = log_options.open(file)
    policies = constant_options.select_policies(policy)
    oracle = oracle_flags.build(next(log.batches(1)).items.shape[1])
    with show_progress_bars() as bars:
        progress = add_bar(bars, "evaluating", log.count())
        found = evaluation.evaluate(log, policies, oracle, options=options, progress=progress)
    log_options.print_notes(log)
    if report is not None:
        from fedcascade.experiments.reports.evaluation_report import write_report

        write_report(report, str(file), found)
    if json_:
        tables = {name: [asdict(row) for row in getattr(found, name)] for name in ("estimates", "differences")}
        shown_items = {name: exposure.describe() for name, exposure in found.exposures.items()}
        terminal.print_json(tables | {"refused": found.refusals, "advice": found.advice, "exposures": shown_items})
        return
    header = evaluation.HEADER
    lines = [estimate.format() for estimate in found.estimates]
    shown = [terminal.make_table("reward per list", header, lines, right=header[2:])]
    if found.believed is not None:
        chosen = [row.format() for row in found.differences if row.estimator == found.believed]
        columns = (f"difference by {found.believed}", "per list", "95% interval")
        shown.append(terminal.make_table("differences, paired by user", columns, chosen, right=columns[1:]))
    if found.exposures:
        counts = [(name, *exposure.format()) for name, exposure in found.exposures.items()]
        shown.append(terminal.make_exposure_table(counts))
    terminal.show(*shown)
    print(found.advice)
    for name, reason in found.refusals.items():
        print(f"{name}: {reason}")


def fit(
    file: Annotated[Path, Parameter(help="A log of lists (see docs/reference-logs.md).")],
    /,
    *,
    out: Annotated[Path, option("File to write, .npz; an interrupted fit of the same log is resumed.")],
    policy: Annotated[str, option("Policy that will start from the file.")] = DEFAULT_POLICY,
    json_: Json = False,
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
) -> None:
    """Learn from logged lists of any policy: sum up what each user examined and clicked."""
    chosen = get_policy(policy)
    require_teachable(chosen)
    log = log_options.open(file)
    with show_progress_bars() as bars:
        progress = add_bar(bars, "learning", log.count())
        state = fit_log(log, chosen.name, out, progress=progress)
    log_options.print_notes(log)
    total = state.sums.total()
    if json_:
        sizes = {"lists": state.lists, "users": state.sums.users, "dimension": state.sums.dimension}
        print(json.dumps(sizes | {"examined": total.count, "clicks": total.clicks, "out": str(out)}))
        return
    print(f"{state.lists:,} lists of {state.sums.users:,} users: {total.clicks:,} clicks on {total.count:,} items")
    print(f"written to {out}")
