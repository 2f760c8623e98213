"""Tables of items with names and features."""

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
    """Names and features of items; rows of features have norm at most 1 and are on the grid."""

    names: tuple[str, ...]
    features: NDArray[np.float32]
    has_numbers: bool = False  # whether names stand for integers

    @property
    def dimension(self) -> int:
        return int(self.features.shape[1])


def read_items(path: str | PathLike[str], *, normalise: bool = False) -> ItemTable:
    """Read a table with a column of names and columns of numbers; without names, items are 0, 1, 2, ...

    Args:
        path: CSV, TSV, JSON lines or Parquet, also with .gz or .zst.
        normalise: divide each row by its norm; otherwise norms above 1 are rejected.
    """
    file = Path(path)
    frame = scan_file(file)
    list_columns(frame, file)  # rejects unreadable files
    return make_item_table(pl.concat(read_batches(frame, file, 1 << 16)), file, normalise=normalise)


def make_item_table(table: pl.DataFrame, path: Path, *, normalise: bool = False) -> ItemTable:
    """Make a table of items from a table in memory; ``path`` is its name in errors."""
    named = next((name for name in table.columns if name.strip() in USUAL_NAMES), None)
    others = [name for name in table.columns if name != named]
    require(len(others) > 0, f"{path} has no column of features beside the names of items")
    numbers = table[others].cast(pl.Float64, strict=False).to_numpy(order="c")
    for column, row in np.argwhere(~np.isfinite(numbers.T))[:1].tolist():
        name, got = others[column].strip(), table[others[column]][row]
        raise ValueError(f"{path}, row {row + 1}, column {name}: must be a number, got {got}")
    names = [str(row) for row in range(len(table))] if named is None else table[named].cast(pl.String).to_list()
    twice = next((row for row, is_twice in enumerate(pl.Series(names).is_first_distinct()) if not is_twice), None)
    if twice is not None:
        raise ValueError(f"{path}, row {twice + 1}, column {named}: {names[twice]} is repeated")
    features = convert_features(numbers, normalise=normalise, name=str(path))
    return ItemTable(tuple(names), features, named is None or table[named].dtype.is_integer())


def convert_items(items: Any, *, normalise: bool = False) -> ItemTable:
    """Return a table of items from a table, a path, a data frame, or an array of features of items 0, 1, 2, ..."""
    if isinstance(items, ItemTable):
        return items
    if isinstance(items, str | PathLike):
        return read_items(items, normalise=normalise)
    if is_table(items):
        return make_item_table(read_table(items, "items"), Path("items"), normalise=normalise)
    features = convert_features(items, normalise=normalise)
    return ItemTable(tuple(map(str, range(len(features)))), features, has_numbers=True)


def convert_features(items: ArrayLike, *, normalise: bool = False, name: str = "items") -> NDArray[np.float32]:
    """Return the features in an array, one row per item, rounded to the grid; ``name`` is used in errors."""
    numbers = np.asarray(items, np.float64)
    is_matrix = numbers.ndim == 2 and numbers.size > 0
    require(is_matrix, f"features must be a row of numbers for each item, got the shape {numbers.shape}")
    if normalise:
        numbers = numbers / np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-12)
    return check_features(numbers, lambda row: f"{name}, row {row + 1}", ADVICE)


def join_tables(known: ItemTable | None, given: ItemTable | None) -> ItemTable | None:
    """Join two tables of items; reject an item with different features in both."""
    if known is None or given is None:
        return given or known
    places = {name: place for place, name in enumerate(known.names)}
    fits = known.dimension == given.dimension
    require(fits, f"items must have {known.dimension} features, as known items have, got {given.dimension}")
    for name, row in zip(given.names, given.features, strict=True):
        same = name not in places or np.array_equal(known.features[places[name]], row)
        require(same, f"item {name} is known with other features: rename it, or refit")
    new = [place for place, name in enumerate(given.names) if name not in places]
    names = (*known.names, *(given.names[place] for place in new))
    has_numbers = known.has_numbers and given.has_numbers
    return ItemTable(names, np.vstack([known.features, given.features[new]]), has_numbers)


def check_features(numbers: NDArray[np.float64], locate: Callable[[int], str], advice: str = "") -> NDArray[np.float32]:
    """Round features to the grid; reject rows that are not finite or have a norm above 1."""
    norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
    bad = np.flatnonzero(~(norms <= LARGEST_NORM))
    if bad.size:
        row = int(bad[0])
        raise ValueError(f"{locate(row)}: features must be finite with norm <= 1, got norm {norms[row]:.6g}{advice}")
    return round_to_grid(numbers)
