"""The table of items: a name and features for each."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.data.tables import is_table, list_columns, read_batches, read_table, scan_file
from fedcascade.numerics.grid import round_to_grid

USUAL_NAMES = ("item", "item_id", "itemId", "video_id", "playlist_id", "id")
LARGEST_NORM = 1.0 + 1e-6
ADVICE = "; --normalise, or normalise=True, divides each row by its norm"


@dataclass(frozen=True, eq=False)
class ItemTable:
    """The names of items and their features, one row each, of norm at most 1 and on the grid."""

    names: tuple[str, ...]
    features: NDArray[np.float32]

    @property
    def dimension(self) -> int:
        return int(self.features.shape[1])


def read_items(path: str | PathLike[str], *, column: str | None = None, normalise: bool = False) -> ItemTable:
    """Read a table with a column of names and a number in each other column.

    A table without a column of names, such as Deezer's ``playlist_features.csv``, names items by their row, from 0 on.

    Args:
        path: CSV, TSV, JSON lines or Parquet, also with .gz or .zst.
        column: the column of names; None tries the usual ones.
        normalise: divide each row by its length, so that all have norm 1; else a longer one than 1 is refused.
    """
    file = Path(path)
    frame = scan_file(file)
    list_columns(frame, file)  # refuses what cannot be read
    return make_item_table(pl.concat(read_batches(frame, file, 1 << 16)), file, column=column, normalise=normalise)


def make_item_table(
    table: pl.DataFrame, path: Path, *, column: str | None = None, normalise: bool = False
) -> ItemTable:
    """The table of items that a table in memory holds; ``path`` is what refusals call it. Others as ``read_items``."""
    columns = table.columns
    named = next((name for name in columns if name.strip() in ((column,) if column else USUAL_NAMES)), None)
    require(named is not None or column is None, f"{path} has no column {column}: it has {', '.join(columns)}")
    others = [name for name in columns if name != named]
    require(len(others) > 0, f"{path} has no column of features beside the names of items")
    numbers = np.empty((len(table), len(others)))
    for place, name in enumerate(others):
        values = table[name].cast(pl.Float64, strict=False).to_numpy()
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            got = table[name][int(bad[0])]
            raise ValueError(f"{path}, row {bad[0] + 1}, column {name.strip()}: must be a number, got {got}")
        numbers[:, place] = values
    names = [str(row) for row in range(len(table))] if named is None else table[named].cast(pl.String).to_list()
    twice = next((row for row, is_twice in enumerate(pl.Series(names).is_first_distinct()) if not is_twice), None)
    if twice is not None:
        raise ValueError(f"{path}, row {twice + 1}, column {named}: names {names[twice]} for the second time")
    if normalise:
        numbers /= np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-12)
    return ItemTable(tuple(names), check_features(numbers, lambda row: f"{path}, row {row + 1}", ADVICE))


def convert_items(items: Any, *, normalise: bool = False) -> ItemTable:
    """The table of items that somebody gives: one of these, a path, a table of any library, or an array of features.

    Rows of an array are the items 0, 1, 2, ...
    """
    if isinstance(items, ItemTable):
        return items
    if isinstance(items, str | PathLike):
        return read_items(items, normalise=normalise)
    if is_table(items):
        return make_item_table(read_table(items, "items"), Path("items"), normalise=normalise)
    features = convert_features(items, normalise=normalise)
    return ItemTable(tuple(map(str, range(len(features)))), features)


def convert_features(items: ArrayLike, *, normalise: bool = False) -> NDArray[np.float32]:
    """The features that an array holds, a row for each item, rounded to the grid."""
    numbers = np.asarray(items, np.float64)
    is_matrix = numbers.ndim == 2 and numbers.size > 0
    require(is_matrix, f"features must be a row of numbers for each item, got the shape {numbers.shape}")
    if normalise:
        numbers = numbers / np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-12)
    return check_features(numbers, lambda row: f"items, row {row + 1}", ADVICE)


def join_tables(known: ItemTable | None, given: ItemTable | None) -> ItemTable | None:
    """The items of two tables; an item that is in both with different features is refused."""
    if known is None or given is None:
        return given or known
    places = {name: place for place, name in enumerate(known.names)}
    fits = known.dimension == given.dimension
    require(fits, f"items must have {known.dimension} features, as those that are known, got {given.dimension}")
    for name, row in zip(given.names, given.features, strict=True):
        same = name not in places or np.array_equal(known.features[places[name]], row)
        require(same, f"item {name} is known with other features: name it otherwise, or fit anew")
    new = [place for place, name in enumerate(given.names) if name not in places]
    names = (*known.names, *(given.names[place] for place in new))
    return ItemTable(names, np.vstack([known.features, given.features[new]]))


def check_features(numbers: NDArray[np.float64], locate: Callable[[int], str], advice: str = "") -> NDArray[np.float32]:
    """Features rounded to the grid; a row that is not finite or longer than 1 is refused."""
    norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
    bad = np.flatnonzero(~(norms <= LARGEST_NORM))
    if bad.size:
        row = int(bad[0])
        raise ValueError(f"{locate(row)}: features must be finite with norm <= 1, got norm {norms[row]:.6g}{advice}")
    return round_to_grid(numbers)
