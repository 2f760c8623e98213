"""A reader of logs in batches, with bounded memory, or in memory where a file is not in order of time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.data.logs.columns import (
    MORE,
    NAMED_LISTS,
    NEEDED,
    QUOTED,
    ROW,
    USUAL,
    BrokenRule,
    convert_column,
    find_broken_rules,
)
from fedcascade.data.logs.events import is_event_table, list_events
from fedcascade.data.logs.items import LARGEST_NORM, ItemTable, convert_items
from fedcascade.data.logs.writer import to_frame
from fedcascade.data.tables import find_roles, has_roles, list_columns, read_batches, read_table, scan_file
from fedcascade.learning.click_log import MISSING, ClickLog, concatenate
from fedcascade.numerics.grid import round_to_grid


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

    def number(self, names: pl.Series | Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each name; new names are added, or -1 if the numbering is closed."""
        names = names if isinstance(names, pl.Series) else pl.Series(list(names), dtype=pl.String)
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
MOST_CELLS = 1 << 23  # numbers in a batch: each list is padded to the longest


def cut_frame(frame: pl.DataFrame) -> Iterator[slice]:
    """Cut a batch where padding would make it larger than ``MOST_CELLS``."""
    widths = [frame[name].list.len().to_numpy() for name in ("items", "offered", "features") if name in frame.columns]
    cells = np.max(widths, axis=0).astype(np.int64)
    if len(frame) * int(cells.max()) <= MOST_CELLS:
        yield slice(0, len(frame))
        return
    start, widest = 0, 0
    for row, width in enumerate(cells.tolist()):
        widest = max(widest, width)
        if row > start and (row + 1 - start) * widest > MOST_CELLS:
            yield slice(start, row)
            start, widest = row, width
    yield slice(start, len(frame))


