"""What every row of a log must satisfy; the first that does not is named by file, row and column."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl

LONGEST_VALUE = 60


class Rule(NamedTuple):
    """A column, an expression that is true in bad rows, and what the column must be."""

    column: str
    is_bad: pl.Expr
    words: str


def check_rows(batch: pl.DataFrame, raw: pl.DataFrame, path: Path, first: int) -> None:
    """Refuse a batch with a row that breaks a rule; ``raw`` holds the values as they were in the file."""
    rules = list(_list_rules(batch.columns))
    broken = batch.select(rule.is_bad.fill_null(value=True).alias(str(place)) for place, rule in enumerate(rules))
    rows = {place: broken[str(place)].arg_true() for place in range(len(rules))}
    found = [(bad[0], place) for place, bad in rows.items() if len(bad)]
    if found:
        row, place = min(found)
        value = str(raw[rules[place].column].gather([row]).to_list()[0])
        shown = value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
        column, words = rules[place].column, rules[place].words
        raise ValueError(f"{path}, row {first + row + 1}, column {column}: {words}, got {shown}")


def _list_rules(columns: list[str]) -> Iterator[Rule]:
    length = pl.col("items").list.len()
    lowest, highest = pl.col("clicks").list.min(), pl.col("clicks").list.max()
    yield Rule("user", pl.col("user").is_null(), "must name a user")
    yield Rule("user", pl.col("user").str.contains("\0", literal=True), "must not hold a NUL byte")
    joined = pl.col("items").list.join("", ignore_nulls=True)
    yield Rule("items", joined.str.contains("\0", literal=True), "must not hold a NUL byte")
    yield Rule("items", length == 0, "must name at least one item")
    yield Rule("items", _has_null("items"), "must name every item of the list")
    yield Rule("items", pl.col("items").list.n_unique() < length, "must not name an item twice")
    yield Rule("clicks", _has_null("clicks"), "must hold positions, whole numbers counted from 0")
    outside = (pl.col("clicks").list.len() > 0) & ((lowest < 0) | (highest >= length))
    yield Rule("clicks", outside, "must hold positions of the list, counted from 0")
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
        missing = pl.col("items").list.set_difference(pl.col("offered")).list.len() > 0
        yield Rule("offered", missing, "must name all items of the list")
        twice = pl.col("offered").list.n_unique() < pl.col("offered").list.len()
        yield Rule("offered", twice, "must not name an item twice")
    if "features" in columns:
        items = pl.col("offered" if "offered" in columns else "items").list.len()
        size = pl.col("features").list.len()
        yield Rule("features", (size == 0) | (size % items != 0), "must hold equally many numbers for each item")
        yield Rule("features", _has_null("features"), "must hold numbers alone")


def _has_null(column: str) -> pl.Expr:
    return pl.col(column).list.drop_nulls().list.len() < pl.col(column).list.len()


def _is_share(value: pl.Expr) -> pl.Expr:
    return (value > 0) & (value <= 1)
