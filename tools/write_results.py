"""Write the tables of docs/reference-results.md from stored results.

Usage: python tools/write_results.py [FOLDER ...]

A folder is one of ``fedcascade experiment NAME`` or ``fedcascade reproduce``; without one, all of results/ are read.
``make table1`` leaves .cache/table1.json, which is read too. A table replaces the text between
``<!-- results:NAME -->`` and ``<!-- end -->``, where NAME is that of the plan, ``paper`` or ``table1``.
Text between marks without stored results stays as it is.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fedcascade.experiments import paper_claims
from fedcascade.experiments.comparisons import Comparison, compare_policies
from fedcascade.experiments.reports.paper_report import format_values
from fedcascade.experiments.reports.summary import describe_effort, format_totals, summarise_policies
from fedcascade.experiments.results import MANIFEST, Results, read_results
from fedcascade.intervals import estimate_mean, format_mean

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference-results.md"
TABLE_1 = ROOT / ".cache" / "table1.json"
Row = Sequence[str]


def replace_section(page: str, name: str, text: str) -> str:
    r"""Replace the text between the marks of a section.

    >>> replace_section("<!-- results:a -->\nold\n<!-- end -->\n", "a", "new\n")
    '<!-- results:a -->\nnew\n<!-- end -->\n'
    """
    marked = re.compile(rf"(<!-- results:{re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not marked.search(page):
        raise ValueError(f"the page has no line '<!-- results:{name} -->' with '<!-- end -->' after it: add both")
    return marked.sub(lambda hit: hit[1] + text + hit[2], page)


def render_table(header: Row, rows: Sequence[Row]) -> str:
    r"""Render a Markdown table, with the columns after the first to the right.

    >>> print(render_table(("a", "b"), [("x|y", "1")]), end="")
    | a | b |
    |---|---:|
    | x\|y | 1 |
    """
    lines = [header, *rows]
    cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines]
    return "".join([cells[0], "|---|" + "---:|" * (len(header) - 1) + "\n", *cells[1:]])


def render_results(results: Results) -> str:
    """Render the claims of the paper, the comparisons of a plan, or else the totals of its policies."""
    command = "reproduce" if paper_claims.is_paper(results) else f"experiment {results.plans[0].name}"
    parts = [f"`fedcascade {command}`: {describe_effort(results)}\n"]
    comparisons = compare_policies(results)
    if paper_claims.is_paper(results):
        parts.append(render_claims(results))
    elif comparisons:
        parts += render_comparisons(comparisons)
    else:
        parts.append(render_totals(results))
    return "\n".join(parts)


def format_verdict(claim: paper_claims.Claim) -> str:
    """Format the verdict with its note, in one line."""
    return f"{claim.verdict}: {claim.note}" if claim.note else claim.verdict


def render_claims(results: Results) -> str:
    """Render every claim of the paper, our measurement and the verdict."""
    claims = paper_claims.judge_claims(results)
    rows = [(f"{each.place}: {each.text}", *format_values(each)[:2], format_verdict(each)) for each in claims]
    return render_table(("claim", "paper", "ours", "verdict"), rows)


def render_comparisons(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a table for each baseline, with a row per environment and policy."""
    for against in dict.fromkeys(each.against for each in comparisons):
        own = [each for each in comparisons if each.against == against]
        shares: dict[tuple[str, str], dict[str, str]] = {}
        for each in own:
            policy, _, quantity = each.quantity.partition(": ")
            _, _, _, share, interval = each.format()
            shares.setdefault((each.where, policy), {})[quantity] = f"{share} ({interval})"
        columns = list(dict.fromkeys(quantity for cells in shares.values() for quantity in cells))
        rows = [
            [f"{where}: {policy}", *(cells.get(column, "") for column in columns)]
            for (where, policy), cells in shares.items()
        ]
        yield f"As a share of `{against}`, with the 95% interval:\n\n{render_table(('where', *columns), rows)}"


def render_totals(results: Results) -> str:
    """Render regret, exchanges and clustering error of every policy: mean ± half of the 95% interval."""
    rows = [(f"{each.environment}: {each.label}", *format_totals(each)) for each in summarise_policies(results)]
    return render_table(("where", "regret", "exchanges", "clustering error"), rows)


def render_table_1(runs: Sequence[dict[str, Any]]) -> str:
    """Render the results of ``make table1``, with ten clusters and with one."""
    parts = [
        "`make table1`: lambda 4 and beta 5 for all, other constants their own; mean ± half of the 95% interval.\n"
    ]
    for clusters, words in ((10, "J = 10, 300,000 rounds:\n"), (1, "J = 1, 100,000 rounds:\n")):
        header = ("policy", "regret", "exchanges", *(("groups found", "clustering error") if clusters > 1 else ()))
        rows = []
        for name in dict.fromkeys(run["name"] for run in runs if run["clusters"] == clusters):
            own = [run for run in runs if (run["name"], run["clusters"]) == (name, clusters)]
            regret, exchanges = ([run["curve"][-1][which] for run in own] for which in (1, 2))
            means = (format_mean(estimate_mean(values)) for values in (regret, exchanges))
            found, error = mean(run["found"] for run in own), mean(run["error"] for run in own)
            rows.append((name, *means, f"{found:.1f}", f"{error:.0%}")[: len(header)])
        parts += [words, render_table(header, rows)]
    return "\n".join(parts)


def main() -> None:
    """Replace the sections that have results, and print their names."""
    folders = [Path(name) for name in sys.argv[1:]] or [
        path.parent for path in sorted(Path("results").glob(f"*/{MANIFEST}"))
    ]
    page = PAGE.read_text("utf-8")
    written = []
    for results in map(read_results, folders):
        name = "paper" if paper_claims.is_paper(results) else results.plans[0].name
        if sys.argv[1:] or f"<!-- results:{name} -->" in page:
            page = replace_section(page, name, render_results(results))
            written.append(name)
    if TABLE_1.exists():
        page = replace_section(page, "table1", render_table_1(json.loads(TABLE_1.read_text("utf-8"))))
        written.append("table1")
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(written) or 'nothing'} written")


if __name__ == "__main__":
    main()
