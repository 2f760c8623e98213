"""What the command line shows people: tables on stdout, progress on stderr."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Task as ProgressTask
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedcascade.constants import ConstantDescription
    from fedcascade.experiments.beyond_bars import Finding
    from fedcascade.experiments.paper_claims import Claim
    from fedcascade.experiments.reports.summary import SystemSummary
    from fedcascade.federation.policies import Policy


class _SpeedColumn(TextColumn):
    """Rounds per second, without the time that compiling takes: a task starts with its first rounds."""

    def render(self, task: ProgressTask) -> Text:
        if not task.started:
            return Text("getting ready (compiles once per installation, about half a minute)")
        return Text(f"{task.speed or 0:,.0f} rounds/s")


ROUNDS = (MofNCompleteColumn(), _SpeedColumn(""))
BYTES = (DownloadColumn(), TransferSpeedColumn())


@contextmanager
def show_progress_bars(counted: tuple[ProgressColumn, ...] = ROUNDS) -> Iterator[Progress]:
    """Show progress bars on stderr, which disappear when done and never appear where there is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<16}"), BarColumn(), *counted, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def add_bar(bars: Progress, name: str, rounds: int) -> Callable[[int], None]:
    """Add a bar; returns a callback that takes the number of rounds that are done."""
    task = bars.add_task(name, total=rounds, start=False)

    def report(done: int) -> None:
        bars.start_task(task)
        bars.update(task, completed=done)

    return report


def make_results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table with one line per run: regret, exchanges by cause, clustering."""
    table = Table(title="expected regret and exchanges with the server", title_justify="left")
    causes = list(dict.fromkeys(cause for run in summaries for cause in run["communications"] if cause != "total"))
    for name in ("policy", "regret", "reward", "exchanges", *causes, "clusters", "clustering error", "rounds/s"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for run in summaries:
        exchanges = run["communications"]
        table.add_row(
            run["policy"],
            f"{run['regret']:,.1f}",
            f"{run['reward']:,}",
            f"{exchanges['total']:,}",
            *(f"{exchanges.get(cause, 0):,}" for cause in causes),
            f"{run['clusters']:,}",
            f"{run['clustering_error']:.0%}",
            f"{run['rounds'] / run['seconds']:,.0f}",
        )
    return table


def make_summary_table(summaries: Iterable["SystemSummary"]) -> Table:
    """Make a table with one line per system and environment: mean and standard deviation over its runs."""
    from fedcascade.experiments.reports.summary import format_mean

    table = Table(title="mean ± standard deviation over runs", title_justify="left")
    for name in ("environment", "system", "runs", "regret", "exchanges", "clustering error"):
        table.add_column(name, justify="left" if name in {"environment", "system"} else "right")
    for each in summaries:
        error = format_mean(each.clustering_error, "%")
        table.add_row(each.environment, each.system, str(each.regret.runs), format_mean(each.regret),
                      format_mean(each.exchanges), error)  # fmt: skip
    return table


def make_claims_table(claims: Iterable["Claim"]) -> Table:
    """Make a table of the paper's claims beside our numbers; claims that were not judged are in the report alone."""
    from fedcascade.experiments.reports.paper_report import format_difference, format_our_value, format_paper_value

    table = Table(title="the paper | ours", title_justify="left")
    for name in ("where", "claim", "paper", "ours", "difference", "verdict"):
        table.add_column(name, justify="right" if name in {"paper", "ours", "difference"} else "left")
    for claim in claims:
        if claim.verdict == "not judged":
            continue
        values = (format_paper_value(claim), format_our_value(claim), format_difference(claim))
        table.add_row(claim.place, claim.text, *values, claim.verdict)
    return table


def make_bars_table(findings: Iterable["Finding"]) -> Table:
    """Make a table of the bars that our own system has to meet beside what was measured."""
    from fedcascade.experiments.reports.beyond_report import (
        describe_measure,
        format_bar,
        format_measured,
        format_setting,
    )

    table = Table(title="bars | measured", title_justify="left")
    for name in ("setting", "what", "bar", "measured", "verdict"):
        table.add_column(name, justify="right" if name in {"bar", "measured"} else "left")
    for finding in findings:
        values = (format_bar(finding), format_measured(finding))
        table.add_row(format_setting(finding), describe_measure(finding), *values, finding.verdict)
    return table


