"""Description of a log and of its uses."""

from typing import Any

import numpy as np
import polars as pl

from fedcascade.data.logs.columns import LONGEST_LIST
from fedcascade.data.logs.reader import Log
from fedcascade.data.logs.writer import to_frame
from fedcascade.learning.click_log import MISSING

IDENTITY = pl.col("^(time|user|items|clicks)$")  # rows with the same values are counted as repeated


def describe_log(log: Log) -> dict[str, Any]:
    """Return counts, click rates by position, propensities, features and possible uses."""
    lists = clicked = several = 0
    reward = 0.0
    shown, clicks = np.zeros((2, LONGEST_LIST), np.int64)
    lengths: set[int] = set()
    times: list[float] = []
    least = 1.0
    dimension = None if log.table is None else log.table.dimension
    digests = []
    for batch in log.batches():
        lists += len(batch)
        clicked += int(batch.clicks.any(axis=1).sum())
        reward += float(batch.values.sum())
        several += int((batch.clicks.sum(axis=1) > 1).sum())
        shown[: batch.items.shape[1]] += (batch.items != MISSING).sum(axis=0)
        clicks[: batch.items.shape[1]] += batch.clicks.sum(axis=0)
        lengths |= set(np.unique(batch.lengths).tolist())
        if batch.times is not None:
            times = [min([*times[:1], batch.times.min()]), max([*times[1:], batch.times.max()])]
        if batch.list_propensity is not None:
            least = min(least, float(batch.list_propensity.min()))
        if batch.features is not None:
            dimension = batch.features.shape[2]
        digests.append(to_frame(batch).select(IDENTITY).hash_rows())
    known = {column: column in log.columns for column in ("time", "looked", "propensity", "propensities", "offered")}
    has_propensity = known["propensity"] or known["propensities"]
    return {
        "lists": lists,
        "users": len(log.users),
        "items": len(log.items),
        "lengths": [min(lengths), max(lengths)],
        "clicked": clicked / lists,
        "several_clicks": several / lists,
        "reward": reward / lists if "rewards" in log.columns else None,
        "repeated_rows": lists - pl.concat(digests).n_unique(),
        "positions": [
            {"position": place, "shown": int(count), "clicked": float(hits / count)}
            for place, (count, hits) in enumerate(zip(shown[: max(lengths)], clicks, strict=False))
        ],
        "times": [float(time) for time in times] or None,
        "least_propensity": least if has_propensity else None,
        "dimension": dimension,
        "columns": list(log.columns),
        "uses": list_uses(log.columns, has_features=dimension is not None),
    }


def list_uses(columns: tuple[str, ...], *, has_features: bool) -> dict[str, str]:
    """Return the uses of a log, each with 'yes' or the missing data."""
    per_position, whole = "propensities" in columns, "propensity" in columns or "propensities" in columns
    features = "yes" if has_features else "no: no features, and no table of items"
    cascade = "yes" if per_position else "no: no propensities of positions"
    return {
        "click models": "yes",
        "warm start": features,
        "replay": "yes, if the logger chose uniformly at random" if not whole else "yes",
        "direct method": features,
        "ips, snips": "yes" if whole else "no: no propensities",
        "rips": cascade,
        "cascade-dr": features if per_position else cascade,
    }
