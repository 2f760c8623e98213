"""Read ratings from the files that people have: MovieLens, Yelp, CSV and Parquet.

Every reader gives the same ``Triplets`` for the same ratings: users and items are numbered as they first appear.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from fedcascade.checks import require
from fedcascade.data.columns import Columns
from fedcascade.data.json_lines import read_json_lines
from fedcascade.data.tables import read_colons, read_commas, read_parquet, read_tabs, read_u_data
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings

__all__ = ["READERS", "Columns", "build_ratings_environment", "read_ratings"]

READERS: dict[str, Callable[[Path, Columns | None], Triplets]] = {
    ".csv": read_commas,
    ".tsv": read_tabs,
    ".parquet": read_parquet,
    ".dat": read_colons,
    ".data": read_u_data,
    ".json": read_json_lines,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
}


def read_ratings(path: str | PathLike[str], *, columns: Columns | None = None) -> Triplets:
    """Read the ratings in a file; the ending of its name says how to read it.

    Args:
        path: ``ratings.csv``, ``ratings.dat`` or ``u.data`` of MovieLens, the reviews of Yelp's academic dataset
            (JSON lines), or any CSV, TSV, JSON lines or Parquet file with named columns.
        columns: the names of the columns of users, items and ratings; None tries the usual ones.
    """
    file = Path(path)
    require(file.exists(), f"there is no file {file}")
    require(file.is_file(), f"{file} is a folder: name the file in it that holds the ratings")
    endings = ", ".join(READERS)
    require(file.suffix in READERS, f"{file} must end in one of {endings}: the ending says how to read it")
    try:
        ratings = READERS[file.suffix](file, columns)
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror or error}") from None
    require(ratings.values.size > 0, f"{file} holds no ratings")
    return ratings


def build_ratings_environment(path: str | PathLike[str], *, columns: Columns | None = None, **options: Any) -> Ratings:
    """Build the environment of a file of ratings; options are those of ``Ratings``."""
    return Ratings(read_ratings(path, columns=columns), **options)
