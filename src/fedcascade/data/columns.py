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


def strip_names(names: Sequence[str], path: object) -> dict[str, str]:
    """Return the names of columns by what they are without spaces; refuse a name that is there twice."""
    stripped = {name.strip(): name for name in names}
    repeated = len(stripped) < len(names) or any("_duplicated_" in name for name in names)
    require(not repeated, f"{path} names a column twice: {', '.join(names)}")
    return stripped


def find_columns(names: Sequence[str], wanted: Columns | None, path: Path) -> Columns:
    """Return the wanted columns, or the first usual ones, if all of them are among the names of a file.

    >>> find_columns(["movieId", "userId", "rating", "timestamp"], None, Path("ratings.csv"))
    Columns(user='userId', item='movieId', rating='rating')
    """
    candidates = [[name] for name in wanted] if wanted else [usual.split() for usual in USUAL]
    stripped = strip_names(names, path)
    matches = [next((stripped[name] for name in choice if name in stripped), None) for choice in candidates]
    for role, choice, match in zip(Columns._fields, candidates, matches, strict=True):
        require(
            match is not None,
            f"{path} has no column {' or '.join(choice)} for the {role}: it has {', '.join(names)}; "
            "name them, for instance 'user,item,rating'",
        )
    return Columns(*(str(match) for match in matches))
