"""Tables of events, one row per shown item, as lists."""

from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl

from fedcascade.data.logs.columns import USUAL, convert_column
from fedcascade.data.tables import find_roles, has_roles, list_columns

# Accepted names of each column; time, user, looked and propensity are those of logs.
EVENT_NAMES: Mapping[str, tuple[str, ...]] = {
    **{role: USUAL[role] for role in ("time", "user", "looked", "propensity")},
    "request": ("request", "request_id", "impression_id", "list_id", "slate_id", "query_id", "search_id"),
    "item": ("item", "item_id", "itemId", "product_id", "article_id", "document_id", "video_id"),
    "position": ("position", "pos", "rank", "slot"),
    "click": ("click", "clicked", "is_click", "is_clicked", "label"),
}
CHANCE = "propensity"  # of an item at its position, given those above
NEEDED = ("user", "item", "click")
TRUE, FALSE = ("1", "1.0", "true", "t", "yes", "y"), ("", "0", "0.0", "false", "f", "no", "n", "none", "null", "nan")


def is_event_table(names: Collection[str], chosen: Mapping[str, str]) -> bool:
    """Return whether a table with these columns holds events: users, items and clicks.

    >>> is_event_table(["user_id", "request_id", "item_id", "rank", "is_click"], {})
    True
    """
    has_lists = "items" in chosen or has_roles(names, USUAL, ("items",))
    return not has_lists and has_roles(names, EVENT_NAMES, NEEDED, chosen)


def list_events(frame: pl.LazyFrame, path: Path, chosen: Mapping[str, str]) -> pl.LazyFrame:
    """Return one row per request: user, time, items by position, and clicks; ``path`` is its name in errors.

    Without a column of requests, each row is a list of one item.
    Rows of one item in one request count once, as clicked if one of them is. A request with a bad row has a null where
    a log must have none. Requests come in order of appearance.
    """
    roles = find_roles(list(list_columns(frame, path)), EVENT_NAMES, path, chosen=chosen)
    events = frame.select(**{role: pl.col(name) for role, name in roles.items()})
    kinds = list_columns(events, path)
    text = pl.col("click").cast(pl.String).str.strip_chars().str.to_lowercase().fill_null("")
    order = pl.int_range(pl.len())
    shared = {role: convert_column(role, kinds[role]) for role in ("user", "time", "looked", CHANCE) if role in roles}
    columns: dict[str, pl.Expr] = shared | {
        "request": pl.col("request").cast(pl.String).str.strip_chars() if "request" in roles else order,
        "item": pl.col("item").cast(pl.String).str.strip_chars().replace("", None),
        "click": pl.when(text.is_in(TRUE)).then(1).when(text.is_in(FALSE)).then(0),
        "position": pl.col("position").cast(pl.Float64, strict=False) if "position" in roles else order,
    }
    shown = events.filter(~pl.all_horizontal(pl.all().is_null())).select(**columns)
    shown = shown.with_columns(bad=pl.any_horizontal(pl.col("item", "click", "position").is_null()))
    others = [pl.col(name).first() for name in ("time", "looked", "propensity") if name in roles]
    user = pl.when(pl.col("user").n_unique() == 1).then(pl.col("user").first()).alias("user")
    once = shown.group_by("request", "item", maintain_order=True).agg(
        user, pl.col("click").max(), pl.col("position").min(), pl.col("bad").any(), *others
    )
    item, click, chance = (pl.col(name).sort_by("position", maintain_order=True) for name in ("item", "click", CHANCE))
    nothing = pl.lit(None, pl.String).implode()
    optional = {"time": pl.col("time").min(), "looked": pl.col("looked").max(), CHANCE: chance.implode()}
    lists = {
        "user": user,
        "items": pl.when(pl.col("bad").any()).then(nothing).otherwise(item.implode()),
        "clicks": pl.int_range(pl.len()).filter(click == 1).implode(),
        **{"propensities" if role == CHANCE else role: column for role, column in optional.items() if role in roles},
    }
    return once.group_by("request", maintain_order=True).agg(**lists).drop("request")
