"""Many agents are counted in the store: no page reads or gets a list of them, whoever opens it and however often."""

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedcascade.service.dashboard.view import (
    MAX_DETAILED,
    Crowd,
    build_update,
    build_view,
    count_crowd,
    read_feed_state,
)
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import SqliteStore


class CountingStore(SqliteStore):
    """A store that counts the rows that it hands out."""

    rows = 0

    def fetch_rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        fetched: list[tuple[object, ...]] = super().fetch_rows(statement, *values)
        self.rows += len(fetched)
        return fetched


def fill_journal(path: Path, agents: int) -> CountingStore:
    """A journal in which each agent has spoken once, the first half in three clusters and the others alone."""
    with closing(open_store(f"sqlite:///{path}")) as store, store.transaction():
        assert isinstance(store, SqliteStore)
        rows = ((n, 1_000 * n, 10 + n, "forced", 5, 9, 2, agents // 2 + 3) for n in range(1, agents + 1))
        store.connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)", rows)
        moves = ((n, 1_000 * n, 10 + n, 1 + n % 3 if n <= agents // 2 else n) for n in range(1, agents + 1))
        store.connection.executemany("INSERT INTO move VALUES (?, ?, ?, ?)", moves)
    opened = open_store(f"sqlite:///{path}")
    opened.__class__ = CountingStore
    assert isinstance(opened, CountingStore)
    return opened


@pytest.mark.parametrize("agents", [3_000, pytest.param(120_000, marks=pytest.mark.long)])
def test_a_page_of_many_agents_costs_few_rows_and_few_bytes(
    agents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcascade.service.dashboard.view.AGE_SAMPLE", 500)
    now = 1_000 * agents
    with closing(fill_journal(tmp_path / "store.db", agents)) as store:
        state = read_feed_state(store, agents - 1, now)
        assert state.crowd is not None
        view = build_view(store, agents - 1, now, crowd=state.crowd)
        assert store.rows < 1_500
        assert len(json.dumps(view)) < 30_000
        assert (view["detailed"], view["agents"], view["members"]) == (False, None, agents - 1)
        assert view["clusters"] == agents // 2 + 2
        assert [size for _, size in view["sizes"]["largest"][:4]] == [agents // 6] * 3 + [1]
        assert sum(view["ages"]) == agents - 1
        assert view["uploads"] == view["causes"]["forced"] == agents - 1
        update = build_update(state, store, agents, now)
        assert update is not None
        assert (update["uploads"], update["clusters"]) == (1, agents // 2 + 3)
        assert store.rows < 3_000


def test_a_summary_is_counted_anew_when_it_is_old_for_what_it_costs(tmp_path: Path) -> None:
    with closing(fill_journal(tmp_path / "store.db", 2 * MAX_DETAILED)) as store:
        crowd = count_crowd(store, 2 * MAX_DETAILED, 0)
        assert crowd is not None
        cheap = Crowd(crowd.members, crowd.sizes, crowd.ages, time.monotonic() - 1.0, 1e-6)
        dear = Crowd(crowd.members, crowd.sizes, crowd.ages, time.monotonic(), 1e6)
        assert read_feed_state(store, 2 * MAX_DETAILED, 0, dear).crowd is dear
        assert read_feed_state(store, 2 * MAX_DETAILED, 0, cheap).crowd is not cheap
        state = read_feed_state(store, MAX_DETAILED, 0)
        assert state.crowd is None
        assert build_update(state, store, 2 * MAX_DETAILED, 0)["detailed"] is False  # type: ignore[index]
