"""Measure how the processor time of a round grows with users, items and d, and put it into the documentation.

Usage: python benchmarks/growth.py [--rounds 20000] [--repeats 3]

Draws docs/figures/growth.svg and writes the section between two marks in docs/reference-results.md. Each point is a
process of its own (benchmarks/engines.py --grow) in the exact engine, by processor time on all threads; the least of
its repeats counts. It takes about four minutes. Run it on an otherwise idle machine.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
PAGE, FIGURE = ROOT / "docs" / "reference-results.md", ROOT / "docs" / "figures" / "growth.svg"
BEGIN, END = "<!-- growth: begin -->\n", "<!-- growth: end -->\n"
SYSTEMS = ("fedc3ucb-h", "population")
BASE = {"users": 40, "items": 200, "d": 20}
SWEEPS = {"users": (40, 160, 640, 2_560), "items": (50, 100, 200, 400, 800), "d": (12, 20, 40, 80)}
Sweep = Mapping[int, float]  # microseconds of processor time per round, by what grows


def measure(system: str, sizes: Mapping[str, int], rounds: int, repeats: int) -> float:
    """Return the microseconds of processor time per round."""
    command = [sys.executable, str(ROOT / "benchmarks" / "engines.py"), "--grow", system, str(rounds)]
    seconds = []
    for _ in range(repeats):
        done = subprocess.run([*command, *map(str, sizes.values())], check=True, capture_output=True, text=True)
        seconds.append(float(done.stdout.split()[1]))
    return min(seconds) / rounds * 1e6


def measure_all(rounds: int, repeats: int) -> dict[str, dict[str, Sweep]]:
    """Measure every sweep of every policy; the shared paper's shape once."""
    found: dict[str, dict[str, Sweep]] = {what: {} for what in SWEEPS}
    for system in SYSTEMS:
        base = measure(system, BASE, rounds, repeats)
        for what, values in SWEEPS.items():
            sweep = {}
            for value in values:
                is_base = value == BASE[what]
                sweep[value] = base if is_base else measure(system, BASE | {what: value}, rounds, repeats)
                print(f"{system}, {what} {value:,}: {sweep[value]:.1f} us per round", flush=True)
            found[what][system] = sweep
    return found


def draw(found: Mapping[str, Mapping[str, Sweep]], path: Path) -> None:
    """Draw a panel for each size, with logarithmic axes; equal figures give equal files."""
    plt.rcParams |= {"svg.hashsalt": "growth", "svg.fonttype": "none"}
    figure, axes = plt.subplots(1, len(found), figsize=(11, 3.4), sharey=True, layout="constrained")
    for axis, (what, sweeps) in zip(axes, found.items(), strict=True):
        for system, sweep in sweeps.items():
            base = sweep[BASE[what]]
            axis.plot(list(sweep), [cpu / base for cpu in sweep.values()], marker="o", label=system)
        style(axis, what, SWEEPS[what])
    axes[0].set_ylabel("processor time per round,\ntimes that of the paper's shape")
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def style(axis: Any, what: str, values: Sequence[int]) -> None:
    """Set logarithmic axes, with the measured values as ticks."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(values, [f"{value:,}" for value in values], minor=False)
    axis.minorticks_off()
    axis.set_xlabel(what)
    axis.grid(alpha=0.3)


def format_section(found: Mapping[str, Mapping[str, Sweep]], rounds: int) -> str:
    """Return the section of the page: the figure, and a table of microseconds per round."""
    lines = [
        "![The processor time of a round against users, items and d, in three panels](figures/growth.svg)",
        "",
        f"Microseconds of processor time per round, over {rounds:,} rounds of the exact engine, in brackets times",
        "that of the paper's shape, as `python benchmarks/growth.py` measured, drew and wrote it on 2 cores:",
        "",
        f"| what grows, from 40 users, 200 items, d 20 | {' | '.join(f'`{name}`' for name in SYSTEMS)} |",
        f"|---|{'---|' * len(SYSTEMS)}",
    ]
    for what, sweeps in found.items():
        for value in SWEEPS[what]:
            cells = [f"{sweep[value]:.1f} ({sweep[value] / sweep[BASE[what]]:.1f})" for sweep in sweeps.values()]
            lines.append(f"| {what} {value:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def replace_section(page: str, section: str) -> str:
    """Put a section between the two marks of a page."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page must have the lines {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + section + END + after


def main() -> None:
    """Measure, draw, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    found = measure_all(asked.rounds, asked.repeats)
    draw(found, FIGURE)
    PAGE.write_text(replace_section(PAGE.read_text("utf-8"), format_section(found, asked.rounds)), encoding="utf-8")
    print(f"{FIGURE} and {PAGE} are written")


if __name__ == "__main__":
    main()