def make_systems_table(policies: Iterable["Policy"]) -> Table:
    """Make the paper's Tables 1 and 2; systems that are not in them have no claims."""
    from fedcascade.federation.claims import TABLE_1

    table = Table(title="Table 1: systems and what is claimed of them", title_justify="left")
    for name in ("policy", "agents", "users", "arms", "regret", "communication", "source"):
        table.add_column(name)
    for policy in policies:
        claim = TABLE_1.get(policy.name)
        cells = (claim.arms, claim.regret, claim.communication, claim.source) if claim else ()
        table.add_row(policy.name, policy.agents, policy.users, *cells)
    return table


def make_parts_table(policies: Iterable["Policy"]) -> Table:
    """Make a table with one line per policy: its parts and its summary."""
    table = Table(title="parts", title_justify="left", show_lines=True)
    for name in ("policy", "who shares", "when an agent speaks", "who is answered", "what it decides with", "in words"):
        table.add_column(name)
    for policy in policies:
        parts = (policy.grouping, policy.trigger, policy.reply_rule, policy.decision)
        table.add_row(policy.name, *(_name_part(part) for part in parts), policy.summary)
    return table


def make_constants_table(policies: Sequence["Policy"]) -> Table:
    """Make a table of all constants: name, symbol, meaning with range, and the value of each policy."""
    table = Table(title="constants, set by --set name=value", title_justify="left", show_lines=True)
    for name in ("constant", "symbol", "what it is", "values"):
        table.add_column(name)
    entries = [(policy, entry) for policy in policies for entry in policy.describe_constants()]
    for name in dict.fromkeys(entry.name for _, entry in entries):
        owners = [(policy, entry) for policy, entry in entries if entry.name == name]
        entry = owners[0][1]
        words = f"{entry.meaning}; {entry.range.words}" if entry.range else "not described"
        table.add_row(name.rstrip("_"), entry.symbol, words, _format_values(owners))
    return table


def _format_values(owners: Sequence[tuple["Policy", "ConstantDescription"]]) -> str:
    """Format the value that most policies have, then those of the others with their names."""
    names: dict[str, list[str]] = {}
    for policy, entry in owners:
        names.setdefault(str(entry.value), []).append(policy.name)
    usual = max(names, key=lambda value: len(names[value]))
    others = [f"{value} ({', '.join(names[value])})" for value in names if value != usual]
    return "; ".join([usual if len(names[usual]) > 3 else f"{usual} ({', '.join(names[usual])})", *others])


def make_plugins_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Make a table with one line per plug-in: what it is, where it comes from, and what is wrong with it."""
    table = Table(title="plug-ins of other packages", title_justify="left", show_lines=True)
    columns = ("kind", "name", "package", "target", "state")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    return table


def make_theory_table(bounds: Mapping[str, float]) -> Table:
    """Make a table of Theorem 1, term by term."""
    table = Table(title="Theorem 1, with the constants of the appendix", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, words in THEORY:
        table.add_row(words, _format_number(bounds[name]), end_section=name in ("T_1", "regret"))
    if bounds["regret"] >= bounds["rounds"]:
        table.caption = f"The regret bound is above T = {bounds['rounds']:,}: at these sizes it says nothing."
    return table


THEORY = (
    ("delta", "delta = |U|^2 / T"),
    ("beta", "beta of Lemma 1"),
    ("lambda_tilde", "lambda~_x"),
    ("T_0", "T_0: rounds until users can be told apart"),
    ("T_1", "T_1: rounds more until the server has heard of it"),
    ("regret_learning", "regret of learning within clusters"),
    ("regret_partition", "regret until then: T_0 + T_1"),
    ("regret_failure", "regret where the bounds fail"),
    ("regret", "regret, in all"),
    ("exchanges_determinant", "exchanges for the determinant (equation 37)"),
    ("exchanges_auxiliary", "auxiliary exchanges (equation 38)"),
    ("exchanges", "exchanges, in all"),
)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.4g}"


def show(table: Table) -> None:
    """Print a table to stdout, at full width where the output is not a terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _name_part(part: object) -> str:
    """Name a part: AnyOf(either=Determinant(alpha_c=1.0), other=Doubling()) is 'Determinant or Doubling'."""
    either, other = getattr(part, "either", None), getattr(part, "other", None)
    return type(part).__name__ if either is None else f"{_name_part(either)} or {_name_part(other)}"
