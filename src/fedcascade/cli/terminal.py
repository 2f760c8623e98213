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
    from fedcascade.experiments.beyond_bars import Finding
    from fedcascade.experiments.paper_claims import Claim
    from fedcascade.experiments.reports.summary import Line
    from fedcascade.federation.policies import Policy


class _Speed(TextColumn):
    """Rounds per second, which compiling does not slow down: a task starts when its first rounds can."""

    def render(self, task: ProgressTask) -> Text:
        if not task.started:
            return Text("getting ready (compiles once per installation, about half a minute)")
        return Text(f"{task.speed or 0:,.0f} rounds/s")


ROUNDS = (MofNCompleteColumn(), _Speed(""))
BYTES = (DownloadColumn(), TransferSpeedColumn())


@contextmanager
def progress_bars(counted: tuple[ProgressColumn, ...] = ROUNDS) -> Iterator[Progress]:
    """Progress bars on stderr, which disappear when done and never show where there is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<16}"), BarColumn(), *counted, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def bar(bars: Progress, name: str, rounds: int) -> Callable[[int], None]:
    """A new bar; call what is returned with the number of rounds that are done."""
    task = bars.add_task(name, total=rounds, start=False)

    def report(done: int) -> None:
        bars.start_task(task)
        bars.update(task, completed=done)

    return report


def results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """One line per run: regret, exchanges by cause, clustering."""
    table = Table(title="expected regret and exchanges with the server", title_justify="left")
    causes = list(dict.fromkeys(cause for run in summaries for cause in run["communications"] if cause != "total"))
    for name in ("policy", "regret", "reward", "exchanges", *causes, "clusters", "clustering error", "rounds/s"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for run in summaries:
        spoken = run["communications"]
        table.add_row(
            run["policy"],
            f"{run['regret']:,.1f}",
            f"{run['reward']:,}",
            f"{spoken['total']:,}",
            *(f"{spoken.get(cause, 0):,}" for cause in causes),
            f"{run['clusters']:,}",
            f"{run['clustering_error']:.0%}",
            f"{run['rounds'] / run['seconds']:,.0f}",
        )
    return table


def summary_table(lines: Iterable["Line"]) -> Table:
    """One line per system and environment: mean and standard deviation over its runs."""
    from fedcascade.experiments.reports.summary import plus_minus

    table = Table(title="mean ± standard deviation over runs", title_justify="left")
    for name in ("environment", "system", "runs", "regret", "exchanges", "clustering error"):
        table.add_column(name, justify="left" if name in {"environment", "system"} else "right")
    for line in lines:
        shares = plus_minus(line.clustering_error, "%")
        table.add_row(line.environment, line.system, str(line.regret.runs), plus_minus(line.regret),
                      plus_minus(line.exchanges), shares)  # fmt: skip
    return table


def claims_table(claims: Iterable["Claim"]) -> Table:
    """The paper's claims beside our figures; what was not judged is in the report alone."""
    from fedcascade.experiments.reports.paper_report import difference, ours, paper_says

    table = Table(title="the paper | ours", title_justify="left")
    for name in ("where", "claim", "paper", "ours", "difference", "verdict"):
        table.add_column(name, justify="right" if name in {"paper", "ours", "difference"} else "left")
    for claim in claims:
        if claim.verdict == "not judged":
            continue
        table.add_row(claim.place, claim.text, paper_says(claim), ours(claim), difference(claim), claim.verdict)
    return table


def bars_table(findings: Iterable["Finding"]) -> Table:
    """What our own system has to show beside what it does."""
    from fedcascade.experiments.reports.beyond_report import bar, measured, setting, what

    table = Table(title="bars | measured", title_justify="left")
    for name in ("setting", "what", "bar", "measured", "verdict"):
        table.add_column(name, justify="right" if name in {"bar", "measured"} else "left")
    for found in findings:
        table.add_row(setting(found), what(found), bar(found), measured(found), found.verdict)
    return table


def systems_table(policies: Iterable["Policy"]) -> Table:
    """The paper's Tables 1 and 2; systems that are not in them have no claims."""
    from fedcascade.federation.claims import TABLE_1

    table = Table(title="Table 1: systems and what is claimed of them", title_justify="left")
    for name in ("policy", "agents", "users", "arms", "regret", "communication", "source"):
        table.add_column(name)
    for row in policies:
        claim = TABLE_1.get(row.name)
        claimed = (claim.arms, claim.regret, claim.communication, claim.source) if claim else ()
        table.add_row(row.name, row.agents, row.users, *claimed)
    return table


def policies_table(policies: Iterable["Policy"]) -> Table:
    """One line per policy: its parts and what it is."""
    table = Table(title="parts", title_justify="left", show_lines=True)
    for name in ("policy", "who shares", "when an agent speaks", "who is answered", "what it decides with", "in words"):
        table.add_column(name)
    for row in policies:
        parts = (row.grouping, row.trigger, row.reply_rule, row.decision)
        table.add_row(row.name, *(_words(part) for part in parts), row.summary)
    return table


def theory_table(found: Mapping[str, float]) -> Table:
    """Theorem 1, term by term."""
    table = Table(title="Theorem 1, with the constants of the appendix", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, words in THEORY:
        table.add_row(words, _number(found[name]), end_section=name in ("T_1", "regret"))
    if found["regret"] >= found["rounds"]:
        table.caption = f"The regret bound is above T = {found['rounds']:,}: at these sizes it says nothing."
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


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.4g}"


def show(table: Table) -> None:
    """Print a table to stdout, at full width where the output is not a terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _words(part: object) -> str:
    """AnyOf(either=Determinant(alpha_c=1.0), other=Doubling()) -> Determinant or Doubling."""
    either, other = getattr(part, "either", None), getattr(part, "other", None)
    return type(part).__name__ if either is None else f"{_words(either)} or {_words(other)}"
