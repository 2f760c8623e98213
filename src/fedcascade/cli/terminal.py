"""The tables that the command line prints to stdout."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fedcascade.constants import ConstantDescription
    from fedcascade.experiments.beyond_bars import Finding
    from fedcascade.experiments.paper_claims import Claim
    from fedcascade.experiments.reports.summary import SystemSummary
    from fedcascade.federation.policies import Policy


def make_table(
    title: str, columns: Iterable[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), lines: bool = False
) -> Table:
    """Make a table; the columns in ``right`` are aligned to the right, ``lines`` are drawn between rows."""
    table = Table(title=title, title_justify="left", show_lines=lines)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def show(*tables: Table) -> None:
    """Print tables to stdout, at full width where the output is not a terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(*tables, sep="")


def make_results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table with one line per run: regret, exchanges by cause, clustering."""
    causes = list(dict.fromkeys(cause for run in summaries for cause in run["communications"] if cause != "total"))
    numbers = ("regret", "reward", "exchanges", *causes, "clusters", "clustering error", "rounds/s")
    rows = [
        (
            run["policy"],
            f"{run['regret']:,.1f}",
            f"{run['reward']:,}",
            *(f"{run['communications'].get(cause, 0):,}" for cause in ("total", *causes)),
            f"{run['clusters']:,}",
            f"{run['clustering_error']:.0%}",
            f"{run['rounds'] / run['seconds']:,.0f}",
        )
        for run in summaries
    ]
    return make_table("expected regret and exchanges with the server", ("policy", *numbers), rows, numbers)


def make_summary_table(summaries: Iterable["SystemSummary"]) -> Table:
    """Make a table with one line per system and environment: mean and half of its 95% interval over the runs."""
    from fedcascade.experiments.reports.summary import format_totals

    numbers = ("runs", "regret", "exchanges", "clustering error")
    rows = [(each.environment, each.system, str(each.regret.runs), *format_totals(each)) for each in summaries]
    return make_table("mean over runs ± half of its 95% interval", ("environment", "system", *numbers), rows, numbers)


def make_claims_table(claims: Iterable["Claim"]) -> Table:
    """Make a table of the paper's claims beside our numbers."""
    from fedcascade.experiments.reports.paper_report import format_values, format_verdict

    numbers = ("paper", "ours", "difference")
    rows = [(claim.place, claim.text, *format_values(claim), format_verdict(claim)) for claim in claims]
    title = "the paper | ours: mean over runs ± half of its 95% interval"
    return make_table(title, ("where", "claim", *numbers, "verdict"), rows, numbers)


def make_sensitivity_table(lines: Iterable[Sequence[str]]) -> Table:
    """Make a table of the paper's figures with each constant halved and doubled."""
    from fedcascade.experiments.reports.sensitivity_report import CAPTION, HEADER

    return make_table(CAPTION, HEADER, lines, HEADER[1:])


def make_bars_table(findings: Iterable["Finding"]) -> Table:
    """Make a table of the bars that our own system has to meet beside what was measured."""
    from fedcascade.experiments.reports.beyond_report import format_finding

    rows = [(*format_finding(finding), finding.verdict) for finding in findings]
    columns = ("setting", "what", "bar", "measured", "verdict")
    return make_table("bars | measured", columns, rows, right=("bar", "measured"))


def make_systems_table(policies: Iterable["Policy"]) -> Table:
    """Make the paper's Tables 1 and 2; systems that are not in them have no claims."""
    from fedcascade.federation.claims import TABLE_1

    rows = []
    for policy in policies:
        claim = TABLE_1.get(policy.name)
        cells = (claim.arms, claim.regret, claim.communication, claim.source) if claim else ()
        rows.append((policy.name, policy.agents, policy.users, *cells))
    columns = ("policy", "agents", "users", "arms", "regret", "communication", "source")
    return make_table("Table 1: systems and what is claimed of them", columns, rows)


def make_parts_table(policies: Iterable["Policy"]) -> Table:
    """Make a table with one line per policy: its parts and its summary."""
    columns = ("policy", "who shares", "when an agent speaks", "who is answered", "what it decides with", "in words")
    rows = []
    for policy in policies:
        parts = (policy.grouping, policy.trigger, policy.reply_rule, policy.decision)
        rows.append((policy.name, *(name_part(part) for part in parts), policy.summary))
    return make_table("parts", columns, rows, lines=True)


def name_part(part: object) -> str:
    """Name a part: AnyOf(first=Determinant(alpha_c=1.0), second=Doubling()) is 'Determinant or Doubling'."""
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
    columns = ("constant", "symbol", "what it is", "values")
    return make_table("constants, set by --set name=value", columns, rows, lines=True)


def _format_values(owners: Sequence[tuple["Policy", "ConstantDescription"]]) -> str:
    """Format the value that most policies have, then those of the others with their names."""
    names: dict[str, list[str]] = {}
    for policy, entry in owners:
        names.setdefault(str(entry.value), []).append(policy.name)
    usual = max(names, key=lambda value: len(names[value]))
    others = [f"{value} ({', '.join(names[value])})" for value in names if value != usual]
    return "; ".join([usual if len(names[usual]) > 3 else f"{usual} ({', '.join(names[usual])})", *others])
