"""The tables of the command line: readable in 80 columns, with no name cut."""

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fedcascade.constants import ConstantDescription
    from fedcascade.experiments.reports.summary import PolicySummary
    from fedcascade.federation.policies import Policy
    from fedcascade.simulation.trace import ComparedPolicy

WIDTH = 80  # columns without a terminal


class TableRow(NamedTuple):
    """A row of the paper's Tables 1 and 2: its claims about a policy, and their source."""

    arms: str
    regret: str  # order
    communication: str  # order
    source: str


TABLE_1: Mapping[str, TableRow] = {
    "oful": TableRow("single", "O(d sqrt(T) log T)", "none", "Abbasi-Yadkori, Pal, Szepesvari 2011"),
    "c3-ucb": TableRow("cascade", "O(d sqrt(K T) log T)", "none", "Li, Wang, Zhang, Chen 2016"),
    "dislinucb": TableRow("single", "O(d sqrt(T) log^2 T)", "O(d |U|^1.5)", "Wang, Hu, Chen, Wang 2019"),
    "club-cascade": TableRow("cascade", "O(d sqrt(J K T) log T)", "O(T)", "Li, Zhang 2018"),
    "async-linucb": TableRow("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021"),
    "async-linucb-am": TableRow("single", "O(d sqrt(|U| T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021"),
    "phase-fclub": TableRow(
        "single", "O(d |U| sqrt(J T) log^1.5 T)", "O(d |U| J log T)", "Liu, Zhao, Yu, Li, Lui 2022"),
    "fedlinucb": TableRow("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "He, Wang, Min, Gu 2022"),
    "fedc3ucb-h": TableRow("cascade", "O(d sqrt(J K T) log T)", "O(d |U|^2 log T + log^2 T)", "Yang et al."),
}  # fmt: skip


def make_table(
    title: str, columns: Iterable[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), lines: bool = False
) -> Table:
    """Make a table; the columns in ``right`` hold numbers, which never wrap, and ``lines`` separates the rows."""
    table = Table(
        title=title or None,
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
        header = name if "\n" in name else fill(name, max(longest, 10), break_long_words=False)
        is_number = name in right
        table.add_column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def make_facts_table(title: str, rows: Iterable[Sequence[str]]) -> Table:
    """Make a table of names and values, without a header."""
    table = make_table(title, ("", ""), rows)
    table.show_header = False
    return table


def show(*tables: Table | str) -> None:
    """Print tables and paragraphs to stdout, as wide as the terminal, $COLUMNS or else 80 columns."""
    console = Console(highlight=False, markup=False)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()):
        console = Console(width=WIDTH, highlight=False, markup=False)
    for place, part in enumerate(tables):
        console.print(*([""] if place else []), part, sep="\n")


def open_page(url: str) -> bool:
    """Open a page in a graphical browser, if there is one and a person reads our output; return whether it opened."""
    import webbrowser

    has_screen = sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys()
    return sys.stdout.isatty() and bool(has_screen) and webbrowser.open(url)


def print_json(value: Any) -> None:
    """Print a value as a line of JSON, with null for infinity and NaN."""
    print(json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None)))


def make_results_table(summaries: Sequence[Mapping[str, Any]], betas: Sequence[str] = ()) -> Table:
    """Make a table with one line per run: beta if given, regret, clicks, exchanges, clustering."""
    has_values = any(run["reward"] != run["clicked"] for run in summaries)
    totals = ("reward", "clicks") if has_values else ("clicks",)
    numbers = (*["beta"] * bool(betas), "regret", *totals, "exchanges", "clusters", "clustering error")
    rows = [
        (run["policy"], *betas[place : place + 1], f"{run['regret']:,.{1 if run['regret'] < 10_000 else 0}f}",
         *([f"{run['reward']:,.1f}"] if has_values else []), f"{run['clicked']:,}",
         f"{run['communications']['total']:,}", f"{run['clusters']:,}",
         f"{run['clustering_error']:.0%}")
        for place, run in enumerate(summaries)
    ]  # fmt: skip
    return make_table(f"{summaries[0]['rounds']:,} rounds, 1 run of each policy", ("policy", *numbers), rows, numbers)


def make_comparison_table(compared: Sequence["ComparedPolicy"], betas: Sequence[str], baseline: str) -> Table:
    """Make a table of means over runs ± half of their 95% intervals, and of paired differences."""
    from fedcascade.intervals import format_mean

    numbers = ("beta", "regret", f"minus {baseline}'s", "clicks", "exchanges", "error")
    rows = []
    for each, beta in zip(compared, betas, strict=True):
        totals = (format_mean(each.clicks), f"{each.exchanges.mean:,.0f}", f"{each.clustering_error.mean:.0%}")
        difference = format_mean(each.difference) if each.label != baseline else ""
        rows.append((each.label, beta, format_mean(each.regret), difference, *totals))
    title = f"{compared[0].regret.runs} runs of each policy: mean ± half of its 95% interval; 'error' is of clustering"
    return make_table(title, ("policy", *numbers), rows, numbers)


