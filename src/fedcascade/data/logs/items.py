"""The table of items: a name and features for each."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.data.logs.files import list_columns, read_batches, scan_file
from fedcascade.numerics.grid import round_to_grid

USUAL_NAMES = ("item", "item_id", "itemId", "video_id", "playlist_id", "id")
LARGEST_NORM = 1.0 + 1e-6


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
    columns = list(list_columns(frame, file))
    named = next((name for name in columns if name.strip() in ((column,) if column else USUAL_NAMES)), None)
    require(named is not None or column is None, f"{file} has no column {column}: it has {', '.join(columns)}")
    others = [name for name in columns if name != named]
    require(len(others) > 0, f"{file} has no column of features beside the names of items")
    table = pl.concat(read_batches(frame, file, 1 << 16))
    numbers = np.empty((len(table), len(others)))
    for place, name in enumerate(others):
        values = table[name].cast(pl.Float64, strict=False).to_numpy()
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            got = table[name][int(bad[0])]
            raise ValueError(f"{file}, row {bad[0] + 1}, column {name.strip()}: must be a number, got {got}")
        numbers[:, place] = values
    names = [str(row) for row in range(len(table))] if named is None else table[named].cast(pl.String).to_list()
    twice = next((row for row, is_twice in enumerate(pl.Series(names).is_first_distinct()) if not is_twice), None)
    if twice is not None:
        raise ValueError(f"{file}, row {twice + 1}, column {named}: names {names[twice]} for the second time")
    if normalise:
        numbers /= np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-12)
    advice = "; --normalise divides each row by its norm"
    return ItemTable(tuple(names), check_features(numbers, lambda row: f"{file}, row {row + 1}", advice))


def check_features(numbers: NDArray[np.float64], locate: Callable[[int], str], advice: str = "") -> NDArray[np.float32]:
    """Features rounded to the grid; a row that is not finite or longer than 1 is refused."""
    norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
    bad = np.flatnonzero(~(norms <= LARGEST_NORM))
    if bad.size:
        row = int(bad[0])
        raise ValueError(f"{locate(row)}: features must be finite with norm <= 1, got norm {norms[row]:.6g}{advice}")
    return round_to_grid(numbers)
