"""Readers of ratings: MovieLens, Yelp, CSV and Parquet. Users and items are numbered in order of appearance."""

import codecs
import csv
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.data.tables import (
    HOLDS_NUL,
    JSON_LINES,
    LONGEST_LINE,
    NOT_TEXT,
    PACKED,
    Columns,
    check_file,
    find_columns,
    find_separator,
    list_columns,
    open_bytes,
    open_text,
    read_batches,
    read_head,
    scan_text,
    strip_packing,
)
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings

CHUNK = 1 << 20  # bytes read at a time


def read_headed(path: Path, columns: Columns | None) -> Triplets:
    """Read a Parquet file, or a text file with the names of columns in its first line."""
    is_parquet = path.suffix == ".parquet"
    if not is_parquet:
        _check_text(path)
    frame = pl.scan_parquet(path) if is_parquet else scan_text(path)
    names = find_columns(list(list_columns(frame, path)), columns, path)
    return _read_triplets(path, frame, names, lambda row: f"row {row + 1}" if is_parquet else _find_line(path, row))


def read_headless(path: Path, columns: Columns | None, *, separator: str, places: tuple[int, int, int]) -> Triplets:
    """Read a text file without names of columns; ``places`` are the columns of users, items and ratings."""
    require(columns is None, f"{path}: a {path.suffix} file has no names of columns, so none can be chosen")
    _check_text(path)
    frame = pl.scan_csv(path, separator=separator, infer_schema=False, has_header=False, quote_char=None)
    names, form = list(list_columns(frame, path)), "::" if separator == ":" else "tabs"
    require(len(names) > max(places), f"{path}, line 1 must hold user, item and rating, separated by {form}")
    return _read_triplets(path, frame, Columns(*(names[place] for place in places)), lambda row: f"line {row + 1}")


def _read_triplets(path: Path, frame: pl.LazyFrame, names: Columns, locate: Callable[[int], str]) -> Triplets:
    """Read, check and number the three columns; ``locate`` names a row in errors."""
    selected = frame.select(**{role: pl.col(name) for role, name in names._asdict().items()})
    batches = list(read_batches(selected, path, CHUNK))
    require(len(batches) > 0, f"{path} holds no ratings")
    table = pl.concat(batches).with_row_index("row")
    table = table.filter(~pl.all_horizontal(pl.col(Columns._fields).is_null()))  # empty lines
    is_text = table["rating"].dtype == pl.String
    rating = pl.col("rating").str.strip_chars() if is_text else pl.col("rating")
    table = table.with_columns(value=rating.cast(pl.Float64, strict=False))
    _check_rows(path, table, locate)
    users, items = (_number_by_appearance(table[role]) for role in ("user", "item"))
    return Triplets(users, items, table["value"].to_numpy())


def _check_rows(path: Path, table: pl.DataFrame, locate: Callable[[int], str]) -> None:
    nameless = pl.col("user").is_null() | pl.col("item").is_null()
    wrong = table.filter(nameless | ~pl.col("value").is_finite().fill_null(value=False)).head(1)
    for row in wrong.iter_rows(named=True):
        location = f"{path}, {locate(row['row'])}"
        for role in ("user", "item"):
            require(row[role] is not None, f"{location} has no {role}")
        got = "nothing" if row["rating"] is None else f"'{row['rating']}'"
        raise ValueError(f"{location}: the rating must be a number, got {got}")


def _number_by_appearance(names: pl.Series) -> NDArray[np.int64]:
    seen = names.unique(maintain_order=True).to_frame("name").with_row_index("number")
    numbers = names.to_frame("name").join(seen, on="name", how="left", maintain_order="left")["number"]
    return numbers.to_numpy().astype(np.int64)


def _check_text(path: Path) -> None:
    """Reject a file that is not UTF-8, with the line; polars checks zstd files."""
    if path.suffix == ".zst":
        return
    line = 1
    with open_bytes(path) as file:
        try:
            for text in codecs.iterdecode(iter(partial(file.read, CHUNK), b""), "utf-8"):
                if "\0" in text:  # UTF-16 without a byte order mark
                    line += text.partition("\0")[0].count("\n")
                    raise ValueError(f"{path}, line {line} {HOLDS_NUL}")
                line += text.count("\n")
        except UnicodeDecodeError as error:
            line += bytes(error.object[: error.start]).count(b"\n")
            raise ValueError(f"{path}, line {line} {NOT_TEXT}") from None


def _find_line(path: Path, row: int) -> str:
    """Name the line at which a row ends; quoted text may hold line breaks."""
    if path.suffix == ".zst":
        return f"line {row + 2}"  # an estimate: zstd cannot be read here
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=find_separator(read_head(path)))
        next(islice(reader, row + 1, row + 2), None)
        return f"line {reader.line_num}"


