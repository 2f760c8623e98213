"""Tables in files, a batch at a time: CSV and the like, JSON lines and Parquet, plain or compressed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from fedcascade.checks import require
from fedcascade.data.text import (
    PACKED,
    describe_long_line,
    find_line_end,
    find_separator,
    read_head,
    refuse_nul,
    strip_packing,
)

TEXTS = (".csv", ".tsv", ".txt")
SCHEMA_ROWS = 10_000  # rows of JSON lines from which the types of columns are taken


def scan_file(path: Path) -> pl.LazyFrame:
    """A table that polars reads when asked; columns of text files are text."""
    require(path.exists(), f"there is no file {path}")
    require(path.is_file(), f"{path} is a folder: name the file in it that holds the log")
    ending = strip_packing(path)
    endings = ", ".join(SCANNERS)
    require(ending in SCANNERS, f"{path} must end in one of {endings}, or one of these and .gz or .zst")
    is_packed_twice = path.suffix in PACKED and ending == ".parquet"
    require(not is_packed_twice, f"{path}: Parquet is compressed by itself, unpack the file first")
    return SCANNERS[ending](path)


def read_batches(frame: pl.LazyFrame, path: Path, rows: int) -> Iterator[pl.DataFrame]:
    """The rows of a table in their order, about ``rows`` at a time."""
    try:
        yield from frame.collect_batches(chunk_size=rows, maintain_order=True)
    except PolarsError as error:
        reason = _describe_long_line(path) or f" cannot be read: {describe_polars(error)}"
        raise ValueError(f"{path}{reason}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def list_columns(frame: pl.LazyFrame, path: Path) -> dict[str, pl.DataType]:
    """Names and types of the columns of a table."""
    try:
        return dict(frame.collect_schema())
    except (PolarsError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {describe_polars(error)}") from None


def _describe_long_line(path: Path) -> str:
    is_text = path.suffix != ".zst" and strip_packing(path) in TEXTS
    return describe_long_line(path, find_separator(read_head(path))) if is_text else ""


def describe_polars(error: Exception) -> str:
    """The first line of an error, which is the one that says what is wrong."""
    return str(error).partition("\n")[0]


def _scan_text(path: Path) -> pl.LazyFrame:
    head = read_head(path)
    require(bool(head.strip()), f"{path} is empty")
    refuse_nul(head, path)
    return pl.scan_csv(path, separator=find_separator(head), eol_char=find_line_end(head), infer_schema=False)


def _scan_json(path: Path) -> pl.LazyFrame:
    return pl.scan_ndjson(path, infer_schema_length=SCHEMA_ROWS)


SCANNERS: dict[str, Callable[[Path], pl.LazyFrame]] = {
    **dict.fromkeys(TEXTS, _scan_text),
    ".json": _scan_json,
    ".jsonl": _scan_json,
    ".ndjson": _scan_json,
    ".parquet": pl.scan_parquet,
}