class Survey(NamedTuple):
    """Facts about a file, from one pass over it."""

    rows: int
    late: int = 0  # rows with an earlier time than some row above
    barred: frozenset[str] = frozenset()  # columns of lists in text that are split at bars, which a tenth of them have


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log in a file, read lazily and in order of time; users and items keep their numbers."""

    path: Path
    columns: tuple[str, ...]
    frame: pl.LazyFrame  # unread: a column for each role, and the number of the row
    kinds: Mapping[str, pl.DataType]  # types of these columns
    users: Names = field(default_factory=Names)
    items: Names = field(default_factory=Names)
    table: ItemTable | None = None
    unit: str = "row"  # of the numbers in errors
    has_numbered_users: bool = False  # whether user ids are integers
    skip_invalid: bool = False
    skipped: dict[str, tuple[int, str]] = field(default_factory=dict)  # by rule: how many rows, and the first

    @cached_property
    def survey(self) -> Survey:
        """The count of all rows and of those out of order of time, and the lists in text that are split at bars."""
        texts = [role for role in NAMED_LISTS if self.kinds.get(role) == pl.String]
        wanted = {role: pl.col(role).str.replace_all(QUOTED, "").str.contains("|", literal=True) for role in texts}
        has_time = "time" in self.kinds
        if has_time:
            wanted["time"] = convert_column("time", self.kinds["time"])
        if not wanted:
            return Survey(sum(int(batch.item()) for batch in read_batches(self.frame.select(pl.len()), self.path, 1)))
        rows, late, latest, barred = 0, 0, -np.inf, Counter[str]()
        for batch in read_batches(self.frame.select(**wanted), self.path, BATCH):
            rows += len(batch)
            barred.update({role: int(batch[role].sum()) for role in texts})
            if has_time and len(batch):
                times = batch["time"].cast(pl.Float64).fill_null(np.nan).to_numpy()
                newest = np.fmax.accumulate(np.append(latest, times))
                late, latest = late + int((times < newest[:-1]).sum()), newest[-1]
        return Survey(rows, late, frozenset(role for role in texts if barred[role] > rows / 10))

    def count(self) -> int:
        """Return the number of lists."""
        return sum(map(len, self._read_valid(BATCH))) if self.skip_invalid else self.survey.rows

    def batches(self, rows: int = BATCH) -> Iterator[ClickLog]:
        """Yield the log from its beginning, ``rows`` lists at a time, fewer where a long list pads others."""
        count = 0
        for frame in cut_evenly(self._read_valid(rows), rows):
            count += len(frame)
            yield from (self._convert(frame[part]) for part in cut_frame(frame))
        left = f" that can be read: {self.list_notes()[-1]}" if self.skipped else ""
        require(count > 0, f"{self.path} holds no lists{left}")

    def read(self) -> ClickLog:
        """Return the whole log in memory."""
        return concatenate(list(self.batches()))

    def list_notes(self) -> list[str]:
        """Return sentences about order and skipped rows, after the log was read to its end."""
        notes = []
        if (survey := self.survey).late:
            late = f"{survey.late:,} of {survey.rows:,} {self.unit}s were late"
            notes.append(f"{self.path} is not in order of time: it was sorted ({late})")
        counts = sorted(self.skipped.values(), reverse=True)
        return notes + [f"skipped {count:,} {self.unit}s such as {first}" for count, first in counts]

    def _read_valid(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the valid rows of each batch; raise for others, or skip them."""
        self.skipped.clear()
        dimension, allowed = None, self.items if self.items.closed else None
        converted = [
            convert_column(role, kind, has_bars=role in self.survey.barred).alias(role)
            for role, kind in self.kinds.items()
        ]
        time = [convert_column("time", self.kinds["time"])] if self.survey.late else []
        ordered = self.frame.sort(time, nulls_last=True, maintain_order=True) if time else self.frame
        for raw in read_batches(ordered, self.path, rows):
            frame = raw.select(converted)
            frame, numbers = self._remove(frame, raw[ROW].to_numpy(), find_broken_rules(frame, raw, allowed))
            if "features" in self.columns and len(frame):
                sizes = frame.select(pl.col("features", "offered" if "offered" in self.columns else "items").list.len())
                dimension = sizes["features"][0] // sizes[0, -1] if dimension is None else dimension
                frame, numbers = self._remove(
                    frame, numbers, find_broken_features(frame, sizes.to_numpy().T, dimension)
                )
            if len(frame):
                yield frame

    def _remove(
        self, frame: pl.DataFrame, numbers: NDArray[np.int64], broken: Sequence[BrokenRule]
    ) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        """Remove and count rows that break a rule; raise for the first of them unless they are skipped."""
        if not broken:
            return frame, numbers
        if not self.skip_invalid:
            worst = min(broken, key=lambda rule: int(numbers[rule.rows[0]]))
            raise ValueError(f"{self.path}, {self.unit} {numbers[worst.rows[0]]}, {worst.describe()}")
        kept = np.ones(len(frame), bool)
        for rule in broken:
            kept[rule.rows] = False
            key = f"{rule.column}: {rule.words}"
            count, first = self.skipped.get(key, (0, f"{self.unit} {numbers[rule.rows[0]]}, {rule.describe()}"))
            self.skipped[key] = count + rule.rows.size, first
        return frame.filter(pl.Series(kept)), numbers[kept]

    def _convert(self, frame: pl.DataFrame) -> ClickLog:
        lengths = frame["items"].list.len().to_numpy().astype(np.int64)
        items = _fill(self.items.number(frame["items"].explode()), lengths, MISSING)
        columns: dict[str, Any] = {
            "users": self.users.number(frame["user"]),
            "items": items,
            "clicks": _mark_clicks(frame["clicks"], items.shape),
        }
        if "rewards" in frame.columns:
            columns["rewards"] = _place_rewards(frame["clicks"], frame["rewards"], items.shape)
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
            columns["offered"] = _fill(self.items.number(frame["offered"].explode()), lengths, MISSING)
        if "features" in frame.columns:
            rounded = round_to_grid(frame["features"].explode().to_numpy().reshape(int(lengths.sum()), -1))
            columns["features"] = np.stack([_fill(column, lengths, 0.0) for column in rounded.T], axis=2)
        return ClickLog(**columns)


