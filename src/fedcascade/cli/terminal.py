"""The tables of the command line: readable in 80 columns, with no name cut."""

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fedcascade.constants import ConstantDescription
    from fedcascade.experiments.paper_claims import Claim
    from fedcascade.experiments.reports.summary import PolicySummary
    from fedcascade.federation.policies import Policy

WIDTH = 80  # columns without a terminal


def make_table(
    title: str, columns: Iterable[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), lines: bool = False
) -> Table:
    """Make a table; the columns in ``right`` hold numbers, which never wrap, and ``lines`` separates the rows."""
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        show_lines=lines,
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    cells = list(rows)
    for place, name in enumerate(columns):
        lengths = [len(line) for row in cells for cell in row[place : place + 1] for line in cell.split("\n")]
        longest = max(lengths, default=0)
        header, is_number = fill(name, max(longest, 10), break_long_words=False), name in right
        table.add_column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def show(*tables: Table | str) -> None:
    """Print tables and paragraphs to stdout, as wide as the terminal, $COLUMNS or else 80 columns."""
    console = Console(highlight=False, markup=False)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()):
        console = Console(width=WIDTH, highlight=False, markup=False)
    for place, part in enumerate(tables):
        console.print(*([""] if place else []), part, sep="\n")


def print_json(value: Any) -> None:
    """Print a value as a line of JSON, with null for infinity and NaN."""
    print(json.dumps(_replace_infinities(value)))


def _replace_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table with one line per run: regret, clicks, exchanges, clustering."""
    numbers = ("regret", "clicks", "exchanges", "clusters", "clustering error", "rounds/s")
    rows = [
        (
            run["policy"],
            f"{run['regret']:,.{1 if run['regret'] < 10_000 else 0}f}",
            f"{run['reward']:,}",
            f"{run['communications']['total']:,}",
            f"{run['clusters']:,}",
            f"{run['clustering_error']:.0%}",
            f"{run['rounds'] / run['seconds']:,.0f}",
        )
        for run in summaries
    ]
    return make_table(f"{summaries[0]['rounds']:,} rounds", ("policy", *numbers), rows, numbers)


def make_causes_tables(summaries: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Make a table of exchanges by cause, if there are several causes."""
    counts = {run["policy"]: run["communications"] for run in summaries if run["communications"]["total"]}
    causes = list(
        dict.fromkeys(cause for each in counts.values() for cause in each if each[cause] and cause != "total")
    )
    if len(causes) > 1:
        rows = [(name, *(f"{each.get(cause, 0):,}" for cause in causes)) for name, each in counts.items()]
        yield make_table("exchanges by cause", ("policy", *causes), rows, causes)


