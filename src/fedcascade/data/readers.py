"""Read ratings from the files that people have: MovieLens, Yelp, CSV and Parquet.

Every reader gives the same ``Triplets`` for the same ratings: users and items are numbered as they first appear.
"""

import zlib
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from fedcascade.checks import require
from fedcascade.data.columns import Columns
from fedcascade.data.json_lines import read_json_lines
from fedcascade.data.tables import read_headed, read_headless, read_parquet
from fedcascade.data.text import PACKED, strip_packing
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings

__all__ = ["READERS", "Columns", "build_ratings_environment", "read_ratings"]

READERS: dict[str, Callable[[Path, Columns | None], Triplets]] = {
    ".csv": read_headed,
    ".tsv": read_headed,
    ".parquet": read_parquet,
    # ratings.dat of MovieLens 1M is user::item::rating::time: to polars, every second column is empty.
    ".dat": partial(read_headless, separator=":", places=(0, 2, 4)),
    ".data": partial(read_headless, separator="\t", places=(0, 1, 2)),  # u.data of MovieLens 100K
    ".json": read_json_lines,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
}


def read_ratings(path: str | PathLike[str], *, columns: Columns | None = None) -> Triplets:
    """Read the ratings in a file; the ending of its name says how to read it.

    Args:
        path: ``ratings.csv``, ``ratings.dat`` or ``u.data`` of MovieLens, the reviews of Yelp's academic dataset
            (JSON lines), or any CSV, TSV, JSON lines or Parquet file with named columns;
            text may be packed, as ``.gz`` or ``.zst``.
        columns: the names of the columns of users, items and ratings; None tries the usual ones.
    """
    file = Path(path)
    require(file.exists(), f"there is no file {file}")
    require(file.is_file(), f"{file} is a folder: name the file in it that holds the ratings")
    endings = ", ".join(READERS)
    ending, is_zstd = strip_packing(file), file.suffix == ".zst"
    require(ending in READERS, f"{file} must end in one of {endings}: the ending says how to read it")
    readable = file.suffix not in PACKED or not (ending == ".parquet" or (is_zstd and "json" in ending))
    require(readable, f"{file} must be unpacked first: of {ending} files, {file.suffix} is not read")
    try:
        ratings = READERS[ending](file, columns)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {file}: {reason}") from None
    require(ratings.values.size > 0, f"{file} holds no ratings")
    return ratings


def build_ratings_environment(path: str | PathLike[str], *, columns: Columns | None = None, **options: Any) -> Ratings:
    """Build the environment of a file of ratings; options are those of ``Ratings``."""
    return Ratings(read_ratings(path, columns=columns), **options)
