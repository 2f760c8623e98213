"""An agent whose weight is abnormal is named, by a metric and on the page; busy and idle users are not."""

from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.service.server.metrics import find_outsized_agents
from fedcascade.service.server.state import ServerState
from fedcascade.testing.stores import record_upload

from ..helpers import build_unit_upload, serve_in_process


def make_state(counts: list[int], policy: str = "fedlinucb") -> ServerState:
    """A server whose agents, numbered from 100, hold that many observations."""
    state = ServerState(POLICIES[policy], 3)
    state.server = Server(policy=state.policy, agents=len(counts), dimension=3)
    state.server.holdings.count[:] = counts
    state.agents = 100 + np.arange(len(counts))
    state.places = {agent: place for place, agent in enumerate(state.agents.tolist())}
    return state


def test_one_agent_among_equals_that_has_far_more_is_named() -> None:
    [outsized] = find_outsized_agents(make_state([50, 60, 40, 55, 5_000, 45]))
    assert outsized.agent == 104
    assert outsized.share == pytest.approx(5_000 / 5_250)
    assert outsized.ratio == pytest.approx(5_000 / np.sqrt(50 * 55))


def test_an_agent_in_no_group_raises_no_alert() -> None:
    assert find_outsized_agents(make_state([50, 60, 40, 55, 5_000, 45], policy="fedind")) == []


def test_even_many_liars_do_not_hide_each_other() -> None:
    found = find_outsized_agents(make_state([50, 60, 40, 55, 45, 50, 52, 10**6, 10**7, 10**8]))
    assert [outsized.agent for outsized in found] == [109, 108, 107]


@pytest.mark.parametrize("seed", range(20))
def test_honest_populations_raise_no_alert(seed: int) -> None:
    """Equal users, users by Zipf's law, and some that have only just come."""
    random = np.random.default_rng(seed)
    equal = random.poisson(400, 40)
    zipf = random.poisson(40_000 / np.arange(1, 41))
    newcomers = np.concatenate([equal, random.poisson(40, 10)])
    for counts in (equal, zipf, newcomers):
        assert find_outsized_agents(make_state(counts.tolist())) == []


def test_of_few_agents_nobody_is_named_and_none_before_the_first_upload() -> None:
    assert find_outsized_agents(make_state([1, 1, 1, 10**9])) == []
    assert find_outsized_agents(ServerState(POLICIES["fedlinucb"], 3)) == []


def test_the_metric_and_the_page_name_the_agent(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agents = [running.enrol() for _ in range(6)]
        for agent in agents[1:]:
            agent.exchange(build_unit_upload(1, 0, 3))
        assert running.writer is not None
        upload = build_unit_upload(1, 0, 3).to_upload(agents[0].agent, 3)
        many = sum((upload.statistics for _ in range(200)), upload.statistics)
        large = type(upload)(agent=upload.agent, sequence=1, cause=upload.cause, statistics=many)
        running.writer.submit(lambda store, state: record_upload(store, state, large, 5)).result()
        text = running.transport.send("GET", "/metrics", b"", {}).content.decode()
        assert "fedcascade_outsized_share 0.97" in text
        assert str(agents[0].agent) not in text  # anybody may read the metrics
