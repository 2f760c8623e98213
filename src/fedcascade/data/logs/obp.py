"""The feedback dictionary of Open Bandit Pipeline, single actions and slates, as a log."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcascade.checks import require
from fedcascade.data.logs.items import check_features
from fedcascade.learning.click_log import NOBODY, ClickLog


def read_obp(feedback: Mapping[str, Any]) -> ClickLog:
    """Read a feedback dictionary: ``action``, ``reward`` and, where they are there, ``pscore`` and ``slate_id``.

    Everybody is user 0 unless there is a ``user``. ``pscore_cascade`` are the chances of the list down to a position;
    ``action_context`` has the features of every action, which are then on offer in every row.
    """
    for name in ("action", "reward"):
        require(name in feedback, f"feedback must hold '{name}', it has {', '.join(map(str, feedback))}")
    actions, rewards = np.asarray(feedback["action"], np.int64), np.asarray(feedback["reward"], np.float64)
    binary = bool(np.isin(rewards, (0.0, 1.0)).all())
    require(binary, "rewards must be 0 or 1: this is a log of clicks")
    require(actions.shape == rewards.shape and actions.ndim == 1, "action and reward must be equally long")
    slates = np.asarray(feedback["slate_id"]) if "slate_id" in feedback else np.arange(actions.size)
    _, rows, lengths = np.unique(slates, return_inverse=True, return_counts=True)
    order = np.lexsort((np.asarray(feedback.get("position") if "slate_id" in feedback else rows), rows))
    places = np.arange(actions.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = rows[order]
    shape = (lengths.size, int(lengths.max()))
    items, clicks = np.full(shape, NOBODY, np.int64), np.zeros(shape, bool)
    items[rows, places], clicks[rows, places] = actions[order], rewards[order] == 1.0
    first = order[places == 0]
    columns: dict[str, Any] = {"users": np.zeros(lengths.size, np.int64), "items": items, "clicks": clicks}
    if feedback.get("user") is not None:
        columns["users"] = np.unique(np.asarray(feedback["user"])[first], return_inverse=True)[1]
    if feedback.get("pscore_cascade") is not None:
        columns["propensities"] = _divide_by_above(np.asarray(feedback["pscore_cascade"], float)[order], rows, places,
                                                   shape)  # fmt: skip
    if feedback.get("pscore") is not None:
        columns["propensity"] = np.asarray(feedback["pscore"], np.float64)[first]
    if feedback.get("action_context") is not None:
        features = check_features(np.asarray(feedback["action_context"], np.float64), lambda row: f"action {row}")
        columns["features"] = np.broadcast_to(features, (lengths.size, *features.shape))
        columns["offered"] = np.broadcast_to(np.arange(len(features)), (lengths.size, len(features)))
    return ClickLog(**columns)


def _divide_by_above(scores: Any, rows: Any, places: Any, shape: tuple[int, int]) -> Any:
    """The chance of each item given those above, from the chances of lists down to each position."""
    chances = np.ones(shape)
    chances[rows, places] = scores
    above = np.concatenate([np.ones((shape[0], 1)), chances[:, :-1]], axis=1)
    given = np.ones(shape)
    given[rows, places] = (chances / above)[rows, places]
    return given