def make_own_tables(summaries: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Make a table of regret per user over its own rounds, for each quarter of users, if it was recorded."""
    curves = {run["policy"]: run["own_curves"] for run in summaries if "own_curves" in run}
    if not curves:
        return
    longest = max(len(curve["regret"]) for cohorts in curves.values() for curve in cohorts)
    steps = [step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if step < longest]
    steps = [*steps[-5:], longest]
    rows = []
    for name, cohorts in curves.items():
        for place, curve in enumerate(cohorts):
            cells = (f"{curve['regret'][step - 1]:.3f}" if step <= len(curve["regret"]) else "" for step in steps)
            arrived = f"{100 * place // len(cohorts)}-{100 * (place + 1) // len(cohorts)} %"
            rows.append((name, arrived, f"{curve['users']:,}", *cells))
    numbers = ("users", *(f"{step:,}" for step in steps))
    title = "regret per user after its own first rounds, by order of arrival"
    yield make_table(title, ("policy", "arrived", *numbers), rows, numbers)


def explain_results(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Explain the table of results in a few sentences."""
    from fedcascade.federation.policies import DEFAULT_POLICY

    regret = {run["policy"]: run["regret"] for run in summaries}
    ours, alone = regret.get(DEFAULT_POLICY), regret.get("fedind")
    sentences = ["Regret is the expected number of clicks lost compared with the best lists; lower is better."]
    if ours is not None and alone:
        change = f"{abs(1 - ours / alone):.0%} {'less' if ours <= alone else 'more'}"
        sentences += [f"Sharing among similar users ({DEFAULT_POLICY}) gives {change} regret than no sharing (fedind)."]
    if "fedc3ucb-h" in regret:
        sentences += ["fedc3ucb-h is the paper's policy, by default with the paper's constants."]
    if "known-clusters" in regret:
        sentences += ["known-clusters knows the true clusters, which are unknown in practice."]
    return " ".join(sentences)


def make_summary_tables(summaries: Iterable["PolicySummary"]) -> Iterator[Table]:
    """Make a table for each environment, with one line per policy: mean ± half of its 95% interval."""
    from fedcascade.experiments.reports.summary import format_totals

    numbers = ("runs", "regret", "exchanges", "clustering error")
    for environment, group in groupby(summaries, key=lambda each: each.environment):
        rows = [(each.label, str(each.regret.runs), *format_totals(each)) for each in group]
        title = f"{environment}: mean over runs ± half of its 95% interval"
        yield make_table(title, ("policy", *numbers), rows, numbers)


def make_claims_table(claims: Iterable["Claim"]) -> Table:
    """Make a table of the paper's claims and our numbers."""
    from fedcascade.experiments.reports.paper_report import HEADER, format_values, format_verdict

    rows = [(claim.place, claim.text, *format_values(claim), format_verdict(claim)) for claim in claims]
    title = "the paper | ours: mean over runs ± half of its 95% interval"
    return make_table(title, HEADER, rows, HEADER[2:5])


def make_policies_tables(policies: Sequence["Policy"]) -> Iterator[Table]:
    """Make the paper's Tables 1 and 2, with other policies added to the first."""
    from fedcascade.federation.claims import TABLE_1

    claims = {policy.name: TABLE_1[policy.name] for policy in policies if policy.name in TABLE_1}
    known = ((policy, claims.get(policy.name)) for policy in policies)
    rows = [(policy.name, policy.agents, policy.users, claim.arms if claim else "") for policy, claim in known]
    yield make_table("Table 1: policies", ("policy", "agents", "users", "arms"), rows)
    orders = [(name, f"{claim.regret}\n{claim.communication}", claim.source) for name, claim in claims.items()]
    columns = ("policy", "orders of regret and communication", "source")
    yield make_table("Table 2: their bounds", columns, orders, lines=True)


def make_parts_table(policies: Iterable["Policy"]) -> Table:
    """Make a table with one line per policy: its summary, and its parts."""
    rows = []
    for policy in policies:
        parts = (policy.grouping, policy.trigger, policy.reply_rule, policy.decision)
        rows.append((policy.name, f"{policy.summary}\n{' / '.join(name_part(part) for part in parts)}"))
    columns = ("policy", "summary; parts: grouping / trigger / replies / decision")
    return make_table("policies and their parts", columns, rows, lines=True)


def name_part(part: object) -> str:
    """Name the class of a part, or both alternatives of ``AnyOf``."""
    from fedcascade.federation.triggers import AnyOf

    if isinstance(part, AnyOf):
        return f"{name_part(part.first)} or {name_part(part.second)}"
    return type(part).__name__


def make_constants_table(policies: Sequence["Policy"]) -> Table:
    """Make a table of all constants: name, symbol, meaning with range, and the value of each policy."""
    rows = []
    entries = [(policy, entry) for policy in policies for entry in policy.describe_constants()]
    for name in dict.fromkeys(entry.name for _, entry in entries):
        owners = [(policy, entry) for policy, entry in entries if entry.name == name]
        entry = owners[0][1]
        words = f"{entry.meaning}; {entry.range.words}" if entry.range else "not described"
        rows.append((name.rstrip("_"), entry.symbol, words, _format_values(owners)))
    columns = ("constant", "symbol", "meaning", "values")
    return make_table("constants, set by --set name=value", columns, rows, lines=True)


def _format_values(owners: Sequence[tuple["Policy", "ConstantDescription"]]) -> str:
    """Format the most common value, then the other values with their policies."""
    names: dict[str, list[str]] = {}
    for policy, entry in owners:
        names.setdefault(str(entry.value), []).append(policy.name)
    usual = max(names, key=lambda value: len(names[value]))
    others = [f"{value} ({', '.join(names[value])})" for value in names if value != usual]
    return "; ".join([usual if len(names[usual]) > 3 else f"{usual} ({', '.join(names[usual])})", *others])
