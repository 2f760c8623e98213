"""Rewards of clicks, at once and later: what the agent learns, and what the server holds."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.triggers import Always
from fedcascade.learning.cascade import round_reward
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.ledger import settle
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused

from ..helpers import RunningService, ServerProcess, serve_in_process
from .test_feedback import TALKATIVE, open_agent

D = 4
OWN = replace(POLICIES["population"], trigger=Always())
DRIFTING = POLICIES["population"].with_constants(drift="restart")


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db", dimension=D) as service:
        yield service


@pytest.fixture(params=[TALKATIVE, OWN], ids=["fedc3ucb-h", "population"])
def agent(running: RunningService, tmp_path: Path, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    token = running.operator.create_tokens()[0]
    with open_agent(running, tmp_path / "agent.db", token, policy=request.param) as opened:
        yield opened


def read_held(agent: RemoteAgent) -> tuple[list[float], int, float]:
    """Return the moment, the clicks and the sum of rewards that the server holds, once it has all uploads."""
    assert agent.flush(20), agent.trouble
    held = agent.client.fetch_standing().unpack_held(D)
    return held.moment.tolist(), held.clicks, held.reward


def test_a_reward_reaches_the_server(running: RunningService, agent: RemoteAgent) -> None:
    for reward in (0.25, None, 0.5):
        shown = agent.recommend(np.eye(D), 1)
        agent.feedback(shown, 0, reward=reward)
    moment, clicks, reward = read_held(agent)
    assert (sum(moment), clicks, reward) == (1.75, 3, 1.75)
    text = running.transport.send("GET", "/metrics", b"", {}).content.decode()
    assert "fedcascade_click_rate 1.0\n" in text
    assert "fedcascade_reward 0.58\n" in text


def test_a_late_reward_replaces_the_expected_one(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), 2)
    agent.feedback(shown, 0, reward="later")
    moment, clicks, reward = read_held(agent)
    assert (sum(moment), clicks, reward) == (0.5, 1, 0.5)  # the prior mean
    before = agent.estimate
    agent.reward(shown, 0.875)
    agent.feedback(agent.recommend(np.eye(D)[3:], 1), None)  # the next upload carries the correction
    moment, clicks, reward = read_held(agent)
    assert (moment[int(shown.items[0])], clicks, reward) == (0.875, 1, 0.875)
    assert agent.estimate[shown.items[0]] > before[shown.items[0]]
    assert agent.memory.state.is_settled


def test_the_expected_reward_is_the_mean_so_far(agent: RemoteAgent) -> None:
    for reward in (1.0, 0.25):
        agent.feedback(agent.recommend(np.eye(D), 1), 0, reward=reward)
    agent.feedback(agent.recommend(np.eye(D), 1), 0, reward="later")
    assert read_held(agent)[2] == 1.25 + round_reward((0.5 + 1.25) / 3)


def test_several_clicks_share_a_late_reward(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), 3)
    agent.feedback(shown, [2, 0], reward="later")
    agent.reward(shown.impression, [0.25, 1.0])  # from the top
    agent.feedback(agent.recommend(np.eye(D)[3:], 1), None)
    moment, clicks, reward = read_held(agent)
    assert [moment[item] for item in shown.items] == [0.25, 0.0, 1.0]
    assert (clicks, reward) == (2, 1.25)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, math.nan, math.inf, "much", True, [0.1, 0.2], None])
def test_a_wrong_reward_is_refused_in_one_line_and_nothing_is_learned(agent: RemoteAgent, wrong: Any) -> None:
    shown = agent.recommend(np.eye(D), 2)
    if wrong is not None:
        with pytest.raises(ValueError, match="reward") as caught:
            agent.feedback(shown, 0, reward=wrong)
        assert "\n" not in str(caught.value)
    agent.feedback(shown, 0, reward="later")
    before = agent.memory.state
    with pytest.raises(ValueError, match="reward") as caught:
        agent.reward(shown, wrong)
    assert "\n" not in str(caught.value)
    assert agent.memory.state.local.buffer is before.local.buffer
    agent.reward(shown, 0.5)  # the list still takes it


def test_a_list_takes_its_reward_once(agent: RemoteAgent) -> None:
    first, second = (agent.recommend(np.eye(D), 2) for _ in range(2))
    agent.feedback(first, 0, reward="later")
    agent.feedback(second, 0, reward=0.5)
    agent.reward(first, 0.75)
    for gone in (first, second, 12345, agent.recommend(np.eye(D), 2)):  # rewarded twice, unknown, and without feedback
        with pytest.raises(ValueError, match="has no list without its reward") as caught:
            agent.reward(gone, 0.25)
        assert "\n" not in str(caught.value)
    agent.feedback(agent.recommend(np.eye(D)[3:], 1), None)
    assert read_held(agent)[1:] == (2, 1.25)


def test_a_list_without_a_click_waits_for_no_reward(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), 2)
    agent.feedback(shown, None, reward="later")
    with pytest.raises(ValueError, match="has no list without its reward"):
        agent.reward(shown, 0.5)


def test_a_reward_expires_with_its_list(running: RunningService, tmp_path: Path) -> None:
    now, token = 1e9, running.operator.create_tokens()[0]
    clock = Clock(now=lambda: now)
    options = dict[str, Any](keep_seconds=100.0, clock=clock, policy=DRIFTING, min_observations=1_000)
    with open_agent(running, tmp_path / "agent.db", token, **options) as agent:
        early, late = (agent.recommend(np.eye(D), 1) for _ in range(2))
        for shown in (early, late):
            agent.feedback(shown, 0, reward="later")
        now += 99.0
        agent.reward(early, 0.25)
        now += 2.0
        with pytest.raises(ValueError, match="expires after"):
            agent.reward(late, 0.25)
        assert agent.memory.state.local.buffer.reward == 0.25 + 0.5


def test_a_change_of_the_user_ends_the_wait_for_rewards(agent: RemoteAgent) -> None:
    shown = agent.recommend(np.eye(D), 1)
    agent.feedback(shown, 0, reward="later")
    agent.restart()
    with pytest.raises(ValueError, match="has no list without its reward"):
        agent.reward(shown, 0.25)


def test_recorded_lists_have_rewards(running: RunningService, tmp_path: Path) -> None:
    token = running.operator.create_tokens()[0]
    with open_agent(running, tmp_path / "agent.db", token, record_lists=10) as agent:
        agent.feedback(agent.recommend(np.eye(D), 2), 1)
        assert agent.export_log().rewards is None  # each click is 1
        shown = agent.recommend(np.eye(D), 2)
        agent.feedback(shown, 0, reward="later")
        agent.reward(shown, 0.25)
        assert agent.export_log().values.tolist() == [[0.0, 1.0], [0.25, 0.0]]


@pytest.mark.parametrize("policy", [TALKATIVE, OWN], ids=["fedc3ucb-h", "population"])
def test_a_server_that_lost_a_correction_gets_it_again(running: RunningService, tmp_path: Path, policy: Policy) -> None:
    token = running.operator.create_tokens()[0]
    with open_agent(running, tmp_path / "agent.db", token, policy=policy) as agent:
        shown = agent.recommend(np.eye(D), 1)
        agent.feedback(shown, 0, reward="later")
        assert agent.flush(20)
        standing = agent.client.fetch_standing()
        agent.reward(shown, 0.0)
        agent.feedback(agent.recommend(np.eye(D)[3:], 1), None)
        assert read_held(agent)[2] == 0.0
        state, note = settle(agent.memory.policy, agent.memory.state, standing)  # an older backup
        assert note == "the server has lost 1 confirmed rounds: they are sent again"
        sent = state.outbox[-1].statistics
        assert (sent.rounds, sent.reward) == (1, -0.5)


LATE = """
import sys
import numpy as np
from dataclasses import replace
from fedcascade import POLICIES, connect
from fedcascade.federation.triggers import Always

