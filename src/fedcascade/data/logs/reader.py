"""A reader of logs in batches, with bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require, require_known
from fedcascade.data.logs.columns import check_rows, convert_column, find_log_columns
from fedcascade.data.logs.items import ItemTable, check_features
from fedcascade.data.logs.published import PUBLISHED
from fedcascade.data.tables import list_columns, read_batches, scan_file
from fedcascade.learning.click_log import MISSING, ClickLog, concatenate


class Names:
    """A numbering of names, which grows with new names unless it is closed.

    >>> names = Names()
    >>> names.number(pl.Series(["b", "a", "b"])).tolist(), list(names)
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self, names: Iterable[str] = (), *, closed: bool = False) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}
        self.closed = closed

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def find(self, name: str) -> int | None:
        """Return the number of a name, or None."""
        return self._numbers.get(name)

    def number_all(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each name; number new names in order."""
        return np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], np.int64)

    def number(self, names: pl.Series) -> NDArray[np.int64]:
        """Return the number of each name; new names are added, or -1 if the numbering is closed."""
        seen = names.unique(maintain_order=True)
        known = self._numbers
        if self.closed:
            numbers = [known.get(name, -1) for name in seen.to_list()]
        else:
            numbers = [known.setdefault(name, len(known)) for name in seen.to_list()]
        table = pl.DataFrame({"name": seen, "number": pl.Series(numbers, dtype=pl.Int64)})
        joined = names.to_frame("name").join(table, on="name", how="left", maintain_order="left", nulls_equal=True)
        return joined["number"].to_numpy()


BATCH = 100_000  # lists


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log in a file, read lazily; users and items keep their numbers."""

    path: Path
    columns: tuple[str, ...]
    frames: Callable[[int], Iterator[tuple[pl.DataFrame, pl.DataFrame]]]  # converted and raw, given the batch size
    users: Names = field(default_factory=Names)
    items: Names = field(default_factory=Names)
    table: ItemTable | None = None
    count_rows: Callable[[], int] | None = None  # without reading rows; None if that is not possible

    def count(self) -> int:
        """Return the number of lists."""
        return self.count_rows() if self.count_rows else sum(len(frame) for frame, _ in self.frames(1 << 20))

    def batches(self, rows: int = BATCH) -> Iterator[ClickLog]:
        """Yield the log from its beginning, about ``rows`` lists at a time."""
        first = 0
        for frame, raw in self.frames(rows):
            if len(frame):
                check_rows(frame, raw, self.path, first)
                yield self._convert(frame, first)
            first += len(frame)
        require(first > 0, f"{self.path} holds no lists")

    def read(self) -> ClickLog:
        """Return the whole log in memory."""
        return concatenate(list(self.batches()))

    def _convert(self, frame: pl.DataFrame, first: int) -> ClickLog:
        lengths = frame["items"].list.len().to_numpy().astype(np.int64)
        items = _fill(self._number_items(frame, "items", first), lengths, MISSING)
        columns: dict[str, Any] = {
            "users": self.users.number(frame["user"]),
            "items": items,
            "clicks": _mark_clicks(frame["clicks"], items.shape),
        }
        if "time" in frame.columns:
            columns["times"] = frame["time"].to_numpy()
        if "looked" in frame.columns:
            columns["looked"] = frame["looked"].fill_null(MISSING).to_numpy()
        if "propensity" in frame.columns:
            columns["propensity"] = frame["propensity"].to_numpy()
        if "propensities" in frame.columns:
            columns["propensities"] = _fill(frame["propensities"].explode().to_numpy(), lengths, 1.0)
        if "offered" in frame.columns:
            lengths = frame["offered"].list.len().to_numpy().astype(np.int64)
            columns["offered"] = _fill(self._number_items(frame, "offered", first), lengths, MISSING)
        if "features" in frame.columns:
            columns["features"] = self._fill_features(frame, lengths, first)
        return ClickLog(**columns)

    def _number_items(self, frame: pl.DataFrame, column: str, first: int) -> NDArray[np.int64]:
        names = frame[column].explode()
        numbers = self.items.number(names)
        unknown = np.flatnonzero(numbers < 0)
        if unknown.size:
            ends = np.cumsum(frame[column].list.len().to_numpy())
            row = first + int(np.searchsorted(ends, unknown[0], side="right")) + 1
            name = names[int(unknown[0])]
            raise ValueError(f"{self.path}, row {row}, column {column}: item {name} is not in the table of items")
        return numbers

    def _fill_features(self, frame: pl.DataFrame, lengths: NDArray[np.int64], first: int) -> NDArray[np.float32]:
        sizes = frame["features"].list.len().to_numpy().astype(np.int64)
        d = int(sizes[0] // lengths[0])
        odd = np.flatnonzero(sizes != d * lengths)
        if odd.size:
            row, got = first + int(odd[0]) + 1, sizes[odd[0]] / lengths[odd[0]]
            raise ValueError(f"{self.path}, row {row}, column features: must hold {d} numbers per item, got {got:g}")
        flat = frame["features"].explode().to_numpy().reshape(-1, d)
        rows = np.repeat(np.arange(first + 1, first + 1 + len(frame)), lengths)
        rounded = check_features(flat, lambda place: f"{self.path}, row {rows[place]}, column features")
        return np.stack([_fill(rounded[:, k], lengths, 0.0) for k in range(d)], axis=2)


def read_log(
    path: str | PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    form: str | None = None,
    items: ItemTable | None = None,
) -> Log:
    """Open a log: CSV, TSV, JSON lines or Parquet, also with .gz or .zst, or a published dataset.

    Args:
        path: the file.
        columns: names of columns without a usual name, by role: ``{"items": "shown"}``.
        form: a key of ``PUBLISHED``, for a published format.
        items: the table of items with their features; the log may then contain only these items.
    """
    file = Path(path)
    if form is not None:
        names = Names() if items is None else Names(items.names, closed=True)
        require_known("format of a log", form, PUBLISHED)
        require(not columns, "columns cannot be named for published formats")
        reader = PUBLISHED[form]
        return Log(
            path=file,
            columns=reader.columns,
            frames=lambda rows: ((batch, batch) for batch in reader.read(file, rows)),
            items=names,
            table=items,
        )
    return open_frame(scan_file(file), file, columns=columns, items=items)


def open_frame(
    frame: pl.LazyFrame, path: Path, *, columns: Mapping[str, str] | None = None, items: ItemTable | None = None
) -> Log:
    """Open a log in a table; ``path`` is its name in errors. Other arguments are those of ``read_log``."""
    names = Names() if items is None else Names(items.names, closed=True)
    roles = find_log_columns(list(list_columns(frame, path)), columns or {}, path)
    chosen = frame.select(**{role: pl.col(name) for role, name in roles.items()})
    kinds = list_columns(chosen, path)
    has_content = ~pl.all_horizontal(pl.all().is_null())  # false for an empty line
    converting = [convert_column(role, kind).alias(role) for role, kind in kinds.items()]

    def read_frames(rows: int) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        for raw in read_batches(chosen, path, rows):
            filled = raw.filter(has_content)
            yield filled.select(converting), filled

    def count_rows() -> int:
        return sum(int(batch.item()) for batch in read_batches(chosen.filter(has_content).select(pl.len()), path, 1))

    found = tuple(roles)
    return Log(path=path, columns=found, frames=read_frames, items=names, table=items, count_rows=count_rows)


def read_history(log: Log, user: str) -> ClickLog:
    """Return all lists of one user of a log."""
    lists = []
    for batch in log.batches():
        number = log.users.find(user)
        if number is not None:
            lists.append(batch.select(batch.users == number))
    require(sum(map(len, lists)) > 0, f"{log.path} holds no list of user {user}")
    return concatenate(lists)


def _fill(values: NDArray[np.generic], lengths: NDArray[np.int64], filling: float) -> NDArray[np.generic]:
    """Return a matrix with one row per list, from the concatenated values of all lists."""
    width = int(lengths.max(initial=0))
    matrix = np.full((lengths.size, width), filling, values.dtype)
    matrix[np.arange(width) < lengths[:, None]] = values
    return matrix


def _mark_clicks(clicks: pl.Series, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    marks = np.zeros(shape, bool)
    counts = clicks.list.len().to_numpy()
    rows = np.repeat(np.arange(shape[0]), counts)
    marks[rows, clicks.explode().drop_nulls().to_numpy()] = True
    return marks
