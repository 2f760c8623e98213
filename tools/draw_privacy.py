"""Write the table and the figure of docs/explanation-privacy.md from the results of ``fedcascade experiment privacy``.

Usage: python tools/draw_privacy.py FOLDER
"""

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from fedcascade.experiments.comparisons import compare_policies
from fedcascade.experiments.results import read_results
from fedcascade.intervals import Interval

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation-privacy.md"
FIGURE = ROOT / "docs" / "figures" / "privacy.svg"
SCHEDULED = "population-scheduled"
ROUNDS = (150, 1_000)  # of a user, after which regret is compared
Shares = dict[str, dict[str, Interval]]  # by environment and column


def read_shares(folder: Path, rounds: int) -> Shares:
    """Return regret after so many rounds as a share of learning alone, by environment and by epsilon or policy."""
    shares: Shares = {}
    for comparison in compare_policies(read_results(folder)):
        label, _, quantity = comparison.quantity.partition(": ")
        if quantity == f"regret after {rounds:,} own rounds":
            shares.setdefault(comparison.where, {})[label.partition("epsilon=")[2] or label] = comparison.share
    return shares


def format_table(shares: Shares) -> str:
    """Return the shares as a table in Markdown."""
    numbers = sorted({name for row in shares.values() for name in row if name[0].isdigit()}, key=float)
    columns = [*numbers, SCHEDULED, "population"]
    names = [f"epsilon {float(name):g}" for name in numbers] + ["schedule, no noise", "determinant, no noise"]
    lines = ["| where | " + " | ".join(names) + " |", "|---|" + "---:|" * len(columns)]
    for where, row in shares.items():
        cells = [f"{row[name].mean:.2f} ± {row[name].half_width:.2f}" if name in row else "" for name in columns]
        lines.append(f"| {where} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_figure(shares: Shares) -> None:
    """Draw shares against epsilon; a last point, apart from the others, has no noise."""
    plt.rcParams["svg.hashsalt"] = "fedcascade"
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for where, row in shares.items():
        points = sorted((float(name), share) for name, share in row.items() if name[0].isdigit())
        points.append((30.0, row[SCHEDULED]))
        axes.errorbar(
            [x for x, _ in points], [share.mean for _, share in points], [share.half_width for _, share in points],
            marker="o", markersize=4, capsize=3, linestyle="--" if where.startswith("40 ") else "-", label=where,
        )  # fmt: skip
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 30], ["0.5", "1", "2", "5", "10", "no noise"])
    axes.minorticks_off()
    axes.set_xlabel("epsilon per list")
    axes.set_ylabel("regret, as a share of learning alone")
    axes.set_ylim(0.0, 1.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Write table and figure."""
    page = PAGE.read_text(encoding="utf-8")
    for rounds in ROUNDS:
        table = format_table(read_shares(Path(sys.argv[1]), rounds))
        marked = re.compile(rf"(<!-- price after {rounds} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = marked.sub(lambda hit, table=table: f"{hit[1]}{table}\n{hit[2]}", page)  # type: ignore[misc]
    PAGE.write_text(page, encoding="utf-8")
    draw_figure(read_shares(Path(sys.argv[1]), ROUNDS[0]))


if __name__ == "__main__":
    main()
