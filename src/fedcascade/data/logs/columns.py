"""Columns of a log: their names, conversion from text, and validation of rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

# Accepted names of each column; the first is written.
USUAL: Mapping[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "ts", "time_ms", "datetime", "date"),
    "user": ("user", "user_id", "userId", "uid", "session_id", "session"),
    "items": ("items", "list", "slate", "item_ids", "impressions", "ranking"),
    "clicks": ("clicks", "click", "clicked", "click_position", "click_positions", "click_idx"),
    "rewards": ("rewards", "reward"),
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
    "rewards": pl.List(pl.Float64()),
    "looked": pl.Int64(),
    "propensity": pl.Float64(),
    "propensities": pl.List(pl.Float64()),
    "offered": pl.List(pl.String()),
    "features": pl.List(pl.Float64()),
}
# An element of a list in a cell of text: [3, 17, 4], 3 17 4, 3|17|4 and ['a', "green tea"] are all read.
ELEMENT = r""""[^"]*"|'[^']*'|[^\s,;|\[\]()'"]+"""
QUOTES, QUOTED = "'\"", '"[^"]*"'
NAMED_LISTS = ("items", "offered")  # in text, split at bars alone if any cell of the column has one: names hold spaces
# Cells that mean no click, and no reward.
EMPTY = {"clicks": ("", "none", "null", "nan", "na", "-", "-1", "[]"), "rewards": ("", "none", "null", "[]")}


def convert_column(role: str, kind: pl.DataType, *, has_bars: bool = False) -> pl.Expr:
    """Return the expression that converts a column of type ``kind`` to the role's type; invalid values become null.

    With ``has_bars``, lists in text are split at bars alone.
    """
    column, wanted = pl.col(role), TYPES[role]
    if has_bars:
        parts = column.str.strip_chars(" []()").str.split("|").list.eval(pl.element().str.strip_chars(' "'))
        return parts.list.eval(pl.when(pl.element() != "").then(pl.element()))
    if isinstance(wanted, pl.List):
        return _convert_lists(column, kind, wanted, EMPTY.get(role))
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


def _convert_lists(column: pl.Expr, kind: pl.DataType, wanted: pl.List, blank: Sequence[str] | None) -> pl.Expr:
    """Convert lists; a missing one, or one of the ``blank`` texts, is empty, unless these are None."""
    empty = pl.lit([], dtype=wanted)
    if isinstance(kind, pl.List | pl.Array):
        inner = kind.inner
        if isinstance(inner, pl.List | pl.Array):  # features: one list per item
            column = column.list.eval(pl.element().explode()) if isinstance(kind, pl.List) else column.arr.explode()
        lists = column.cast(wanted, strict=False)
        return lists if blank is None else pl.when(column.is_null()).then(empty).otherwise(lists)
    if kind.is_float():  # pandas stores whole numbers as floats if some are missing
        is_whole = column.round() == column
        column = pl.when(is_whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column)
    text = column.cast(pl.String).str.strip_chars()
    elements = text.str.extract_all(ELEMENT).list.eval(pl.element().str.strip_chars(QUOTES))
    lists = elements.cast(wanted, strict=False)
    if blank is not None:
        return pl.when(text.is_null() | text.str.to_lowercase().is_in(blank)).then(empty).otherwise(lists)
    return pl.when(text.is_not_null() & (text != "")).then(lists)


LONGEST_VALUE = 60
LONGEST_LIST, MOST_OFFERED = 10_000, 1_000_000  # items
ROW, MORE = "row", "more fields than the header names"  # columns beside those of a log


class Rule(NamedTuple):
    """A column, an expression that is true in bad rows, and the requirement as text."""

    column: str
    is_bad: pl.Expr
    words: str
    culprit: pl.Expr | None = None  # the value to show, if not that of the file


class BrokenRule(NamedTuple):
    """A rule, the rows of a batch that break it, and the value in the first of them."""

    column: str
    words: str
    rows: NDArray[np.intp]
    value: object = None

    def describe(self) -> str:
        text = str(self.value)
        shown = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
        return f"column {self.column}: {self.words}, got {shown}"


def find_broken_rules(batch: pl.DataFrame, raw: pl.DataFrame, allowed: Iterable[str] | None) -> list[BrokenRule]:
    """Find the rules that rows of a batch break; a row that breaks several is reported for the first.

    ``raw`` holds the values of the file. ``allowed`` holds the names of items; None allows all names.
    """
    rules = list(_list_rules(batch.columns, allowed))
    if MORE in raw.columns:
        batch = batch.with_columns(raw[MORE])
        rules.insert(0, Rule(MORE, pl.col(MORE).is_not_null(), "must be absent"))
    marks = batch.select(rule.is_bad.fill_null(value=True).alias(str(place)) for place, rule in enumerate(rules))
    broken = marks.to_numpy()
    first = np.where(broken.any(axis=1), broken.argmax(axis=1), len(rules))
    found = []
    for place in np.unique(first[first < len(rules)]):
        rule, rows = rules[place], np.flatnonzero(first == place)
        row = slice(int(rows[0]), int(rows[0]) + 1)
        values = raw[row][rule.column] if rule.culprit is None else batch[row].select(rule.culprit).to_series()
        found.append(BrokenRule(rule.column, rule.words, rows, values.to_list()[0]))
    return found


def _list_rules(columns: list[str], allowed: Iterable[str] | None) -> Iterator[Rule]:
    length = pl.col("items").list.len()
    lowest, highest = pl.col("clicks").list.min(), pl.col("clicks").list.max()
    yield Rule("user", pl.col("user").is_null(), "must name a user")
    yield Rule("user", pl.col("user").str.contains("\0", literal=True), "must not hold a NUL byte")
    joined = pl.col("items").list.join("", ignore_nulls=True)
    yield Rule("items", joined.str.contains("\0", literal=True), "must not hold a NUL byte")
    yield Rule("items", length == 0, "must name at least one item")
    yield Rule("items", length > LONGEST_LIST, f"must name at most {LONGEST_LIST:,} items")
    yield Rule("items", _has_null("items"), "must name every item of the list")
    yield Rule("items", pl.col("items").list.n_unique() < length, "must not name an item twice")
    yield Rule("clicks", _has_null("clicks"), "must hold positions, whole numbers counted from 0")
    outside = (pl.col("clicks").list.len() > 0) & ((lowest < 0) | (highest >= length))
    yield Rule("clicks", outside, "must hold positions of the list, counted from 0")
    if "rewards" in columns:
        yield from _list_reward_rules(pl.col("rewards"), pl.col("clicks").list.len())
    if "time" in columns:
        yield Rule("time", pl.col("time").is_null() | ~pl.col("time").is_finite(), "must be a number or a date")
    if "looked" in columns:
        known, last = pl.col("looked").is_not_null(), highest.fill_null(-1) + 1
        wrong = known & ((pl.col("looked") < last) | (pl.col("looked") > length))
        yield Rule("looked", wrong, "must count positions, from the last click to the end of the list")
    if "propensity" in columns:
        yield Rule("propensity", ~_is_share(pl.col("propensity")), "must be a number in (0, 1]")
    if "propensities" in columns:
        shares, count = pl.col("propensities"), pl.col("propensities").list.len()
        wrong = (count != length) | _has_null("propensities")
        yield Rule("propensities", wrong, "must hold a number for each item of the list")
        bad = ~(_is_share(shares.list.min()) & _is_share(shares.list.max()))
        yield Rule("propensities", bad, "must hold numbers in (0, 1]")
    if "offered" in columns:
        yield Rule("offered", pl.col("offered").list.len() > MOST_OFFERED, f"must name at most {MOST_OFFERED:,} items")
        missing = pl.col("items").list.set_difference(pl.col("offered")).list.len() > 0
        yield Rule("offered", missing, "must name all items of the list")
        twice = pl.col("offered").list.n_unique() < pl.col("offered").list.len()
        yield Rule("offered", twice, "must not name an item twice")
    if allowed is not None:
        names = pl.Series(list(allowed), dtype=pl.String).implode()
        strange = pl.element().filter(~pl.element().is_in(names))
        for column in NAMED_LISTS:
            if column in columns:
                culprit = pl.col(column).list.eval(strange).list
                yield Rule(column, culprit.len() > 0, "must name items of the table of items", culprit.first())
    if "features" in columns:
        items = pl.col("offered" if "offered" in columns else "items").list.len()
        size = pl.col("features").list.len()
        yield Rule("features", (size == 0) | (size % items != 0), "must hold equally many numbers for each item")
        yield Rule("features", _has_null("features"), "must hold only numbers")


def _list_reward_rules(rewards: pl.Expr, clicks: pl.Expr) -> Iterator[Rule]:
    count, least, most = rewards.list.len(), rewards.list.min(), rewards.list.max()
    wrong = (clicks > 0) & (count > 1) & (count != clicks)
    yield Rule("rewards", wrong, "must hold one number for all clicks of a list, or one for each")
    is_share = (least >= 0) & (most <= 1) & ~rewards.list.eval(pl.element().is_nan()).list.any()
    outside = (count > 0) & (_has_null("rewards") | ~is_share.fill_null(value=False))
    yield Rule("rewards", (clicks > 0) & outside, "must hold numbers in [0, 1]")
    stray = (clicks == 0) & (most > 0).fill_null(value=False) & ~most.is_nan().fill_null(value=True)
    yield Rule("rewards", stray, "must be 0 or empty without a click")


def _has_null(column: str) -> pl.Expr:
    return pl.col(column).list.drop_nulls().list.len() < pl.col(column).list.len()


def _is_share(value: pl.Expr) -> pl.Expr:
    return (value > 0) & (value <= 1)
