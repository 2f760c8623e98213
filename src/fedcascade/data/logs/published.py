"""Readers of published logs, and of the feedback of Open Bandit Pipeline."""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.data.logs.columns import TYPES
from fedcascade.data.logs.items import check_features
from fedcascade.data.tables import list_columns, open_text, read_batches, scan_file
from fedcascade.learning.click_log import MISSING, ClickLog

Frames = Iterator[pl.DataFrame]


class Published(NamedTuple):
    """A published format: its columns, and its reader."""

    columns: tuple[str, ...]
    read: Callable[[Path, int], Frames]


def read_yandex(path: Path, rows: int) -> Frames:
    """Read Yandex's log of relevance prediction: queries with ten URLs, and clicks; each session is a user."""
    rounds: list[dict[str, Any]] = []
    session, begun = "", 0
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip("\r\n").split("\t")
            good = len(fields) > 3 and fields[2] in ("Q", "C") and (fields[2] == "C" or len(fields) > 5)
            forms = "a query (SESSION TIME Q QUERY REGION URLs) or a click (SESSION TIME C URL)"
            require(good, f"{path}, line {number} must be {forms}, separated by tabs")
            if fields[0] != session:
                if begun >= rows:
                    yield _make_frame(rounds, "yandex")
                    rounds, begun = [], 0
                session, begin = fields[0], len(rounds)
            if fields[2] == "Q":
                urls = list(dict.fromkeys(fields[5:]))
                rounds.append({"time": float(fields[1]), "user": session, "items": urls, "clicks": []})
                begun += 1
            else:  # the last query of the session that showed this URL
                shown = next((row for row in reversed(rounds[begin:]) if fields[3] in row["items"]), None)
                if shown is not None:
                    position = shown["items"].index(fields[3])
                    if position not in shown["clicks"]:
                        shown["clicks"].append(position)
    if rounds:
        yield _make_frame(rounds, "yandex")


def _make_frame(rows: list[dict[str, Any]], name: str) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={column: TYPES[column] for column in PUBLISHED[name].columns})


def read_open_bandit(path: Path, rows: int) -> Frames:
    """Read the Open Bandit Dataset: one item per row with its propensity; equal features count as one user."""
    frame = scan_file(path)
    names = _find_named(frame, path, ("timestamp", "item_id", "click", "propensity_score"))
    traits = sorted(name for name in names if name.startswith("user_feature_"))
    user = pl.concat_str([pl.col(name) for name in traits], separator=" ") if traits else pl.lit("all")
    day = pl.col("timestamp").cast(pl.String).str.to_datetime(strict=False, time_zone="UTC", time_unit="us")
    columns = {
        "time": day.dt.epoch("us") / 1e6,
        "user": user,
        **_list_one("item_id", "click"),
        "looked": pl.lit(1, pl.Int64),
        "propensity": pl.col("propensity_score").cast(pl.Float64, strict=False),
    }
    return read_batches(frame.select(**columns), path, rows)


def read_kuairand(path: Path, rows: int) -> Frames:
    """Read a log of KuaiRand: one video per row."""
    frame = scan_file(path)
    _find_named(frame, path, ("user_id", "video_id", "time_ms", "is_click"))
    columns = {
        "time": pl.col("time_ms").cast(pl.Float64, strict=False) / 1e3,
        "user": pl.col("user_id").cast(pl.String),
        **_list_one("video_id", "is_click"),
        "looked": pl.lit(1, pl.Int64),
    }
    return read_batches(frame.select(**columns), path, rows)


def _list_one(item: str, click: str) -> dict[str, pl.Expr]:
    """Return the columns of lists with one item."""
    none, first = (pl.lit(value, dtype=pl.List(pl.Int64)) for value in ([], [0]))
    is_clicked = pl.col(click).cast(pl.Float64, strict=False)
    clicks = pl.when(is_clicked == 1).then(first).when(is_clicked == 0).then(none)
    return {"items": pl.concat_list(pl.col(item).cast(pl.String)), "clicks": clicks}


def _find_named(frame: pl.LazyFrame, path: Path, needed: tuple[str, ...]) -> list[str]:
    names = list(list_columns(frame, path))
    for name in needed:
        require(name in names, f"{path} has no column {name}: it has {', '.join(names)}")
    return names