def cut_evenly(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """Cut tables into tables of ``rows`` rows, so that skipped rows do not change the order of additions."""
    rest: pl.DataFrame | None = None
    for frame in frames:
        rest = frame if rest is None else pl.concat([rest, frame])
        while len(rest) >= rows:
            yield rest[:rows]
            rest = rest[rows:]
    if rest is not None and len(rest):
        yield rest


def slice_rows(batches: Iterable[ClickLog], start: int = 0, stop: int | None = None) -> Iterator[tuple[int, ClickLog]]:
    """Yield the rows of batches from ``start`` up to ``stop``, each batch with the number of its first row."""
    row = 0
    for batch in batches:
        begin, end = max(0, start - row), len(batch) if stop is None else min(len(batch), stop - row)
        if begin < end:
            yield row + begin, batch.select(slice(begin, end))
        row += len(batch)
        if stop is not None and row >= stop:
            return


def find_broken_features(frame: pl.DataFrame, sizes: NDArray[np.int64], d: int) -> list[BrokenRule]:
    """Find the rows whose features are not d numbers per item with a norm of at most 1.

    ``sizes`` are the numbers of features and of items of each row.
    """
    counts, items = sizes.astype(np.int64)
    fits = counts == d * items
    numbers = frame["features"].filter(pl.Series(fits)).explode().to_numpy().reshape(-1, d)
    norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
    odd, bad = np.flatnonzero(~fits), np.flatnonzero(~(norms <= LARGEST_NORM))
    found = []
    if odd.size:
        found.append(BrokenRule("features", f"must hold {d} numbers per item", odd, counts[odd[0]] / items[odd[0]]))
    if bad.size:
        rows = np.unique(np.repeat(np.flatnonzero(fits), items[fits])[bad])
        found.append(BrokenRule("features", "must be finite with norm <= 1", rows, f"norm {norms[bad[0]]:.6g}"))
    return found


def read_log(
    path: str | PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    items: ItemTable | None = None,
    skip_invalid: bool = False,
) -> Log:
    """Open a log: CSV, TSV, JSON lines or Parquet, also with .gz or .zst.

    Args:
        path: the file. Its rows are lists, or events: one row per shown item, with a column of requests.
        columns: names of columns without a usual name, by role: ``{"items": "shown"}``.
        items: the table of items with their features; the log may then contain only these items.
        skip_invalid: skip rows that break a rule, and count them in ``Log.skipped``, instead of raising an error.
    """
    file = Path(path)
    frame = scan_file(file, more=MORE if skip_invalid else None)
    return open_frame(frame, file, columns=columns, items=items, skip_invalid=skip_invalid)


def open_log(log: Any, *, columns: Mapping[str, str] | None = None, items: Any = None) -> Log:
    """Open a log from a path, a table of pandas or polars, a mapping of columns, or a ``ClickLog``; keep a ``Log``.

    ``items`` are the features of items, as a table, a path or an array with a row for each of items 0, 1, 2, ...
    """
    if isinstance(log, Log):
        require(items is None, "items must be given to read_log, with the log")
        return log
    table = None if items is None else convert_items(items)
    if isinstance(log, str | PathLike):
        return read_log(log, columns=columns, items=table)
    frame = to_frame(log) if isinstance(log, ClickLog) else read_table(log, "log")
    return open_frame(frame.lazy(), Path("log"), columns=columns, items=table)


def has_log_columns(names: Sequence[str]) -> bool:
    """Return whether a file with these columns is a log of lists, or a table of events."""
    return has_roles(names, USUAL, NEEDED) or is_event_table(names, {})


def open_frame(
    frame: pl.LazyFrame,
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    items: ItemTable | None = None,
    skip_invalid: bool = False,
) -> Log:
    """Open a log in a table; ``path`` is its name in errors. Other arguments are those of ``read_log``."""
    names, unit = list_columns(frame, path), "row"
    if is_event_table(names, columns or {}):
        frame, columns, unit = list_events(frame, path, columns or {}), {}, "request"
        names = list_columns(frame, path)
    more = [MORE] if MORE in names else []
    known = [name for name in names if name != MORE]
    roles = find_roles(known, USUAL, path, chosen=columns or {}, needed=NEEDED)
    chosen = frame.select(*more, **{role: pl.col(name) for role, name in roles.items()})
    chosen = chosen.filter(~pl.all_horizontal(pl.all().is_null())).with_row_index(ROW, 1)  # without empty lines
    kinds = {role: kind for role, kind in list_columns(chosen, path).items() if role in roles}

    return Log(
        path=path,
        columns=tuple(roles),
        frame=chosen,
        kinds=kinds,
        items=Names() if items is None else Names(items.names, closed=True),
        table=items,
        unit=unit,
        has_numbered_users=kinds["user"].is_integer(),
        skip_invalid=skip_invalid,
    )


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


def _place_rewards(clicks: pl.Series, rewards: pl.Series, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the reward of each position: that of its click, an equal part of the list's, or 1 if none is given."""
    placed = np.zeros(shape)
    pairs = zip(clicks.to_list(), rewards.to_list(), strict=True)
    for row, (positions, values) in enumerate(pairs):
        if positions:
            shared = [value / len(positions) for value in values] if len(values) == 1 else values or 1.0
            placed[row, positions] = shared
    return placed
