"""The columns of a log: their names, usual other names for them, and how text becomes values."""

from collections.abc import Mapping, Sequence

import polars as pl

from fedcascade.checks import require, require_known

# Names that people give to each column; the first is ours.
USUAL: Mapping[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "ts", "time_ms", "datetime", "date"),
    "user": ("user", "user_id", "userId", "uid", "session_id", "session"),
    "items": ("items", "list", "slate", "item_ids", "impressions", "ranking"),
    "clicks": ("clicks", "click", "clicked", "click_position", "click_positions", "click_idx"),
    "looked": ("looked", "examined", "looked_at", "scroll_length"),
    "propensity": ("propensity", "pscore", "list_propensity"),
    "propensities": ("propensities", "position_propensities", "pscores"),
    "offered": ("offered", "candidates", "available", "on_offer"),
    "features": ("features", "item_features"),
}
NEEDED = ("user", "items", "clicks")
TYPES: Mapping[str, pl.DataType] = {
    "time": pl.Float64(),
    "user": pl.String(),
    "items": pl.List(pl.String()),
    "clicks": pl.List(pl.Int64()),
    "looked": pl.Int64(),
    "propensity": pl.Float64(),
    "propensities": pl.List(pl.Float64()),
    "offered": pl.List(pl.String()),
    "features": pl.List(pl.Float64()),
}
# An element of a list in a cell of text: [3, 17, 4], 3 17 4, 3|17|4 and ['a', 'b'] are all read.
ELEMENT = r"""[^\s,;|\[\]()'"]+"""
NO_CLICK = ("", "none", "null", "nan", "na", "-", "-1", "[]")


def find_log_columns(names: Sequence[str], chosen: Mapping[str, str], path: object) -> dict[str, str]:
    """Return which column of a file plays which role; ``chosen`` names some of them.

    >>> find_log_columns(["uid", " slate ", "click"], {}, "log.csv")
    {'user': 'uid', 'items': ' slate ', 'clicks': 'click'}
    """
    stripped = {name.strip(): name for name in names}
    repeated = len(stripped) < len(names) or any("_duplicated_" in name for name in names)
    require(not repeated, f"{path} names a column twice: {', '.join(names)}")
    roles = {}
    for role, usual in USUAL.items():
        wanted = (chosen[role],) if role in chosen else usual
        match = next((name for name in wanted if name in stripped), None)
        if role in chosen or role in NEEDED:
            listed = ", ".join(stripped)
            advice = f"it has {listed}; name it by {role}=COLUMN"
            require(match is not None, f"{path} has no column {' or '.join(wanted)} for {role}: {advice}")
        if match is not None:
            roles[role] = stripped[match]
    for role in chosen:
        require_known("column of a log", role, USUAL)
    return roles


def has_log_columns(names: Sequence[str]) -> bool:
    """Whether a file with these columns is a log of lists."""
    stripped = {name.strip() for name in names}
    return all(any(usual in stripped for usual in USUAL[role]) for role in NEEDED)


def convert_column(role: str, kind: pl.DataType) -> pl.Expr:
    """The expression that turns a column of type ``kind`` into the role's type; what cannot be read becomes null."""
    column, wanted = pl.col(role), TYPES[role]
    if isinstance(wanted, pl.List):
        return _convert_lists(column, kind, wanted, is_clicks=role == "clicks")
    if role == "time" and kind == pl.String:
        as_number = column.str.strip_chars().cast(pl.Float64, strict=False)
        as_date = column.str.strip_chars().str.to_datetime(strict=False, time_unit="us", time_zone="UTC", format=None)
        return pl.coalesce(as_number, as_date.dt.epoch("us") / 1e6)
    if role == "time" and kind.is_temporal():
        return column.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    if kind == pl.String:
        column = column.str.strip_chars()
    if role == "user":
        column = column.cast(pl.String)
        return pl.when(column != "").then(column)
    return column.cast(wanted, strict=False)


def _convert_lists(column: pl.Expr, kind: pl.DataType, wanted: pl.List, *, is_clicks: bool) -> pl.Expr:
    empty = pl.lit([], dtype=wanted)
    if isinstance(kind, pl.List | pl.Array):
        inner = kind.inner
        if isinstance(inner, pl.List | pl.Array):  # features: one list per item
            column = column.list.eval(pl.element().explode()) if isinstance(kind, pl.List) else column.arr.explode()
        lists = column.cast(wanted, strict=False)
        return pl.when(column.is_null()).then(empty).otherwise(lists) if is_clicks else lists
    if kind.is_float():  # whole numbers beside missing ones, as pandas has them
        is_whole = column.round() == column
        column = pl.when(is_whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column)
    text = column.cast(pl.String).str.strip_chars()
    lists = text.str.extract_all(ELEMENT).cast(wanted, strict=False)
    if is_clicks:  # no click is no element
        return pl.when(text.is_null() | text.str.to_lowercase().is_in(NO_CLICK)).then(empty).otherwise(lists)
    return pl.when(text.is_not_null() & (text != "")).then(lists)
