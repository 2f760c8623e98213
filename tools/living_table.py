"""Write the table of docs/explanation-living-populations.md from results of ``fedcascade experiment living``.

usage: python tools/living_table.py [results/living]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fedcascade.experiments.living_bars import BEFORE, OURS, Finding, format_findings, judge_bars
from fedcascade.experiments.results import read_results

PAGE = Path(__file__).parents[1] / "docs" / "explanation-living-populations.md"
HEAD = f"| what | `{BEFORE}` | `{OURS}` | wish | verdict |\n|---|---|---|---|---|\n"


def format_table(findings: Sequence[Finding]) -> str:
    """Format findings as a table in Markdown."""
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in format_findings(findings))


def replace_table(page: str, table: str) -> str:
    """Put a table in the place of the one that a page has."""
    start = page.index(HEAD)
    return page[:start] + table + page[page.index("\n\n", start) + 1 :]


def main(folder: str = "results/living") -> None:
    """Write the table of a results folder into the page."""
    table = format_table(judge_bars(read_results(Path(folder))))
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
