"""What an application may say of a list, and what the agent and the server make of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.data.logs import read_log, write_log
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import RemoteAgent

from ..helpers import CuttableTransport, RunningService, serve_in_process

D = 4
TALKATIVE = replace(POLICIES["fedc3ucb-h"], trigger=Always())


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db", dimension=D) as service:
        yield service


@pytest.fixture
def agent(running: RunningService, tmp_path: Path):  # type: ignore[no-untyped-def]
    with open_agent(running, tmp_path / "agent.db", running.operator.create_tokens()[0]) as opened:
        yield opened


def open_agent(running: RunningService, path: Path, token: str | None = None, **options: Any) -> RemoteAgent:
    chosen = dict[str, Any](policy=TALKATIVE, min_observations=0, pauses=(0.005, 0.05)) | options
    return connect("", store=str(path), token=token, transport=CuttableTransport(running), **chosen)


def count_held(agent: RemoteAgent) -> tuple[int, int, int]:
    """How many observations, clicks and rounds the server holds of an agent, once it has all uploads."""
    assert agent.flush(20), agent.trouble
    standing = agent.client.fetch_standing()
    return standing.count, standing.clicks, standing.rounds


@pytest.mark.parametrize("kind", [int, np.int64, np.uint64, lambda value: np.array(value)])
def test_whole_numbers_of_any_kind_are_positions_and_impressions(
    running: RunningService, tmp_path: Path, agent: RemoteAgent, kind: Any
) -> None:
    shown = agent.recommend(np.eye(D), 3)
    agent.feedback(kind(shown.impression), kind(1))
    with pytest.raises(ValueError, match="no open list"):
        agent.feedback(kind(shown.impression), kind(1))  # once is enough, however the number is written
    assert count_held(agent) == (2, 1, 1)
    agent.close()
    with open_agent(running, tmp_path / "agent.db") as again:  # the file is as good as before
        again.feedback(again.recommend(np.eye(D), kind(3)), kind(0))
        assert count_held(again) == (3, 2, 2)


def test_the_first_hit_of_a_mask_is_a_click(agent: RemoteAgent) -> None:
    mask = np.array([False, True, False])
    agent.feedback(agent.recommend(np.eye(D), 3), np.flatnonzero(mask)[0])
    assert count_held(agent) == (2, 1, 1)


@pytest.mark.parametrize("wrong", [1.0, True, np.True_, "1", np.float32(1.0), [0, 1.5], [True, False], {"clicked": 1}])
def test_what_is_no_position_is_refused_in_one_line_and_changes_nothing(agent: RemoteAgent, wrong: Any) -> None:
    shown = agent.recommend(np.eye(D), 3)
    for words in ({"clicked": wrong}, {"clicked_item": wrong}, {"clicked": None, "looked_until": wrong}):
        with pytest.raises(ValueError, match="must be a whole number, got") as caught:
            agent.feedback(shown, **words)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="impression must be a whole number"):
        agent.feedback(wrong, 0)
    agent.feedback(shown, 0)
    assert count_held(agent) == (1, 1, 1)


def test_several_clicks_teach_everything_up_to_the_last(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), D)
    agent.feedback(shown, [2, 0])
    assert count_held(agent) == (3, 2, 2)
    held = agent.client.fetch_standing().unpack_held(D)
    features = shown.features.astype(float)
    np.testing.assert_array_equal(held.gram, features[:3].T @ features[:3])
    np.testing.assert_array_equal(held.moment, features[0] + features[2])


def test_items_stand_for_their_positions(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), 3)
    agent.feedback(shown, clicked_item=shown.items[1])
    assert count_held(agent) == (2, 1, 1)
    shown = agent.recommend(np.eye(D), 3)
    agent.feedback(shown.impression, clicked_item=shown.items[:2])
    assert count_held(agent) == (4, 3, 3)
    [missing] = set(range(D)) - set((shown := agent.recommend(np.eye(D), 3)).items.tolist())
    with pytest.raises(ValueError, match=rf"which shows items .* got {missing}"):
        agent.feedback(shown, clicked_item=missing)


def test_what_the_user_did_not_look_at_teaches_nothing(agent: RemoteAgent) -> None:
    agent.feedback(agent.recommend(np.eye(D), D), None, looked_until=1)
    assert count_held(agent) == (2, 0, 1)
    agent.feedback(agent.recommend(np.eye(D), D), 0, looked_until=2)
    assert count_held(agent) == (5, 1, 2)
    with pytest.raises(ValueError, match=r"looked_until must be a position in 2\.\.3"):
        agent.feedback(agent.recommend(np.eye(D), D), 2, looked_until=1)


def test_feedback_says_something(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), 2)
    for words in ({}, {"clicked": 0, "clicked_item": 1}):
        with pytest.raises(ValueError, match="give either clicked"):
            agent.feedback(shown, **words)


def test_a_list_of_another_agent_is_refused_by_name(
    running: RunningService, tmp_path: Path, agent: RemoteAgent
) -> None:
    with open_agent(running, tmp_path / "other.db", running.operator.create_tokens()[0]) as other:
        foreign, own = other.recommend(np.eye(D), 2), agent.recommend(np.eye(D), 2)
        for named in (foreign, foreign.impression, 1):
            with pytest.raises(ValueError, match="has no open list"):
                agent.feedback(named, 0)
        agent.feedback(own, 0)
        assert count_held(agent)[2] == 1


def test_a_new_agent_learns_its_users_history_once(running: RunningService, tmp_path: Path, agent: RemoteAgent) -> None:
    clicks = np.array([[False, True], [False, False]])
    history = ClickLog(users=np.array([7, 7]), items=np.array([[0, 1], [2, 0]]), clicks=clicks)
    upload = agent.learn_history(history, np.eye(D))
    assert upload is not None
    assert count_held(agent) == (4, 1, 2)
    assert agent.estimate[1] > 0
    agent.close()
    with open_agent(running, tmp_path / "agent.db") as again:
        with pytest.raises(ValueError, match="has learned a history already"):
            again.learn_history(history, np.eye(D))
        assert count_held(again) == (4, 1, 2)


@pytest.mark.parametrize(
    ("users", "features", "words"),
    [
        ([7, 8], np.eye(D), "must be that of one user, got 2 users"),
        ([7, 7], np.eye(D + 1), "must have 4 features per item, as the agent has, got 5"),
        ([7, 7], 2 * np.eye(D), "trace of gram must be at most the count"),
        ([7, 7], None, "this log has no features"),
    ],
)
def test_a_history_that_cannot_be_the_users_is_refused(
    agent: RemoteAgent, users: Any, features: Any, words: str
) -> None:
    log = ClickLog(users=np.array(users), items=np.array([[0, 1], [2, 0]]), clicks=np.zeros((2, 2), bool))
    with pytest.raises(ValueError, match=words):
        agent.learn_history(log, features)
    assert agent.buffered == 0


def test_an_agent_exports_the_log_of_its_last_lists(running: RunningService, tmp_path: Path) -> None:
    [token] = running.operator.create_tokens()
    oracle = EpsilonMixed(length=2, epsilon=0.5)
    with open_agent(running, tmp_path / "agent.db", token, oracle=oracle, record_lists=3) as agent:
        with pytest.raises(ValueError, match="has no recorded list: connect with record_lists=1000"):
            agent.export_log()
        shown = [agent.recommend(0.5 * np.eye(D)[: 3 + number % 2]) for number in range(5)]
        for number in (1, 2, 3):
            agent.feedback(shown[number], clicked=None if number == 2 else 0, looked_until=1)
    with open_agent(running, tmp_path / "agent.db", oracle=oracle) as agent:  # what was recorded stays
        log = agent.export_log()
        assert log.items.tolist() == [shown[number].items.tolist() for number in (2, 3)]  # the first is too old
        assert log.propensities is not None
        assert log.propensities.tolist() == [shown[number].propensities.tolist() for number in (2, 3)]  # type: ignore[union-attr]
        assert log.clicks.tolist() == [[False, False], [True, False]]
        assert log.count_looked().tolist() == [2, 2]
        assert log.offered is not None
        assert (log.offered != -1).sum(axis=1).tolist() == [3, 4]
        write_log(tmp_path / "log.jsonl", log)
        agent.erase()
    again = read_log(tmp_path / "log.jsonl").read()
    assert again.features is not None
    assert (again.features == log.features).all()
