"""Write published logs of lists as Parquet, from files that you have downloaded.

Usage: python examples/published_logs.py FORMAT FILE log.parquet

FORMAT is yandex (relevance prediction: a list per query, a user per session), open-bandit (Open Bandit Dataset: lists
of one item, with propensities) or finn (FINN.no slates, data.npz: lists up to where the user scrolled). KuaiRand needs
no conversion: its files are tables of events.
"""

import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require, require_known
from fedcascade.data.logs.columns import TYPES
from fedcascade.data.tables import list_columns, open_text, read_batches, scan_file

Frames = Iterator[pl.DataFrame]


BATCH = 100_000  # lists
SHOWN = ("time", "user", "items", "clicks")


def read_yandex(path: Path, rows: int) -> Frames:
    """Read Yandex's log of relevance prediction: queries with ten URLs, and clicks; each session is a user."""
    rounds: list[dict[str, Any]] = []
    session, begun = "", 0
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip("\r\n").split("\t")
            good = len(fields) > 3 and fields[2] in ("Q", "C") and (fields[2] == "C" or len(fields) > 5)
            forms = "a query (SESSION TIME Q QUERY REGION URLs) or a click (SESSION TIME C URL)"
            require(good, f"{path}, line {number} must be {forms}, separated by tabs")
            if fields[0] != session:
                if begun >= rows:
                    yield _make_frame(rounds)
                    rounds, begun = [], 0
                session, begin = fields[0], len(rounds)
            if fields[2] == "Q":
                urls = list(dict.fromkeys(fields[5:]))
                rounds.append({"time": float(fields[1]), "user": session, "items": urls, "clicks": []})
                begun += 1
            else:  # the last query of the session that showed this URL
                shown = next((row for row in reversed(rounds[begin:]) if fields[3] in row["items"]), None)
                if shown is not None:
                    position = shown["items"].index(fields[3])
                    if position not in shown["clicks"]:
                        shown["clicks"].append(position)
    if rounds:
        yield _make_frame(rounds)


def _make_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={column: TYPES[column] for column in SHOWN})


def read_open_bandit(path: Path, rows: int) -> Frames:
    """Read the Open Bandit Dataset: one item per row with its propensity; equal features count as one user."""
    frame = scan_file(path)
    names = _find_named(frame, path, ("timestamp", "item_id", "click", "propensity_score"))
    traits = sorted(name for name in names if name.startswith("user_feature_"))
    user = pl.concat_str([pl.col(name) for name in traits], separator=" ") if traits else pl.lit("all")
    day = pl.col("timestamp").cast(pl.String).str.to_datetime(strict=False, time_zone="UTC", time_unit="us")
    none, first = (pl.lit(value, dtype=pl.List(pl.Int64)) for value in ([], [0]))
    is_clicked = pl.col("click").cast(pl.Float64, strict=False)
    columns = {
        "time": day.dt.epoch("us") / 1e6,
        "user": user,
        "items": pl.concat_list(pl.col("item_id").cast(pl.String)),
        "clicks": pl.when(is_clicked == 1).then(first).when(is_clicked == 0).then(none),
        "looked": pl.lit(1, pl.Int64),
        "propensity": pl.col("propensity_score").cast(pl.Float64, strict=False),
    }
    return read_batches(frame.select(**columns), path, rows)


def _find_named(frame: pl.LazyFrame, path: Path, needed: tuple[str, ...]) -> list[str]:
    names = list(list_columns(frame, path))
    for name in needed:
        require(name in names, f"{path} has no column {name}: it has {', '.join(names)}")
    return names


def read_finn(path: Path, rows: int) -> Frames:
    """Read ``data.npz`` of FINN.no's slates: up to 20 lists per user; entry 0 of a slate means 'no click'."""
    needed = ("userId", "click_idx", "slate_lengths", "slate")
    try:
        with zipfile.ZipFile(path) as packed:
            members = {name.removesuffix(".npy") for name in packed.namelist()}
            for name in needed:
                require(name in members, f"{path} has no array {name}: it has {', '.join(sorted(members))}")
            streams = [_read_rows(packed.open(f"{name}.npy"), max(1, rows // 20)) for name in needed]
            for users, clicked, lengths, slates in zip(*streams, strict=True):
                yield _unroll(users, clicked, lengths, slates)
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _read_rows(file: Any, rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of an array in a .npy file in batches."""
    stream: BinaryIO = file
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, kind = read_header(stream)
    require(not is_fortran, "arrays must be stored row by row")
    size = int(np.prod(shape[1:])) * kind.itemsize
    for start in range(0, shape[0], rows):
        count = min(rows, shape[0] - start)
        yield np.frombuffer(stream.read(count * size), kind).reshape(count, *shape[1:]).astype(np.int64)


def _unroll(
    users: NDArray[np.int64], clicked: NDArray[np.int64], lengths: NDArray[np.int64], slates: NDArray[np.int64]
) -> pl.DataFrame:
    rows, step = np.nonzero(lengths > 1)  # others are padding, or slates with 'no click' only
    positions = np.arange(1, slates.shape[2])
    shown = positions < lengths[rows, step][:, None]
    items = [row[mask].tolist() for row, mask in zip(slates[rows, step, 1:], shown, strict=True)]
    clicks = [[int(place) - 1] if place > 0 else [] for place in clicked[rows, step]]
    columns = {
        "user": users[rows].astype(str),
        "items": pl.Series(items, dtype=pl.List(pl.Int64)).cast(pl.List(pl.String)),
        "clicks": pl.Series(clicks, dtype=pl.List(pl.Int64)),
        "looked": (lengths[rows, step] - 1).tolist(),
    }
    return pl.DataFrame(columns)


READERS: dict[str, Callable[[Path, int], Frames]] = {
    "yandex": read_yandex,
    "open-bandit": read_open_bandit,
    "finn": read_finn,
}


def convert(form: str, path: Path, out: Path) -> None:
    """Write a published log as one that fedcascade reads, with bounded memory."""
    require_known("format of a log", form, READERS)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        for number, frame in enumerate(READERS[form](path, BATCH)):
            frame.write_parquet(f"{folder}/{number:06}.parquet")
        pl.scan_parquet(f"{folder}/*.parquet").sink_parquet(out)


if __name__ == "__main__":
    convert(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
