"""Tables from files, plain or compressed, and from memory; names of columns."""

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, cast

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from fedcascade.checks import require, require_known

PACKED = (".gz", ".zst")
TEXTS = (".csv", ".tsv", ".txt")
JSON_LINES = (".json", ".jsonl", ".ndjson")
SCHEMA_ROWS = 10_000  # rows of JSON lines from which types are inferred
SEPARATORS = ",;\t|"
NOT_TEXT = "is not UTF-8 text: convert the file, for instance by iconv"
HOLDS_NUL = "holds a NUL byte: it is not UTF-8 text, or was cut by a crash"
HEAD = 1 << 16  # bytes from which separator and line ends are detected
LONGEST_LINE = 1 << 24  # bytes of a line in a compressed file
MOST_UNPACKED, MOST_RATIO = 1 << 28, 100  # a compressed file may unpack to 256 MB, or to 100 times its size


def strip_packing(path: Path) -> str:
    """Return the ending of a file's name, without .gz or .zst.

    >>> strip_packing(Path("log.csv.gz")), strip_packing(Path("log.parquet"))
    ('.csv', '.parquet')
    """
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def open_bytes(path: Path) -> BinaryIO:
    """Open a file, plain or compressed by gzip."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def open_text(path: Path) -> TextIO:
    """Open a text file, plain or compressed by gzip."""
    return TextIOWrapper(open_bytes(path), encoding="utf-8", newline="")


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed."""
    try:
        if path.suffix == ".zst":
            scanned = pl.scan_csv(path, has_header=False, separator="\x1f", quote_char=None, infer_schema=False)
            return "\n".join(scanned.head(100).collect().to_series(0).fill_null("").to_list()).encode()
        with open_bytes(path) as file:
            return file.read(HEAD)
    except (OSError, EOFError, PolarsError) as error:
        raise ValueError(f"cannot read {path}: {describe_polars(error)}") from None


def find_separator(head: bytes) -> str:
    """Return the most frequent separator of the first line; a comma if it has none.

    >>> find_separator(b"user;items;clicks")
    ';'
    """
    header = head.replace(b"\r", b"\n").partition(b"\n")[0].decode("utf-8", "replace")
    return max(SEPARATORS, key=header.count)


def read_header(path: Path) -> list[str]:
    """Return the names in the first line of a text file."""
    head = read_head(path)
    line = head.replace(b"\r", b"\n").partition(b"\n")[0].decode("utf-8-sig", "replace")
    return [name.strip(' "') for name in line.split(find_separator(head))]


def refuse_nul(head: bytes, path: Path) -> None:
    """Reject text that is not UTF-8, with the line of the first NUL byte."""
    require(head[:2] not in (b"\xff\xfe", b"\xfe\xff"), f"{path} is UTF-16: convert it to UTF-8, for instance by iconv")
    if b"\0" in head:
        line = head.partition(b"\0")[0].count(b"\n") + 1
        raise ValueError(f"{path}, line {line} {HOLDS_NUL}")


def _describe_long_line(path: Path) -> str:
    """Describe the first line with more fields than the header; empty if there is none."""
    if path.suffix == ".zst":
        return ""
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=find_separator(read_head(path)))
        columns = len(next(reader, []))
        for row in reader:
            if len(row) > columns:
                return f", line {reader.line_num} has {len(row)} fields, but the header names {columns}"
    return ""