url, path, token = sys.argv[1:]
policy = replace(POLICIES["population"], trigger=Always())
agent = connect(url, store=path, token=token, policy=policy, min_observations=0)
print("ready", flush=True)
waiting = []
while True:
    shown = agent.recommend(np.eye(4), 1)
    agent.feedback(shown, 0, reward="later")
    print(f"shown {shown.impression}", flush=True)  # one write: without a buffer, a kill could tear the line
    waiting.append(shown.impression)
    if len(waiting) > 3:
        number = waiting.pop(0)
        agent.reward(number, 0.25)
        print(f"rewarded {number}", flush=True)
"""


def test_kill_minus_nine_loses_and_doubles_no_late_reward(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "sqlite:///store.db", dimension=D).start()
    try:
        running = process.connect()
        [token] = OperatorClient(running.transport, "the-operators-token-in-tests").create_tokens()
        path, lists, rewards = str(tmp_path / "agent.db"), set[str](), set[str]()
        for _ in range(4):
            command = [sys.executable, "-c", LATE, process.url, path, token]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            lines = [child.stdout.readline() for _ in range(60)]
            os.kill(child.pid, signal.SIGKILL)
            for line in [*lines, *child.stdout.readlines()]:
                kind, _, number = line.strip().partition(" ")
                (lists if kind == "shown" else rewards).add(number)
            child.wait()
            child.stdout.close()
        with connect(process.url, store=path, policy=OWN, min_observations=0) as agent:
            silent = 0  # rewards that were saved, and not printed before the kill
            for number in sorted(lists, key=int):
                try:
                    agent.reward(int(number), 0.25)  # those that wait; the others have it
                except ValueError:
                    silent += number not in rewards
                else:
                    assert number not in rewards  # once
            assert silent <= 4
            agent.feedback(agent.recommend(np.eye(D)[3:], 1), None)
            _, clicks, reward = read_held(agent)
            unprinted = clicks - len(lists)  # a kill between the feedback and its line: the reward is not known here
            assert 0 <= unprinted <= 4
            waiting = reward - 0.25 * len(lists)
            assert 0.0 <= waiting <= 0.5 * unprinted
        running.transport.close()
    finally:
        process.stop()


@pytest.mark.parametrize(("change", "is_taken"), [(0.75, False), (-0.75, False), (0.5, True)])
def test_an_upload_that_corrects_too_much_is_refused(agent: RemoteAgent, change: float, is_taken: bool) -> None:
    """A correction counts with the agent's earlier uploads: they must have a reward in [0, 1]."""
    agent.feedback(agent.recommend(np.eye(D)[:1], 1), 0, reward=0.5)
    assert agent.flush(20)
    seen = Statistics.zero(D).observe(np.eye(D, dtype=np.float32)[1:2], None)
    sums = replace(seen, moment=change * np.eye(D)[0], shortfall=-change)
    upload = Upload(agent=agent.id, sequence=2, cause=Cause.FORCED, statistics=sums)
    message = wire.UploadMessage.from_upload(upload)
    if is_taken:
        agent.client.exchange(message)
    else:
        with pytest.raises(Refused, match=r"rewards must sum|moment must lie in the range of gram"):
            agent.client.exchange(message)
    assert agent.client.fetch_standing().unpack_held(D).reward == (1.0 if is_taken else 0.5)
