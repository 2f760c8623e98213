"""Write a log as it should be, and as it often is: shuffled, with bad rows, and as events; compare what commands say.

Usage: python tools/messy_log.py [--lists 200000] [--seed 1] [--folder FOLDER]

All files must give the same description, the same fit and the same estimates. Tastes are known: the last table says
which intervals hold the true reward.
"""

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.cli import main as run_command
from fedcascade.evaluation.fit import freeze_policy
from fedcascade.federation.policies import get_policy
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.ranker import Ranker
from fedcascade.saved import load_warm

ITEMS, LENGTH, DIMENSION, PER_USER = 8, 3, 4, 400
POLICIES = ("population", "fedind", "oful")
BAD = {  # a row by the names of its columns, and what is wrong with it
    "no user": {"user": ""},
    "no such position": {"clicks": "7"},
    "no position": {"clicks": "first"},
    "no time": {"time": "yesterday"},
    "an item twice": {"items": "green tea 0|green tea 0|green tea 1"},
    "an unknown item": {"items": "green tea 0|coffee|green tea 1"},
    "an impossible propensity": {"propensities": "0 0.5 0.5"},
}


class World:
    """Users with individual tastes, and a log of uniformly random lists."""

    def __init__(self, lists: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.users = max(20, lists // PER_USER)
        features = np.abs(draw.normal(size=(ITEMS, DIMENSION)))
        self.features = np.floor(0.99 * features / np.linalg.norm(features, axis=1, keepdims=True) * 4096) / 4096
        tastes = np.abs(draw.normal(0.4, 0.3, (self.users, DIMENSION)))
        tastes /= np.maximum(1.0, np.linalg.norm(tastes, axis=1, keepdims=True)) / 0.7
        self.weights: NDArray[np.float64] = np.clip(tastes @ self.features.T, 0.0, 1.0)
        self.owners = draw.integers(self.users, size=lists)
        self.lists = np.argsort(draw.random((lists, ITEMS)), axis=1)[:, :LENGTH]
        hits = draw.random(self.lists.shape) < self.weights[self.owners[:, None], self.lists]
        self.clicks = np.where(hits.any(axis=1), hits.argmax(axis=1), -1)
        self.draw = draw

    def to_frame(self) -> pl.DataFrame:
        """Return the log as text: ids hold spaces, and bars separate them."""
        names = np.array([f"green tea {item}" for item in range(ITEMS)], object)
        chances = " ".join(str(1 / (ITEMS - position)) for position in range(LENGTH))
        return pl.DataFrame(
            {
                "time": [str(time) for time in range(len(self.lists))],
                "user": [f"user {user}" for user in self.owners],
                "items": ["|".join(names[row]) for row in self.lists],
                "clicks": ["" if click < 0 else str(click) for click in self.clicks],
                "propensities": [chances] * len(self.lists),
            }
        )

    def spoil(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """Return the rows in random order, with one bad row per hundred; and the number of bad rows."""
        count = max(len(BAD), len(frame) // 100)
        rows = frame.sample(count, seed=1, with_replacement=True).to_dicts()
        bad = [row | change for row, change in zip(rows, [*BAD.values()] * count, strict=False)]
        mixed = pl.concat([frame, pl.DataFrame(bad, schema=frame.schema)])
        return mixed.sample(fraction=1.0, shuffle=True, seed=2), len(bad)

    def to_events(self) -> pl.DataFrame:
        """Return one row per shown item, in random order."""
        lists, size = len(self.lists), self.lists.size
        rows = np.repeat(np.arange(lists), LENGTH)
        place = np.tile(np.arange(LENGTH), lists)
        order = self.draw.permutation(size)
        columns = {
            "ts": rows, "user_id": [f"user {user}" for user in self.owners[rows]],
            "request_id": [f"request {row}" for row in rows], "rank": place + 1,
            "item_id": [f"green tea {item}" for item in self.lists.ravel()],
            "is_click": (place == self.clicks[rows]).astype(int), "propensity": 1 / (ITEMS - place),
        }  # fmt: skip
        return pl.DataFrame(columns)[order]

    def compute_truths(self) -> dict[str, float]:
        """Return the true reward per list of each policy, after it has learned from the first half."""
        half, chances = len(self.lists) // 2, self.weights[self.owners[:, None], self.lists]
        log = {"user": self.owners[:half], "items": self.lists[:half], "clicks": self.clicks[:half]}
        sums: LogSums = Ranker().fit(log, self.features).sums_
        shown = Ranker().fit(log, self.features).users_
        truths = {"logged": float((1.0 - np.prod(1.0 - chances[half:], axis=1)).mean())}
        for name in POLICIES:
            frozen = freeze_policy(get_policy(name).with_beta(0.0), sums, TopK(length=LENGTH))
            places = {user: place for place, user in enumerate(shown)}
            rows = np.array([places.get(user, len(frozen.theta) - 1) for user in range(self.users)])
            best = np.argsort(-(frozen.theta[rows] @ self.features.T), axis=1)[:, :LENGTH]
            earned = 1.0 - np.prod(1.0 - np.take_along_axis(self.weights, best, axis=1), axis=1)
            truths[name] = float(earned[self.owners[half:]].mean())
        return truths


def write_files(world: World, folder: Path) -> tuple[Path, dict[str, Path], int]:
    """Write the table of items, and the log in every form; return the number of bad rows."""
    names = [f"green tea {item}" for item in range(ITEMS)]
    pl.DataFrame({"item": names} | {f"x{k}": world.features[:, k] for k in range(DIMENSION)}).write_csv(
        folder / "items.csv"
    )
    files = {name: folder / f"{name}.csv" for name in ("clean", "messy", "events")}
    clean = world.to_frame()
    messy, bad = world.spoil(clean)
    clean.write_csv(files["clean"])
    messy.write_csv(files["messy"])
    world.to_events().write_csv(files["events"])
    return folder / "items.csv", files, bad


def run_json(*words: object) -> tuple[Any, str]:
    """Run a command with --json; return what it printed, and its notes."""
    printed, notes = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(notes):
        run_command([*map(str, words), "--json"])
    return json.loads(printed.getvalue()), notes.getvalue()


def compare(lists: int, seed: int, folder: Path) -> tuple[dict[str, dict[str, Any]], list[str], World]:
    """Return what describe, fit and evaluate say of each file, and the notes on the messy one."""
    world = World(lists, seed)
    items, files, _ = write_files(world, folder)
    found: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for name, file in files.items():
        options = ["--item-table", items, *(["--skip-invalid"] if name == "messy" else [])]
        warm = folder / f"{name}.npz"
        policies = [word for policy in POLICIES for word in ("--policy", policy)]
        described, _ = run_json("data", "describe", file, *options)
        fitted, _ = run_json("fit", file, "--out", warm, *options)
        estimated, noted = run_json("evaluate", file, *policies, "--beta", "0", *options)
        notes += noted.splitlines()
        state = load_warm(warm)
        sums = {part: getattr(state.sums, part)[: state.sums.users].tobytes() for part in ("gram", "moment", "counts")}
        for row in (described, fitted):
            row.pop("file", None), row.pop("out", None), row.pop("columns", None)
        found[name] = {"describe": described, "fit": fitted | {"users": state.users} | sums, "evaluate": estimated}
    return found, notes, world


def main() -> None:
    """Compare the files, and print which intervals hold the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found, notes, world = compare(options.lists, options.seed, options.folder or Path(scratch))
    for note in notes:
        print(note)
    for command in ("describe", "fit", "evaluate"):
        same = {name: found[name][command] == found["clean"][command] for name in found if name != "clean"}
        print(
            f"{command}: "
            + ", ".join(f"{name} {'equals' if is_same else 'DIFFERS FROM'} clean" for name, is_same in same.items())
        )
    truths = world.compute_truths()
    for row in found["clean"]["evaluate"]["estimates"]:
        print_row(row["policy"], row, truths[row["policy"]])
    for row in found["clean"]["evaluate"]["differences"]:
        print_row(f"{row['policy']} - {row['baseline']}", row, truths[row["policy"]] - truths[row["baseline"]])


def print_row(name: str, row: dict[str, Any], truth: float) -> None:
    """Print an estimate, its interval, and whether that holds the truth."""
    line = f"{name:21} {row['estimator']:11} {row['value']:+.4f}"
    if row["low"] is not None:
        verdict = "holds" if row["low"] <= truth <= row["high"] else "MISSES"
        line += f"  {row['low']:+.4f} to {row['high']:+.4f}  {verdict} {truth:+.4f}"
    print(line)


if __name__ == "__main__":
    main()
