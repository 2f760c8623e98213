"""Which columns of a file are users, items and ratings."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedcascade.checks import require

NOT_TEXT = "is not UTF-8 text: convert the file, for instance by iconv"


class Columns(NamedTuple):
    """The names of three columns."""

    user: str
    item: str
    rating: str


USUAL = Columns(
    user="user userId user_id UserID",
    item="item itemId item_id movieId movie_id MovieID business_id",
    rating="rating Rating stars score",
)


def find_columns(there: Sequence[str], asked: Columns | None, path: Path) -> Columns:
    """The asked columns, or the first usual ones, if they are all there.

    >>> find_columns(["movieId", "userId", "rating", "timestamp"], None, Path("ratings.csv"))
    Columns(user='userId', item='movieId', rating='rating')
    """
    candidates = [[name] for name in asked] if asked else [names.split() for names in USUAL]
    found = [next((name for name in names if name in there), None) for names in candidates]
    for what, names, name in zip(Columns._fields, candidates, found, strict=True):
        require(
            name is not None,
            f"{path} has no column {' or '.join(names)} for the {what}: it has {', '.join(there)}; "
            "name them, for instance 'user,item,rating'",
        )
    return Columns(*(str(name) for name in found))