def read_finn(path: Path, rows: int) -> Frames:
    """Read ``data.npz`` of FINN.no's slates: up to 20 lists per user; entry 0 of a slate means 'no click'."""
    needed = ("userId", "click_idx", "slate_lengths", "slate")
    try:
        with zipfile.ZipFile(path) as packed:
            members = {name.removesuffix(".npy") for name in packed.namelist()}
            for name in needed:
                require(name in members, f"{path} has no array {name}: it has {', '.join(sorted(members))}")
            streams = [_read_rows(packed.open(f"{name}.npy"), max(1, rows // 20)) for name in needed]
            for users, clicked, lengths, slates in zip(*streams, strict=True):
                yield _unroll(users, clicked, lengths, slates)
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _read_rows(file: Any, rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of an array in a .npy file in batches."""
    stream: BinaryIO = file
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, kind = read_header(stream)
    require(not is_fortran, "arrays must be stored row by row")
    size = int(np.prod(shape[1:])) * kind.itemsize
    for start in range(0, shape[0], rows):
        count = min(rows, shape[0] - start)
        yield np.frombuffer(stream.read(count * size), kind).reshape(count, *shape[1:]).astype(np.int64)


def _unroll(
    users: NDArray[np.int64], clicked: NDArray[np.int64], lengths: NDArray[np.int64], slates: NDArray[np.int64]
) -> pl.DataFrame:
    rows, step = np.nonzero(lengths > 1)  # others are padding, or slates with 'no click' only
    positions = np.arange(1, slates.shape[2])
    shown = positions < lengths[rows, step][:, None]
    items = [row[mask].tolist() for row, mask in zip(slates[rows, step, 1:], shown, strict=True)]
    clicks = [[int(place) - 1] if place > 0 else [] for place in clicked[rows, step]]
    columns = {
        "user": users[rows].astype(str),
        "items": pl.Series(items, dtype=pl.List(pl.Int64)).cast(pl.List(pl.String)),
        "clicks": pl.Series(clicks, dtype=pl.List(pl.Int64)),
        "looked": (lengths[rows, step] - 1).tolist(),
    }
    return pl.DataFrame(columns)


SHOWN = ("time", "user", "items", "clicks")
PUBLISHED: Mapping[str, Published] = {
    "yandex": Published(SHOWN, read_yandex),
    "open-bandit": Published((*SHOWN, "looked", "propensity"), read_open_bandit),
    "kuairand": Published((*SHOWN, "looked"), read_kuairand),
    "finn": Published(("user", "items", "clicks", "looked"), read_finn),
}


def read_obp(feedback: Mapping[str, Any]) -> ClickLog:
    """Read a feedback dictionary: ``action``, ``reward`` and optionally ``pscore``, ``slate_id`` and ``position``.

    All lists belong to user 0 without ``user``. ``pscore_cascade`` holds the propensities of lists down to a position.
    ``action_context`` holds the features of all actions, which are on offer in every row.
    """
    for name in ("action", "reward"):
        require(name in feedback, f"feedback must hold '{name}', it has {', '.join(map(str, feedback))}")
    actions, rewards = np.asarray(feedback["action"], np.int64), np.asarray(feedback["reward"], np.float64)
    binary = bool(np.isin(rewards, (0.0, 1.0)).all())
    require(binary, "rewards must be 0 or 1")
    require(actions.shape == rewards.shape and actions.ndim == 1, "action and reward must be equally long")
    slates = np.asarray(feedback["slate_id"]) if "slate_id" in feedback else np.arange(actions.size)
    _, rows, lengths = np.unique(slates, return_inverse=True, return_counts=True)
    order = np.lexsort((np.asarray(feedback.get("position") if "slate_id" in feedback else rows), rows))
    places = np.arange(actions.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = rows[order]
    shape = (lengths.size, int(lengths.max()))
    items, clicks = np.full(shape, MISSING, np.int64), np.zeros(shape, bool)
    items[rows, places], clicks[rows, places] = actions[order], rewards[order] == 1.0
    first = order[places == 0]
    columns: dict[str, Any] = {"users": np.zeros(lengths.size, np.int64), "items": items, "clicks": clicks}
    if feedback.get("user") is not None:
        columns["users"] = np.unique(np.asarray(feedback["user"])[first], return_inverse=True)[1]
    if feedback.get("pscore_cascade") is not None:
        scores = np.asarray(feedback["pscore_cascade"], float)[order]
        columns["propensities"] = _divide_by_above(scores, rows, places, shape)
    if feedback.get("pscore") is not None:
        columns["propensity"] = np.asarray(feedback["pscore"], np.float64)[first]
    if feedback.get("action_context") is not None:
        features = check_features(np.asarray(feedback["action_context"], np.float64), lambda row: f"action {row}")
        columns["features"] = np.broadcast_to(features, (lengths.size, *features.shape))
        columns["offered"] = np.broadcast_to(np.arange(len(features)), (lengths.size, len(features)))
    return ClickLog(**columns)


def _divide_by_above(scores: Any, rows: Any, places: Any, shape: tuple[int, int]) -> Any:
    """Return the propensity of each item given those above, from those of lists down to each position."""
    chances = np.ones(shape)
    chances[rows, places] = scores
    above = np.concatenate([np.ones((shape[0], 1)), chances[:, :-1]], axis=1)
    given = np.ones(shape)
    given[rows, places] = (chances / above)[rows, places]
    return given
