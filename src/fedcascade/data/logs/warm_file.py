"""What a log taught, in a file: the sums of each user, from which a server or a ranker can start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from fedcascade.checks import require
from fedcascade.data.state_file import SUMS, read_state_file, write_state_file
from fedcascade.learning.log_sums import LogSums


@dataclass(frozen=True, eq=False, kw_only=True)
class WarmState:
    """The sums of each user, the users' names in order, and how many lists of the log they hold.

    ``ranker`` is what a ``Ranker`` knows beside them; it is empty where ``fedcascade fit`` wrote the file.
    """

    sums: LogSums
    users: tuple[str, ...]
    policy: str
    log: str
    lists: int
    is_complete: bool
    ranker: Mapping[str, Any] = field(default_factory=dict)


def save_warm(path: str | PathLike[str], state: WarmState) -> None:
    """Write a state so that the file appears whole or not at all; sums are exact, so loading gives the same bits."""
    sums, count = state.sums, state.sums.users
    facts = {"policy": state.policy, "log": state.log, "lists": state.lists, "complete": state.is_complete,
             "users": list(state.users)}  # fmt: skip
    arrays = {"gram": sums.gram[:count], "moment": sums.moment[:count], "counts": sums.counts[:count]}
    write_state_file(path, SUMS, facts | arrays | ({"ranker": state.ranker} if state.ranker else {}))


def load_warm(path: str | PathLike[str]) -> WarmState:
    """Read what ``save_warm`` wrote, and ``fedcascade fit`` before it named kinds of states."""
    state = read_state_file(path, SUMS)
    try:
        return _make_state(state)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not what a log taught: {error}") from None


def _make_state(state: Mapping[str, Any]) -> WarmState:
    gram, moment, counts = (np.asarray(state[name]) for name in ("gram", "moment", "counts"))
    require(moment.ndim == 2 and moment.shape[1] > 0, f"moments must be a row for each user, got {moment.shape}")
    n, d = moment.shape
    fits = gram.shape == (n, d, d) and counts.shape == (n, 3)
    require(fits, f"grams of {gram.shape} and counts of {counts.shape} do not fit moments of {moment.shape}")
    kinds = [array.dtype.str[1:] for array in (gram, moment, counts)]
    require(kinds == ["f8", "f8", "i8"], "sums must be of float64 and counts of int64")
    users = tuple(state["users"])
    named = len(users) == n == len(set(users)) and all(isinstance(name, str) for name in users)
    require(named, f"users must be {n} different names")
    sums = LogSums(d)
    sums.gram, sums.moment, sums.counts, sums.users = gram, moment, counts, n
    return WarmState(sums=sums, users=users, policy=str(state["policy"]), log=str(state["log"]),
                     lists=int(state["lists"]), is_complete=bool(state["complete"]),
                     ranker=state.get("ranker", {}))  # fmt: skip
