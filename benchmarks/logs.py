"""How long learning from a long log, and evaluating two systems on it, take, and how much memory they need.

Usage: python benchmarks/logs.py [--lists 10000000] [--folder FOLDER] [--threads 2]

The log has random lists of 4 of 100 items with 20 features, shown to 2,000 users. It is made first, which is not timed,
and stays in the folder. Then 'fedcascade fit' and 'fedcascade evaluate' run, each in a process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcascade.data.logs import write_log
from fedcascade.learning.click_log import ClickLog

ITEMS, LENGTH, FEATURES, USERS, BATCH = 100, 4, 20, 2_000, 200_000


def make_log(folder: Path, lists: int) -> None:
    """Write ``log.parquet`` and ``items.csv``."""
    draw = np.random.default_rng(1)
    features = np.abs(draw.normal(size=(ITEMS, FEATURES)))
    features *= 0.99 / np.linalg.norm(features, axis=1, keepdims=True)
    tastes = np.abs(draw.normal(size=(USERS, FEATURES)))
    tastes *= 0.4 / np.linalg.norm(tastes, axis=1, keepdims=True)
    weights = tastes @ features.T
    rows = [f"{item}," + ",".join(f"{x:.6f}" for x in row) for item, row in enumerate(features)]
    (folder / "items.csv").write_text("item," + ",".join(f"x{k}" for k in range(FEATURES)) + "\n" + "\n".join(rows))
    write_log(folder / "log.parquet", draw_batches(draw, weights, lists))


def draw_batches(draw: np.random.Generator, weights: NDArray[np.float64], lists: int) -> Iterator[ClickLog]:
    """Draw lists of random items and their clicks, a batch at a time."""
    for first in range(0, lists, BATCH):
        count = min(BATCH, lists - first)
        items = np.argpartition(draw.random((count, ITEMS), np.float32), LENGTH, axis=1)[:, :LENGTH]
        users = draw.integers(0, USERS, count)
        hits = draw.random((count, LENGTH)) < weights[users[:, None], items]
        clicks = hits & (np.cumsum(hits, axis=1) == 1)
        chances = np.broadcast_to(1.0 / np.arange(ITEMS, ITEMS - LENGTH, -1), (count, LENGTH))
        times = np.arange(first, first + count, dtype=np.float64)
        yield ClickLog(users=users, items=items, clicks=clicks, propensities=chances, times=times)


def measure(*command: str) -> None:
    """Run a command, and print how long it took, by the clock and on the processor, and the memory that it needed."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "fedcascade", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds, core_seconds = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    facts = f"{seconds:.0f} s by the clock, {core_seconds:.0f} s on cores, {usage.ru_maxrss / 2**20:.2f} GB"
    print(f"{command[0]}: {facts}" + ("" if status == 0 else f", ended with {status}"), flush=True)


def main() -> None:
    """Make the log unless it is there, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fedcascade-logs-"))
    if not (folder / "log.parquet").exists():
        make_log(folder, options.lists)
    print(f"{options.lists:,} lists in {folder}", flush=True)
    log = (str(folder / "log.parquet"), "--item-table", str(folder / "items.csv"))
    (folder / "warm.npz").unlink(missing_ok=True)
    measure("fit", *log, "--out", str(folder / "warm.npz"))
    chances = ("--oracle", "plackett-luce", "--set-oracle", "temperature=0.2", "--threads", str(options.threads))
    measure("evaluate", *log, "--policy", "fedind", "--policy", "oful", *chances)


if __name__ == "__main__":
    main()
