"""A reader of ratings in JSON lines, such as the reviews of Yelp's academic dataset.

It reads a few megabytes at a time, skips the text of reviews, and keeps 24 bytes per rating.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec
import numpy as np

from fedcascade.checks import require
from fedcascade.data.tables import LONGEST_LINE, NOT_TEXT, Columns, find_columns, open_bytes
from fedcascade.environments.matrices import Triplets

CHUNK = 1 << 20


def read_json_lines(path: Path, columns: Columns | None) -> Triplets:
    """Read the ratings of a file with one JSON object per line."""
    users: dict[int | str, int] = {}
    items: dict[int | str, int] = {}
    user_numbers, item_numbers, values = array("q"), array("q"), array("d")
    with open_bytes(path) as file:
        names = _detect_columns(file, columns, path)
        decoder = msgspec.json.Decoder(_make_row_type(names))
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


def _make_row_type(names: Columns) -> Any:
    """Make a type with the three columns; other fields are skipped."""
    kinds: list[tuple[str, Any]] = [("user", int | str), ("item", int | str), ("rating", float)]
    return msgspec.defstruct("Rated", kinds, rename=names._asdict(), gc=False)


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
    """Yield chunks of whole lines."""
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
