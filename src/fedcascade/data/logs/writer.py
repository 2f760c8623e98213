"""A writer of logs in batches: CSV, JSON lines or Parquet, by the ending of the file's name."""

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.click_log import MISSING, ClickLog

ENDINGS = (".parquet", ".csv", ".jsonl")


def check_log_path(path: Path) -> None:
    """Reject a path to which no log can be written."""
    require(path.suffix in ENDINGS, f"{path} must end in one of {', '.join(ENDINGS)}")
    require(path.parent.is_dir(), f"there is no folder {path.parent}")


def write_log(
    path: str | PathLike[str],
    log: ClickLog | Iterable[ClickLog],
    *,
    users: Iterable[str] | None = None,
    items: Iterable[str] | None = None,
) -> int:
    """Write a log, or its batches one by one, and return the number of lists; a file appears only if all is written.

    ``users`` and ``items`` are names, which may grow between batches; without them, numbers are written.
    """
    file, lists, parts = Path(path), 0, list[Path]()
    check_log_path(file)
    with TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as folder:
        for batch in [log] if isinstance(log, ClickLog) else log:
            parts.append(Path(folder, f"{len(parts)}.parquet"))
            to_frame(batch, users=users, items=items).write_parquet(parts[-1])
            lists += len(batch)
        require(len(parts) > 0, f"{file} is not written: there are no lists")
        draft = Path(folder, "draft")
        SINKS[file.suffix](pl.scan_parquet(parts), draft)
        draft.replace(file)
    return lists


def to_frame(log: ClickLog, *, users: Iterable[str] | None = None, items: Iterable[str] | None = None) -> pl.DataFrame:
    """Return a log as a table with the columns of the format."""
    shown = log.items != MISSING
    columns: dict[str, pl.Series | NDArray[np.generic]] = {}
    if log.times is not None:
        columns["time"] = log.times
    columns["user"] = log.users if users is None else np.asarray(list(users), object)[log.users].astype(str)
    columns["items"] = _name_lists(log.items, items)
    positions = np.broadcast_to(np.arange(log.items.shape[1]), log.items.shape)
    columns["clicks"] = _make_lists(positions, log.clicks)
    if log.rewards is not None:
        columns["rewards"] = _make_lists(log.rewards, log.clicks)
    if log.looked is not None:
        columns["looked"] = pl.Series(log.looked).replace(MISSING, None)
    if log.propensity is not None:
        columns["propensity"] = log.propensity
    if log.propensities is not None:
        columns["propensities"] = _make_lists(log.propensities, shown)
    if log.offered is not None:
        columns["offered"] = _name_lists(log.offered, items)
    if log.features is not None:
        mask = shown if log.offered is None else log.offered != MISSING
        wide = np.repeat(mask, log.features.shape[2], axis=1)
        columns["features"] = _make_lists(log.features.reshape(len(log), -1), wide)
    return pl.DataFrame(columns)


def _name_lists(numbers: NDArray[np.int64], names: Iterable[str] | None) -> pl.Series:
    mask = numbers != MISSING
    if names is None:
        return _make_lists(numbers, mask)
    return _make_lists(np.asarray(list(names), object)[np.where(mask, numbers, 0)].astype(str), mask)


def _make_lists(values: NDArray[np.generic], mask: NDArray[np.bool_]) -> pl.Series:
    """Return a column of lists with the masked values of each row."""
    ends = np.cumsum(mask.sum(axis=1))
    flat = pl.Series(np.ascontiguousarray(values[mask]))
    rows = pl.Series(np.repeat(np.arange(len(mask)), mask.sum(axis=1)))
    grouped = pl.DataFrame({"row": rows, "value": flat}).group_by("row", maintain_order=True).agg("value")
    every = pl.DataFrame({"row": np.arange(ends.size)}).join(grouped, on="row", how="left", maintain_order="left")
    empty = pl.lit([], dtype=grouped.schema["value"])
    return every.select(pl.when(pl.col("value").is_null()).then(empty).otherwise(pl.col("value")))["literal"]


def _join_lists(frame: pl.LazyFrame) -> pl.LazyFrame:
    lists = [name for name, kind in frame.collect_schema().items() if isinstance(kind, pl.List)]
    quoted = (
        pl.when(pl.element().str.contains(r"[\s,;|\[\]()']")).then('"' + pl.element() + '"').otherwise(pl.element())
    )
    return frame.with_columns(pl.col(name).cast(pl.List(pl.String)).list.eval(quoted).list.join(" ") for name in lists)


SINKS: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
    ".parquet": lambda frame, path: frame.sink_parquet(path),
    ".csv": lambda frame, path: _join_lists(frame).sink_csv(path),
    ".jsonl": lambda frame, path: frame.sink_ndjson(path),
}
