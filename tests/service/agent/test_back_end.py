"""What a back end relies on: lists of other rankings, and a server that is away at the start."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.pool import AgentPool

from ..helpers import CuttableTransport, RunningService, serve_in_process

D = 3
POLICY = replace(POLICIES["population"], trigger=Always())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db", policy=POLICY) as service:
        yield service


def open_pool(
    running: RunningService, path: Path, transport: CuttableTransport | None = None, **options: Any
) -> AgentPool:
    options |= {"policy": POLICY, "min_observations": 0, "pauses": (0.005, 0.05)}
    return AgentPool("", store=str(path), transport=transport or CuttableTransport(running), **options)


@pytest.mark.parametrize("clicked", [None, 0, 2])
def test_a_list_of_another_ranking_counts_like_the_agents_own(
    running: RunningService, tmp_path: Path, clicked: int | None
) -> None:
    items = np.eye(D, dtype=np.float32)[[2, 0, 1]]
    with open_pool(running, tmp_path / "agents.db", tokens=running.operator.create_tokens(2)) as pool:
        own, other = pool.get("own"), pool.get("other")
        shown = own.recommend(items, D)
        own.feedback(shown, clicked)
        other.learn(shown.features, clicked=clicked)
        assert pool.flush(30), pool.trouble
        assert running.writer is not None
        sums = running.writer.submit(lambda _, state: [state.get_statistics(each.id) for each in (own, other)]).result()
        np.testing.assert_array_equal(sums[0].gram, sums[1].gram)
        np.testing.assert_array_equal(sums[0].moment, sums[1].moment)
        assert (sums[0].count, sums[0].clicks, sums[0].rounds) == (sums[1].count, sums[1].clicks, sums[1].rounds)
        for wrong in (np.eye(D + 1)[:2], np.full((2, D), np.nan)):
            with pytest.raises(ValueError, match=r"^[^\n]+$"):
                other.learn(wrong, clicked=0)


def test_a_new_pool_needs_the_server_once_and_says_so(running: RunningService, tmp_path: Path) -> None:
    away = CuttableTransport(running)
    away.up = False
    tokens = running.operator.create_tokens(2)
    with open_pool(running, tmp_path / "agents.db", transport=away, tokens=tokens) as pool:
        with pytest.raises(ConnectionError, match="the first agent of a new store needs the server's terms"):
            pool.get("ann")
        away.up = True
        pool.get("ann")
        away.up = False
        bob = pool.get("bob")  # the terms are known now, and enrolment can wait
        bob.feedback(bob.recommend(np.eye(D), 2), 0)
    with open_pool(running, tmp_path / "agents.db", transport=away) as pool:
        cid = pool.get("cid")
        assert cid.recommend(np.eye(D), 2).items.size == 2
        away.up = True
        assert pool.flush(30), pool.trouble
        assert running.operator.fetch_overview().enrolled == 1
