"""Draw how the processor time of a round grows with users, items and d: docs/figures/growth.svg.

Usage: python benchmarks/growth.py. Each point is a process of its own (benchmarks/engines.py --grow) in the exact
engine, by processor time on all threads, which other programs on the machine disturb less than the clock. It takes some
minutes.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = ("fedc3ucb-h", "fedc3ucb-e")
ROUNDS = 20_000
REPEATS = 3  # the least counts: the first may compile, and others may use the caches of the processor meanwhile
BASE = {"users": 40, "items": 200, "d": 20}
SWEEPS = {"users": (40, 160, 640, 2_560), "items": (50, 100, 200, 400, 800), "d": (10, 20, 40, 80)}


def measure(system: str, sizes: dict[str, int]) -> tuple[float, float]:
    """Microseconds of processor time per round, and the most memory that the process had, in MB."""
    command = [sys.executable, str(ROOT / "benchmarks/engines.py"), "--grow", system, str(ROUNDS)]
    runs = [
        subprocess.run([*command, *map(str, sizes.values())], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(REPEATS)
    ]
    _, cpu, _, peak = min((tuple(map(float, run)) for run in runs), key=lambda run: run[1])
    return cpu / ROUNDS * 1e6, peak


def main() -> None:
    """Measure, print a table, draw."""
    table = Table(
        title=f"per round, exact engine, {ROUNDS:,} rounds; else 40 users, 200 items, d 20", title_justify="left"
    )
    for column in ("system", "what grows", "to", "CPU us/round", "times", "peak MB"):
        table.add_column(column, justify="left" if column in ("system", "what grows") else "right")
    plt.rcParams["svg.hashsalt"] = "growth"  # the same file for the same figures
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    for axis, (what, values) in zip(axes, SWEEPS.items(), strict=True):
        for system in SYSTEMS:
            points = [measure(system, BASE | {what: value}) for value in values]
            [base] = [cpu for value, (cpu, _) in zip(values, points, strict=True) if value == BASE[what]]
            axis.plot(values, [cpu / base for cpu, _ in points], marker="o", label=system)
            for value, (cpu, peak) in zip(values, points, strict=True):
                table.add_row(system, what, f"{value:,}", f"{cpu:.1f}", f"{cpu / base:.2f}", f"{peak:,.0f}")
                print(system, what, value, f"{cpu:.1f} us", f"{peak:.0f} MB", file=sys.stderr, flush=True)
        style(axis, what, values)
    axes[0].set_ylabel("processor time per round,\ntimes that of the paper's shape")
    axes[0].legend(frameon=False)
    figure.savefig(ROOT / "docs/figures/growth.svg", metadata={"Date": None})
    Console(width=100).print(table)


def style(axis: Any, what: str, values: tuple[int, ...]) -> None:
    """Give both axes logarithms, with the measured values as ticks."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(values, [f"{value:,}" for value in values], minor=False)
    axis.minorticks_off()
    axis.set_xlabel(what)
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    main()
