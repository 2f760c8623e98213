"""Components: groups that an agent is told of, so that it can tell by itself which of them it is like."""

import numpy as np
import pytest

from fedcascade.federation.agent import Agent
from fedcascade.federation.grouping.components import (
    NUMBERS,
    blend_components,
    fill_component,
    make_components,
    measure_under,
    weigh_components,
)
from fedcascade.federation.grouping.evidence import compute_prior
from fedcascade.federation.grouping.gibbs import Model, make_memory, measure_row
from fedcascade.federation.grouping.rows import compute_width, pack_row
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

from ..test_changes import FIRST, SECOND, D, click, draw_lists, make_statistics

LIVING = POLICIES["fedc3ucb-l"]
MODEL = Model(0.0, 0.2, compute_prior(0.2, 1.0, D))
THIRD, NEARBY = np.array([0.0, 0.7, 0, 0, 0.7]), np.array([0.2, 0.5, 0.3, 0, 0.7])


def make_row(rounds: int, theta: np.ndarray, seed: int) -> np.ndarray:
    return pack_row(make_statistics(rounds, theta, seed), np.inf)


def tell(*thetas: np.ndarray) -> np.ndarray:
    """Components of groups that want ``thetas``, with 500 rounds each, and room for one more."""
    components = make_components(len(thetas) + 1, D)
    for seed, (component, theta) in enumerate(zip(components, thetas, strict=False)):
        fill_component(make_row(500, theta, 90 + seed), 1.0 / len(thetas), MODEL, component)
    return components


def weigh(row: np.ndarray, components: np.ndarray) -> np.ndarray:
    weights = np.ones(len(components) + 1)
    weigh_components(row, components, MODEL, make_memory(row), weights, 0.0)
    return weights


def test_a_component_that_is_as_wide_as_the_prior_gives_the_evidence_of_nobody() -> None:
    row = make_row(30, FIRST, 1)
    widest = np.zeros(D + NUMBERS)
    widest[D] = MODEL.variance / MODEL.prior
    assert measure_under(row, widest, MODEL.variance, make_memory(row)) == pytest.approx(measure_row(row, MODEL))


def test_clicks_say_to_which_component_an_agent_belongs() -> None:
    components = tell(FIRST, SECOND)
    assert weigh(np.zeros(compute_width(D)), components) == pytest.approx([0.4, 0.4, 0.0, 0.2])
    assert weigh(make_row(40, FIRST, 1), components)[0] > 0.95
    assert weigh(make_row(40, SECOND, 1), components)[1] > 0.95
    assert weigh(make_row(150, THIRD, 1), components)[3] > 0.95


def test_a_certain_component_is_what_an_agent_begins_with() -> None:
    components, gram, moment = tell(FIRST, SECOND), np.empty((D, D)), np.empty(D)
    blend_components(components, np.array([1.0, 0.0, 0.0, 0.0]), MODEL, 4.0, gram, moment)
    np.testing.assert_allclose(Ridge(Statistics(gram, moment, 0, 0, 0), 4.0).theta, components[0, :D], atol=1e-9)
    np.testing.assert_allclose(gram + 4.0 * np.eye(D), MODEL.variance / components[0, D] * np.eye(D), atol=1e-9)


def test_one_who_may_be_like_nobody_begins_with_nothing() -> None:
    gram, moment = np.empty((D, D)), np.empty(D)
    blend_components(make_components(2, D), np.array([0.0, 0.0, 1.0]), MODEL, MODEL.prior, gram, moment)
    np.testing.assert_allclose(gram, 0.0, atol=1e-9)
    np.testing.assert_allclose(moment, 0.0, atol=1e-9)


def count_rounds_until_found(components: np.ndarray, seed: int) -> int:
    """How many rounds after a change to ``NEARBY`` an agent finds it that is told of ``components``."""
    keeper = OwnDataKeeper(LIVING.with_constants(limit=1e9, components=len(components)), D)
    keeper.data.components[...] = components
    lists, draws = draw_lists(700, seed)
    for t, (listed, draw) in enumerate(zip(lists, draws, strict=True)):
        seen = click(listed, draw, FIRST if t < 300 else NEARBY)
        if keeper.follow(listed, seen, Ridge(keeper.total, 4.0)):
            assert t >= 300
            return t - 300
    return 400


def test_a_move_to_a_group_that_is_known_is_found_sooner() -> None:
    told, untold = tell(FIRST, SECOND, NEARBY), make_components(4, D)
    sooner = [count_rounds_until_found(told, seed) for seed in range(6)]
    later = [count_rounds_until_found(untold, seed) for seed in range(6)]
    assert np.mean(sooner) < np.mean(later)


def make_server() -> Server:
    """A server of three agents who want one thing, three who want another, and a newcomer."""
    server = Server(policy=LIVING, agents=7, dimension=D)
    for agent in range(6):
        statistics = make_statistics(200, FIRST if agent < 3 else SECOND, agent)
        server.receive(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics))
    return server


def test_a_server_tells_of_its_groups_and_leaves_the_asker_out() -> None:
    server = make_server()
    told = server.answer(6).components
    assert told is not None
    assert told[told[:, -1] > 0, -1] == pytest.approx([0.5, 0.5])
    mean = server.answer(0).components
    assert mean is not None
    own_group = Statistics.zero(D)
    for agent in (1, 2):
        own_group += server.holdings[agent]
    expected = np.zeros(D + NUMBERS)
    fill_component(pack_row(own_group, np.inf), 2 / 5, server.policy.grouping.make_model(D), expected)  # type: ignore[attr-defined]
    assert any(np.array_equal(row, expected) for row in mean)


def test_a_newcomer_that_is_told_of_groups_soon_knows_its_own() -> None:
    server = make_server()
    problem = ProblemSize(users=7, dimension=D, list_length=3, rounds=100)
    told, untold = (Agent(id=6, policy=LIVING, problem=problem, oracle=TopK(length=3)) for _ in range(2))
    told.receive(server.answer(6))
    lists, draws = draw_lists(25, 3)
    for t, (listed, draw) in enumerate(zip(lists, draws, strict=True), 1):
        for agent in (told, untold):
            shown = agent.recommend(listed, np.arange(3, dtype=np.uint32))
            seen = click(shown.features, draw[shown.items], SECOND)
            agent.observe(shown, seen, round_=t, draw=1.0)
    far = [np.linalg.norm(agent.decision.theta - SECOND) for agent in (told, untold)]
    assert far[0] < 0.5 * far[1]
