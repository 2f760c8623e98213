"""Fit: add up what a log says about each user, batch by batch, so that it can be interrupted and resumed."""

import time
from collections.abc import Callable
from pathlib import Path

from fedcascade.checks import require
from fedcascade.data.logs.reader import Log, Names
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.log_sums import NO_FEATURES, LogSums
from fedcascade.saved import WarmState, load_warm, save_warm

SAVE_EVERY = 30.0  # seconds between states of an unfinished fit


def fit_log(log: Log, policy: str, out: Path, *, progress: Callable[[int], None] | None = None) -> WarmState:
    """Sum up a log into a file; a file that an interrupted fit of the same log has left is continued."""
    source, done, sums = str(log.path), 0, None
    if out.exists():
        earlier = load_warm(out)
        advice = "name another file, or remove it"
        require(earlier.log == source, f"{out} holds the sums of {earlier.log}: {advice}")
        require(not earlier.is_complete, f"{out} is complete already: {advice}")
        done, sums = earlier.lists, earlier.sums
        log.users.number_all(earlier.users)
    table, row, saved = None if log.table is None else log.table.features, 0, time.monotonic()
    for batch in log.batches():
        if sums is None:
            sums = LogSums(_find_dimension(log, batch))
        if row + len(batch) > done:
            sums.add(batch.select(slice(max(0, done - row), None)), table)
        row += len(batch)
        if progress is not None:
            progress(row)
        if row > done and time.monotonic() - saved > SAVE_EVERY:
            save_warm(out, _make_state(sums, log.users, policy, source, row, is_complete=False))
            saved = time.monotonic()
    assert sums is not None
    state = _make_state(sums, log.users, policy, source, row, is_complete=True)
    save_warm(out, state)
    return state


def _make_state(sums: LogSums, users: Names, policy: str, log: str, lists: int, *, is_complete: bool) -> WarmState:
    return WarmState(sums=sums, users=tuple(users), policy=policy, log=log, lists=lists, is_complete=is_complete)


def _find_dimension(log: Log, batch: ClickLog) -> int:
    if log.table is not None:
        return log.table.dimension
    require(batch.features is not None, NO_FEATURES)
    assert batch.features is not None
    return int(batch.features.shape[2])