def check_packed(path: Path) -> None:
    """Reject a file of gzip that unpacks to far more than its size, or has a huge line, before a reader unpacks it."""
    most, size, line = max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size), 0, 0
    try:
        with open_bytes(path) as file:
            while chunk := file.read(1 << 20):
                end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
                size, line = size + len(chunk), len(chunk) - end - 1 + (line if end < 0 else 0)
                require(size <= most, f"{path} unpacks to more than {most:,} bytes: unpack it yourself")
                require(line <= LONGEST_LINE, f"{path} has a line of more than {LONGEST_LINE:,} bytes: it is no log")
    except (OSError, EOFError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def check_file(path: Path, content: str) -> None:
    """Reject a path without a file; ``content`` is what the file should hold."""
    require(path.exists(), f"there is no file {path}")
    require(path.is_file(), f"{path} is a folder: give the file in it that holds {content}")


def scan_file(path: Path, *, more: str | None = None) -> pl.LazyFrame:
    """Return a lazy table; columns of text files are text.

    With ``more``, a line of text may have more fields than the header: the first of them is in the column ``more``.
    """
    check_file(path, "the log")
    ending = strip_packing(path)
    endings = ", ".join(SCANNERS)
    require(ending in SCANNERS, f"{path} must end in one of {endings}, or one of these and .gz or .zst")
    is_packed_twice = path.suffix in PACKED and ending == ".parquet"
    require(not is_packed_twice, f"{path}: Parquet is already compressed, decompress the file first")
    if path.suffix == ".gz":
        check_packed(path)
    return SCANNERS[ending](path) if more is None or ending not in TEXTS else scan_text(path, more)


def read_batches(frame: pl.LazyFrame, path: Path, rows: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table in order, about ``rows`` at a time."""
    try:
        yield from frame.collect_batches(chunk_size=rows, maintain_order=True)
    except PolarsError as error:
        long_line = _describe_long_line(path) if strip_packing(path) in TEXTS else ""
        reason = long_line or f" cannot be read: {describe_polars(error)}"
        raise ValueError(f"{path}{reason}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def list_columns(frame: pl.LazyFrame, path: Path) -> dict[str, pl.DataType]:
    """Return names and types of the columns of a table."""
    try:
        return dict(frame.collect_schema())
    except (PolarsError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {describe_polars(error)}") from None


def describe_polars(error: Exception) -> str:
    """Return the first line of an error."""
    return str(error).partition("\n")[0]


def scan_text(path: Path, more: str | None = None) -> pl.LazyFrame:
    """Return a lazy table of a text file; see ``scan_file``."""
    head = read_head(path)
    require(bool(head.strip()), f"{path} is empty")
    refuse_nul(head, path)
    separator = find_separator(head)
    end = "\r" if b"\r" in head and b"\n" not in head else "\n"  # files of old Macs have carriage returns
    plain = pl.scan_csv(path, separator=separator, eol_char=end, infer_schema=False)
    if more is None:
        return plain
    schema = dict.fromkeys([*list_columns(plain, path), more], pl.String())
    return pl.scan_csv(
        path, separator=separator, eol_char=end, schema=schema, truncate_ragged_lines=True, missing_columns="insert"
    )


SCANNERS: dict[str, Callable[[Path], pl.LazyFrame]] = {
    **dict.fromkeys(TEXTS, scan_text),
    **dict.fromkeys(JSON_LINES, partial(pl.scan_ndjson, infer_schema_length=SCHEMA_ROWS)),
    ".parquet": pl.scan_parquet,
}


def is_table(value: object) -> bool:
    """Return whether ``read_table`` accepts a value."""
    is_frame = isinstance(value, pl.DataFrame | pl.LazyFrame | Mapping) or hasattr(value, "__arrow_c_stream__")
    return is_frame or (hasattr(value, "columns") and hasattr(value, "to_dict"))


def read_table(table: Any, name: str) -> pl.DataFrame:
    """Convert a table to polars, without pandas or pyarrow; ``name`` is its name in errors.

    >>> read_table({"user": ["a", "b"], "items": np.array([[1, 2], [2, 3]])}, "log").shape
    (2, 2)
    """
    require(is_table(table), f"{name} must be a table of pandas, polars or columns, got a {type(table).__name__}")
    if isinstance(table, pl.LazyFrame | pl.DataFrame):
        return table.lazy().collect()
    is_pandas = hasattr(table, "columns") and hasattr(table, "to_dict")
    if not is_pandas and not isinstance(table, Mapping):
        return pl.DataFrame(table)
    columns = {str(column): _read_column(table[column]) for column in (table.columns if is_pandas else table)}
    try:
        return pl.DataFrame(columns, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{name} cannot be read as a table: {str(error).splitlines()[0]}") from None


def _read_column(column: Any) -> Any:
    """Return a column as an array of numbers, or as a list with None for missing values."""
    if isinstance(column, pl.Series):
        return column
    values = np.asarray(column) if getattr(column, "ndim", None) is not None else column
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufM":
        return list(values) if values.ndim > 1 else values
    return [_read_cell(cell) for cell in values]


def _read_cell(cell: Any) -> Any:
    """Return a cell as a plain value; None for NaN, NaT and pd.NA."""
    if isinstance(cell, np.ndarray | list | tuple):
        return [item.item() if isinstance(item, np.generic) else item for item in cell]
    is_missing = (
        cell is None or type(cell).__name__ in {"NAType", "NaTType"} or (isinstance(cell, float) and cell != cell)
    )
    return None if is_missing else cell


class Columns(NamedTuple):
    """Names of the columns of users, items and ratings."""

    user: str
    item: str
    rating: str


USUAL: Mapping[str, Sequence[str]] = {
    "user": ("user", "userId", "user_id", "UserID"),
    "item": ("item", "itemId", "item_id", "movieId", "movie_id", "MovieID", "business_id"),
    "rating": ("rating", "Rating", "stars", "score"),
}


def find_roles(
    names: Sequence[str],
    usual: Mapping[str, Sequence[str]],
    path: object,
    *,
    chosen: Mapping[str, str] = {},
    needed: Sequence[str] = (),
    advice: str = "name it by {role}=COLUMN",
) -> dict[str, str]:
    """Return the column of a table for each role; ``chosen`` overrides the usual names.

    Rejects a table that names a column twice, or lacks one for a needed or chosen role.

    >>> find_roles(["uid", " item "], {"user": ("user", "uid"), "item": ("item",), "time": ("ts",)}, "log.csv")
    {'user': 'uid', 'item': ' item '}
    """
    stripped = {name.strip(): name for name in names}
    repeated = len(stripped) < len(names) or any("_duplicated_" in name for name in names)
    require(not repeated, f"{path} names a column twice: {', '.join(names)}")
    for role in chosen:
        require_known("column of a log", role, usual)
    roles = {}
    for role, candidates in {**usual, **{role: (name,) for role, name in chosen.items()}}.items():
        match = next((name for name in candidates if name in stripped), None)
        if match is not None:
            roles[role] = stripped[match]
        elif role in needed or role in chosen:
            found = f"it has {', '.join(stripped)}; {advice.format(role=role)}"
            raise ValueError(f"{path} has no column {' or '.join(candidates)} for {role}: {found}")
    return roles


def has_roles(
    names: Iterable[str], usual: Mapping[str, Sequence[str]], needed: Iterable[str], chosen: Mapping[str, str] = {}
) -> bool:
    """Return whether a table has a column for each needed role, under its chosen name or a usual one."""
    stripped = {name.strip() for name in names}
    return all(stripped.intersection([chosen[role]] if role in chosen else usual[role]) for role in needed)


def find_columns(names: Sequence[str], wanted: Columns | None, path: Path) -> Columns:
    """Return the wanted columns, or else the usual ones; reject a file without them.

    >>> find_columns(["movieId", "userId", "rating", "timestamp"], None, Path("ratings.csv"))
    Columns(user='userId', item='movieId', rating='rating')
    """
    chosen, advice = {} if wanted is None else wanted._asdict(), "name the columns, for instance 'user,item,rating'"
    return Columns(**find_roles(names, USUAL, path, chosen=chosen, needed=Columns._fields, advice=advice))