def read_json_lines(path: Path, columns: Columns | None) -> Triplets:
    """Read the ratings of a file with one JSON object per line, such as the reviews of Yelp's academic dataset.

    Reads a few megabytes at a time, skips the text of reviews, and keeps 24 bytes per rating.
    """
    users: dict[int | str, int] = {}
    items: dict[int | str, int] = {}
    user_numbers, item_numbers, values = array("q"), array("q"), array("d")
    with open_bytes(path) as file:
        names = _detect_columns(file, columns, path)
        kinds: list[tuple[str, Any]] = [("user", int | str), ("item", int | str), ("rating", float)]
        row_type: Any = msgspec.defstruct("Rated", kinds, rename=names._asdict(), gc=False)  # skips other fields
        decoder = msgspec.json.Decoder(row_type)
        first = 1
        for chunk in _read_chunks(file, path):
            try:
                rows = decoder.decode_lines(chunk)
            except (msgspec.DecodeError, UnicodeDecodeError):
                _raise_line_error(path, names, decoder, first, chunk)
            user_numbers.extend([users.setdefault(row.user, len(users)) for row in rows])
            item_numbers.extend([items.setdefault(row.item, len(items)) for row in rows])
            values.extend([row.rating for row in rows])
            first += chunk.count(b"\n")
    return Triplets(np.frombuffer(user_numbers, np.int64), np.frombuffer(item_numbers, np.int64), np.frombuffer(values))


def _detect_columns(file: BinaryIO, columns: Columns | None, path: Path) -> Columns:
    """Find the columns in the first line, and seek to the beginning, after a byte order mark."""
    start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
    file.seek(start)
    line = file.readline(LONGEST_LINE)
    file.seek(start)
    require(bool(line.strip()), f"{path} holds no ratings in its first line")
    first = _decode_line(line, path, 1)
    require(isinstance(first, dict), f"{path}, line 1 is not a JSON object")
    return find_columns(list(first), columns, path)


def _read_chunks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        rest = file.readline(LONGEST_LINE)
        require(len(rest) < LONGEST_LINE, f"{path} has a line longer than {LONGEST_LINE:,} bytes: not JSON lines")
        yield chunk + rest


def _decode_line(line: bytes, path: Path, number: int) -> Any:
    try:
        line.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path}, line {number} {NOT_TEXT}") from None
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}, line {number} is not JSON: {error}") from None


def _raise_line_error(path: Path, names: Columns, decoder: Any, first: int, chunk: bytes) -> NoReturn:
    """Raise an error about the first line of a chunk that cannot be read."""
    for number, line in enumerate(chunk.split(b"\n"), start=first):
        try:
            if line.strip():
                decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            row = _decode_line(line, path, number)
            location = f"{path}, line {number}"
            require(isinstance(row, dict), f"{location} is not a JSON object")
            for name in names:
                require(name in row, f"{location} has no '{name}'")
            rating = row[names.rating]
            is_number = isinstance(rating, int | float) and not isinstance(rating, bool)
            require(is_number, f"{location}: {names.rating} must be a number, got {rating!r}")
            raise ValueError(f"{location}: {error}") from None
    raise AssertionError("a chunk that cannot be read has a line that cannot be read")


__all__ = ["READERS", "Columns", "build_ratings_environment", "read_ratings"]

READERS: dict[str, Callable[[Path, Columns | None], Triplets]] = {
    ".csv": read_headed,
    ".tsv": read_headed,
    ".parquet": read_headed,
    # ratings.dat of MovieLens 1M is user::item::rating::time, so every second column is empty.
    ".dat": partial(read_headless, separator=":", places=(0, 2, 4)),
    ".data": partial(read_headless, separator="\t", places=(0, 1, 2)),  # u.data of MovieLens 100K
    **dict.fromkeys(JSON_LINES, read_json_lines),
}


def read_ratings(path: str | PathLike[str], *, columns: Columns | None = None) -> Triplets:
    """Read the ratings in a file, by the ending of its name.

    Args:
        path: ``ratings.csv``, ``ratings.dat`` or ``u.data`` of MovieLens, the reviews of Yelp's academic dataset
            (JSON lines), or a CSV, TSV, JSON lines or Parquet file with named columns. Text may be compressed (``.gz``,
            ``.zst``).
        columns: the names of the columns of users, items and ratings; None tries the usual ones.
    """
    file = Path(path)
    check_file(file, "the ratings")
    endings = ", ".join(READERS)
    ending, is_zstd = strip_packing(file), file.suffix == ".zst"
    require(ending in READERS, f"{file} must end in one of {endings}")
    readable = file.suffix not in PACKED or not (ending == ".parquet" or (is_zstd and "json" in ending))
    require(readable, f"{file} must be decompressed first: {ending} files cannot be read as {file.suffix}")
    try:
        ratings = READERS[ending](file, columns)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {file}: {reason}") from None
    require(ratings.values.size > 0, f"{file} holds no ratings")
    return ratings


def build_ratings_environment(path: str | PathLike[str], *, columns: Columns | None = None, **options: Any) -> Ratings:
    """Build the environment of a file of ratings; the options are those of ``Ratings``."""
    return Ratings(read_ratings(path, columns=columns), **options)
