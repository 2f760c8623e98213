"""One agent's weight is bounded by time and by the longest list, and an upload never reveals a single observation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.connection import connect
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.settings import FOR_SIMULATIONS, UploadBounds
from fedcascade.service.server.state import replay_log
from fedcascade.service.store.open import open_store

from ..helpers import RunningService, serve_in_process

BOUNDS = UploadBounds(longest_list=4, min_observations=6, rounds_burst=100, rounds_per_hour=60.0)


def build_message(sequence: int, rounds: int, count: int) -> wire.UploadMessage:
    """An upload of so many rounds and observations, all of one item that nobody clicked."""
    gram = np.zeros((3, 3))
    gram[0, 0] = float(count)
    statistics = Statistics(gram, np.zeros(3), count, 0, rounds)
    return wire.UploadMessage.from_upload(Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=statistics))


class Hands:
    """The hands of a clock that a test sets."""

    time = 1_700_000_000.0


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def running(tmp_path: Path, hands: Hands) -> Iterator[RunningService]:
    clock = Clock(now=lambda: hands.time)
    with serve_in_process(tmp_path / "store.db", bounds=BOUNDS, clock=clock) as service:
        yield service


class SharedTransport:
    """The transport of a service, for an agent that must not close it."""

    def __init__(self, running: RunningService) -> None:
        self.send = running.transport.send

    def close(self) -> None:
        """Leave the service's transport open."""


def enrol(running: RunningService, hands: Hands) -> Any:
    agent = running.enrol()
    agent.clock = Clock(now=lambda: hands.time)
    return agent


def refuse(agent: Any, message: wire.UploadMessage) -> Refused:
    with pytest.raises(Refused) as refused:
        agent.exchange(message)
    return refused.value


def test_rounds_grow_with_the_time_since_enrolment(running: RunningService, hands: Hands) -> None:
    agent = enrol(running, hands)
    agent.exchange(build_message(1, 90, 90))
    refusal = refuse(agent, build_message(2, 20, 20))
    assert (refusal.status, refusal.reason, refusal.retry_after) == (429, "too-many-rounds", 600.0)
    assert "100 rounds and 60 per hour" in refusal.detail
    agent.exchange(build_message(2, 10, 10))
    hands.time += 600.0
    agent.exchange(build_message(3, 10, 10))
    assert refuse(agent, build_message(4, 6, 6)).reason == "too-many-rounds"
    hands.time -= 86_400.0  # a clock that was set back takes nothing away but time
    assert refuse(agent, build_message(4, 6, 6)).reason == "too-many-rounds"
    hands.time += 86_400.0 + 3_600.0
    assert agent.exchange(build_message(4, 6, 6)).rounds == 116


def test_a_repeated_upload_is_answered_whatever_the_bounds_say(running: RunningService, hands: Hands) -> None:
    agent = enrol(running, hands)
    first = agent.exchange(build_message(1, 100, 100))
    assert agent.exchange(build_message(1, 100, 100)).count == first.count


def test_a_round_holds_no_more_than_the_longest_list(running: RunningService, hands: Hands) -> None:
    agent = enrol(running, hands)
    refusal = refuse(agent, build_message(1, 5, 21))
    assert (refusal.status, refusal.reason) == (422, "too-heavy")
    agent.exchange(build_message(1, 5, 20))


def test_an_upload_holds_no_fewer_than_the_server_asks_for(running: RunningService, hands: Hands) -> None:
    refusal = refuse(enrol(running, hands), build_message(1, 5, 5))
    assert (refusal.status, refusal.reason) == (422, "too-few")
    assert "at least 6" in refusal.detail


def test_one_lie_of_a_hundred_million_observations_is_refused_by_default(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db", bounds=UploadBounds()) as running:
        agent = running.enrol()
        assert refuse(agent, build_message(1, 10**8, 10**8)).reason == "too-many-rounds"
        assert refuse(agent, build_message(1, 1_000, 10**8)).reason == "too-heavy"
        assert refuse(agent, build_message(1, 1, 1)).reason == "too-few"
        assert agent.exchange(build_message(1, 1_000, 50_000)).count == 50_000


def test_the_terms_say_what_is_taken(running: RunningService, tmp_path: Path) -> None:
    terms = wire.decode(running.transport.send("GET", "/v1/terms", b"", {}).content, wire.Terms, wire.JSON)
    assert (terms.longest_list, terms.min_observations) == (4, 6)
    assert (terms.rounds_burst, terms.rounds_per_hour) == (100, 60.0)
    [token] = running.operator.create_tokens()
    path, transport = str(tmp_path / "agent.db"), SharedTransport(running)
    with connect("", store=path, token=token, min_observations=0, transport=transport) as agent:
        assert agent.memory.policy.trigger.least == 6
        with pytest.raises(ValueError, match="k must be <= 4"):
            agent.recommend(np.eye(3), k=5)
        agent.recommend(np.eye(3), k=3)


def test_a_replay_does_not_ask_for_the_time(running: RunningService, hands: Hands) -> None:
    """Bounds decide what is let in. What was let in is never judged again."""
    agent = enrol(running, hands)
    agent.exchange(build_message(1, 100, 100))
    store = open_store(running.url)
    assert replay_log(store, POLICIES["fedc3ucb-h"], 3).rounds == 100
    store.close()


@pytest.mark.parametrize(
    "wrong", [{"longest_list": 0}, {"min_observations": -1}, {"rounds_burst": 0}, {"rounds_per_hour": -1.0}]
)
def test_bounds_that_no_server_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        UploadBounds(**wrong)


def test_simulations_play_as_much_as_they_like() -> None:
    statistics = Statistics(np.zeros((3, 3)), np.zeros(3), 1, 0, 1)
    FOR_SIMULATIONS.check(statistics, held_rounds=10**8, seconds=0.0)
