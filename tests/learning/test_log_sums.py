"""What a log teaches is what agents would have learned from its lists, one by one."""

import numpy as np
import pytest

from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.log_sums import LogSums, gather_features
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid


def make_log(lists: int = 60) -> tuple[ClickLog, np.ndarray]:
    draw = np.random.default_rng(2)
    table = round_to_grid(draw.uniform(-0.4, 0.4, (9, 4)))
    items = np.array([draw.permutation(9)[:3] for _ in range(lists)])
    items[::7, 2] = -1
    clicks = np.zeros(items.shape, bool)
    clicks[np.arange(lists), draw.integers(0, 2, lists)] = draw.random(lists) < 0.6
    return ClickLog(users=draw.integers(0, 5, lists), items=items, clicks=clicks), table


def test_sums_are_those_of_single_observations() -> None:
    log, table = make_log()
    sums = LogSums(4)
    for start in range(0, len(log), 17):
        sums.add(log.select(slice(start, start + 17)), table)
    for user in range(5):
        slow = Statistics.zero(4)
        for row in np.flatnonzero(log.users == user):
            listed = table[log.items[row][log.items[row] >= 0]]
            hits = np.flatnonzero(log.clicks[row])
            slow = slow.observe(listed, int(hits[0]) if hits.size else None)
        fast = sums[user]
        assert (fast.gram == slow.gram).all()
        assert (fast.moment == slow.moment).all()
        assert (fast.count, fast.clicks, fast.rounds) == (slow.count, slow.clicks, slow.rounds)
    assert sums.total().rounds == len(log)


def test_several_clicks_and_how_far_a_user_looked_count() -> None:
    log = ClickLog(
        users=np.array([0, 0]),
        items=np.array([[0, 1, 2], [2, 1, 0]]),
        clicks=np.array([[True, False, True], [False, False, False]]),
        looked=np.array([-1, 2]),
    )
    sums = LogSums(3)
    sums.add(log, np.eye(3, dtype=np.float32))
    assert np.diag(sums[0].gram).tolist() == [1.0, 2.0, 2.0]
    assert sums[0].moment.tolist() == [1.0, 0.0, 1.0]
    assert (sums[0].count, sums[0].clicks, sums[0].rounds) == (5, 2, 3)


def test_features_come_from_the_table_the_offers_or_the_lists() -> None:
    log, table = make_log(10)
    from_table = gather_features(log, table)
    offered = np.tile(np.arange(9)[::-1], (10, 1))
    inline = ClickLog(users=log.users, items=log.items, clicks=log.clicks, offered=offered, features=table[offered])
    shown = (log.items >= 0)[:, :, None]
    assert (np.where(shown, gather_features(inline, None), 0) == np.where(shown, from_table, 0)).all()
    own = ClickLog(users=log.users, items=log.items, clicks=log.clicks, features=from_table)
    assert gather_features(own, None) is own.features
    with pytest.raises(ValueError, match="this log has no features: give a table of items"):
        gather_features(log, None)
