"""A server that is written down and read back goes on to the same bits, whatever its policy."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid

AGENTS, DIMENSION = 6, 3


def make_uploads(count: int, seed: int = 3) -> list[Upload]:
    """Uploads of agents of two kinds, who click items along different axes."""
    random = np.random.default_rng(seed)
    uploads = []
    for sequence in range(count):
        agent = int(random.integers(AGENTS))
        statistics = Statistics.zero(DIMENSION)
        for _ in range(20):
            items = np.abs(random.normal(size=(2, DIMENSION)))
            items /= 1.001 * np.linalg.norm(items, axis=1, keepdims=True)
            hits = np.flatnonzero(random.random(2) < items[:, agent % 2] ** 2)
            statistics = statistics.observe(round_to_grid(items), int(hits[0]) if hits.size else None)
        uploads.append(Upload(agent=agent, sequence=sequence + 1, cause=Cause.FORCED, statistics=statistics))
    return uploads


def sharpen(policy: Policy) -> Policy:
    """The policy with constants at which edges vanish and groups split within a few uploads."""
    return policy.with_known_constants({"alpha_d": 0.6, "alpha_2": 0.5, "lambda_": 1.0})


def make_server(policy: Policy) -> Server:
    return Server(policy=policy, agents=AGENTS, dimension=DIMENSION, truth=np.arange(AGENTS) % 2)


def flatten(value: Any) -> Any:
    """A state or an answer as plain values that can be compared to the bit."""
    match value:
        case np.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case Statistics():
            return flatten(value.gram), flatten(value.moment), value.count, value.clicks, value.rounds
        case dict():
            return {key: flatten(item) for key, item in value.items()}
        case list() | tuple():
            return [flatten(item) for item in value]
    return value


@pytest.mark.parametrize("name", POLICIES)
def test_a_restored_server_goes_on_to_the_same_bits(name: str) -> None:
    policy = sharpen(POLICIES[name])
    server, uploads = make_server(policy), make_uploads(40)
    for upload in uploads[:20]:
        server.receive(upload)
    state = deepcopy(server.to_state())
    restored = Server.from_state(deepcopy(state), policy=policy, dimension=DIMENSION)
    assert flatten(restored.to_state()) == flatten(state)
    for upload in uploads[20:]:
        assert flatten(restored.receive(upload)) == flatten(server.receive(upload))
    assert flatten(restored.to_state()) == flatten(server.to_state())
    assert flatten(restored.answer_arrival(0)) == flatten(server.answer_arrival(0))
    assert len(restored.groups) == len(server.groups)
    if name in ("fedc3ucb-h", "population", "phase-fclub"):
        assert len(server.groups) > 1, "the groups must have changed, or this test shows little"
    if name == "fedc3ucb-h":
        assert not server.groups.to_state()["edges"].all()


@pytest.mark.parametrize("name", ["fedlinucb", "fedind", "fedc3ucb-h", "population"])
def test_agents_join_and_leave_a_restored_server_as_they_would_the_first(name: str) -> None:
    policy = sharpen(POLICIES[name])
    server, uploads = make_server(policy), make_uploads(30)
    for upload in uploads[:15]:
        server.receive(upload)
    restored = Server.from_state(deepcopy(server.to_state()), policy=policy, dimension=DIMENSION)
    for either in (server, restored):
        either.forget(2)
        assert either.join() == AGENTS - 1
        for upload in uploads[15:]:
            either.receive(upload)
    assert flatten(restored.to_state()) == flatten(server.to_state())


def test_states_of_another_format_or_dimension_are_refused() -> None:
    policy = POLICIES["fedc3ucb-h"]
    state = make_server(policy).to_state()
    with pytest.raises(ValueError, match="format 1, got 2"):
        Server.from_state(state | {"format": 2}, policy=policy, dimension=DIMENSION)
    with pytest.raises(ValueError, match="dimension must be 3, got 4"):
        Server.from_state(state, policy=policy, dimension=4)
