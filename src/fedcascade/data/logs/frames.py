"""Tables in memory, of whatever library: pandas, polars, Arrow, or columns of NumPy arrays and lists."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from fedcascade.checks import require


def is_table(value: object) -> bool:
    """Whether a value is a table of one of these kinds."""
    is_frame = isinstance(value, pl.DataFrame | pl.LazyFrame | Mapping) or hasattr(value, "__arrow_c_stream__")
    return is_frame or (hasattr(value, "columns") and hasattr(value, "to_dict"))


def read_table(table: Any, name: str) -> pl.DataFrame:
    """A table as one of polars; ``name`` is what a refusal calls it. pandas need not be installed, nor pyarrow.

    >>> read_table({"user": ["a", "b"], "items": np.array([[1, 2], [2, 3]])}, "log").shape
    (2, 2)
    """
    require(is_table(table), f"{name} must be a table of pandas, polars or columns, got a {type(table).__name__}")
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    if isinstance(table, pl.DataFrame):
        return table
    is_pandas = hasattr(table, "columns") and hasattr(table, "to_dict")
    if not is_pandas and not isinstance(table, Mapping):
        return pl.DataFrame(table)
    columns = {str(column): _read_column(table[column]) for column in (table.columns if is_pandas else table)}
    try:
        return pl.DataFrame(columns, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{name} cannot be read as a table: {str(error).splitlines()[0]}") from None


def _read_column(column: Any) -> Any:
    """A column as an array of numbers, or as a list in which what is missing is None."""
    if isinstance(column, pl.Series):
        return column
    values = np.asarray(column) if getattr(column, "ndim", None) is not None else column
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufM":
        return list(values) if values.ndim > 1 else values
    return [_read_cell(cell) for cell in values]


def _read_cell(cell: Any) -> Any:
    """A cell as a plain value; pandas says that one is missing by a number that is not equal to itself, or by pd.NA."""
    if isinstance(cell, np.ndarray | list | tuple):
        return [item.item() if isinstance(item, np.generic) else item for item in cell]
    is_missing = (
        cell is None or type(cell).__name__ in {"NAType", "NaTType"} or (isinstance(cell, float) and cell != cell)
    )
    return None if is_missing else cell