def make_exposure_table(rows: Sequence[Sequence[str]]) -> Table:
    """Make a table of each policy's share of the catalogue that was shown, and the Gini coefficient of the counts."""
    return make_table("exposure of items", ("policy", "shown", "Gini"), rows, ("shown", "Gini"))


def explain_results(names: Collection[str], runs: int, lost: str = "number of clicks") -> str:
    """Explain the table of results in a few sentences, which claim nothing from a single run."""
    sentences = [f"Regret is the expected {lost} lost compared with the best lists; lower is better."]
    if runs == 1:
        sentences += ["One run says little about which policy is better: --seeds 5 gives intervals and differences."]
    if "fedc3ucb-h" in names:
        words = "fedc3ucb-h is the paper's policy; its beta of 10.5 is made for a million rounds"
        sentences += [f"{words}: --beta 0.7 sets all alike, 'fedcascade reproduce' makes the paper's own comparison."]
    if "popularity" in names:
        sentences += ["popularity learns which items all users click most, and shows the same to all."]
    if "known-clusters" in names:
        sentences += ["known-clusters knows the true clusters, which are unknown in practice."]
    return " ".join(sentences)


def describe_differences(policies: Sequence["Policy"]) -> str:
    """Describe the constants but beta in which policies differ, or return nothing."""
    differing = {name: owners for name, owners in _group_constants(policies).items() if name != "beta"
                 and len({str(entry.value) for _, entry in owners}) > 1}  # fmt: skip
    parts = [f"{name.rstrip('_')} {_format_values(owners)}" for name, owners in differing.items()]
    return f"Other constants that differ: {', '.join(parts)}." if parts else ""


def make_summary_tables(summaries: Iterable["PolicySummary"]) -> Iterator[Table]:
    """Make a table for each environment, with one line per policy: mean ± half of its 95% interval."""
    from fedcascade.experiments.reports.summary import format_totals

    numbers = ("runs", "regret", "exchanges", "clustering error")
    for environment, group in groupby(summaries, key=lambda each: each.environment):
        rows = [(each.label, str(each.regret.runs), *format_totals(each)) for each in group]
        title = f"{environment}: mean over runs ± half of its 95% interval"
        yield make_table(title, ("policy", *numbers), rows, numbers)


def make_policies_tables(policies: Sequence["Policy"]) -> Iterator[Table]:
    """Make the paper's Tables 1 and 2, with other policies added to the first."""
    claims = {policy.name: TABLE_1[policy.name] for policy in policies if policy.name in TABLE_1}
    known = ((policy, claims.get(policy.name)) for policy in policies)
    rows = [(policy.name, policy.agents, policy.users, claim.arms if claim else "") for policy, claim in known]
    yield make_table("Table 1: policies", ("policy", "agents", "users", "arms"), rows)
    orders = [(name, f"{claim.regret}\n{claim.communication}", claim.source) for name, claim in claims.items()]
    columns = ("policy", "orders of regret and communication", "source")
    if orders:
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
    for name, owners in _group_constants(policies).items():
        entry = owners[0][1]
        words = f"{entry.meaning}; {entry.range.words}" if entry.range else "not described"
        values = str(entry.value) if len(policies) == 1 else _format_values(owners)
        rows.append((name.rstrip("_"), entry.symbol, words, values))
    columns = ("constant", "symbol", "meaning", "values")
    return make_table("constants, set by --set name=value", columns, rows, lines=True)


def _group_constants(policies: Sequence["Policy"]) -> dict[str, list[tuple["Policy", "ConstantDescription"]]]:
    groups: dict[str, list[tuple[Policy, ConstantDescription]]] = {}
    for policy in policies:
        for entry in policy.describe_constants():
            groups.setdefault(entry.name, []).append((policy, entry))
    return groups


def _format_values(owners: Sequence[tuple["Policy", "ConstantDescription"]]) -> str:
    """Format the most common value, then the other values with their policies."""
    names: dict[str, list[str]] = {}
    for policy, entry in owners:
        names.setdefault(str(entry.value), []).append(policy.name)
    usual = max(names, key=lambda value: len(names[value]))
    others = [f"{value} ({', '.join(names[value])})" for value in names if value != usual]
    return "; ".join([usual if len(names[usual]) > 3 else f"{usual} ({', '.join(names[usual])})", *others])
