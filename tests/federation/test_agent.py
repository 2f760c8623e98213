"""An agent recommends, observes, uploads and receives; what does not fit is refused and changes nothing."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedcascade
from fedcascade.federation.agent import Agent, ShownList
from fedcascade.federation.decisions import DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping.partition import Alone
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.privacy import LARGEST_SQUARE
from fedcascade.federation.server import Server
from fedcascade.federation.triggers import Always, Never
from fedcascade.learning.confidence import Oful, ProblemSize
from fedcascade.learning.oracles import NO_ATTRIBUTES, ItemAttributes, Oracle, TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import GRID

D = 3
PROBLEM = ProblemSize(users=2, dimension=D, list_length=2, rounds=100)
SILENT = Policy("silent", Alone(), Never(), LastDownload(), lambda_=1.0)
TALKING = replace(SILENT, trigger=Always())
LEARNING = replace(SILENT, decision=DownloadAndBuffer(), confidence=Oful())


def agent_of(policy: Policy = SILENT, oracle: Oracle | None = None) -> Agent:
    return Agent(id=1, policy=policy, problem=PROBLEM, oracle=oracle or TopK(length=2))


def items(seed: int = 0, count: int = 5) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).normal(size=(count, D))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def words(count: int = 5) -> NDArray[np.uint32]:
    return np.arange(count, dtype=np.uint32)


def state(agent: Agent) -> tuple[Any, ...]:
    return (id(agent.state), agent.beta)


def play(agent: Agent, rounds: int, click: int | None = 0) -> None:
    for t in range(1, rounds + 1):
        agent.observe(agent.recommend(items(t), words()), click, round_=t, draw=0.5)


def test_a_list_is_the_oracles_choice_on_the_decisions_scores() -> None:
    agent = agent_of(replace(LEARNING, confidence=POLICIES["fedind"].with_constants(beta=0.1).confidence))
    play(agent, 5)
    shown = agent.recommend(items(50), words())
    theta = np.linalg.solve(np.eye(D) + agent.state.buffer.gram, agent.state.buffer.moment)
    x = items(50).astype(np.float64)
    width = np.sqrt(np.einsum("ij,ij->i", x, np.linalg.solve(np.eye(D) + agent.state.buffer.gram, x.T).T))
    scores = np.minimum(x @ theta + 0.1 * width, 1.0)
    assert shown.items.tolist() == np.argsort(-scores)[:2].tolist()
    np.testing.assert_array_equal(shown.features, items(50)[shown.items])
    assert (shown.agent, shown.impression) == (1, 6)


def test_ties_go_by_the_words() -> None:
    # Before any data every unit item scores 1 with the paper's beta.
    shown = agent_of().recommend(items(), np.array([3, 9, 1, 8, 2], np.uint32))
    assert shown.items.tolist() == [1, 3]


def test_feedback_goes_into_the_buffer() -> None:
    agent = agent_of()
    shown = agent.recommend(items(), words())
    assert agent.observe(shown, 0, round_=1, draw=0.5) is None
    first = shown.features[0].astype(np.float64)
    np.testing.assert_allclose(agent.state.buffer.gram, np.outer(first, first))
    np.testing.assert_array_equal(agent.state.buffer.moment, first)
    agent.observe(agent.recommend(items(1), words()), None, round_=2, draw=0.5)
    assert (agent.state.buffer.count, agent.state.buffer.clicks, agent.state.buffer.rounds) == (3, 1, 2)


def test_uploads_are_numbered_carry_the_buffer_and_empty_it() -> None:
    agent = agent_of(TALKING)
    for sequence in (1, 2, 3):
        upload = agent.observe(agent.recommend(items(sequence), words()), None, round_=sequence, draw=0.5)
        assert upload is not None
        assert (upload.agent, upload.sequence, upload.cause) == (1, sequence, Cause.FORCED)
        assert (upload.statistics.count, upload.statistics.rounds) == (2, 1)
        assert (agent.state.buffer.count, agent.state.buffer.rounds) == (0, 0)
        assert not agent.state.buffer.gram.any()


def test_nothing_is_lost_between_agents_and_the_server() -> None:
    policy = POLICIES["fedc3ucb-h"]
    server = Server(policy=policy, agents=2, dimension=D)
    agents = [Agent(id=i, policy=policy, problem=PROBLEM, oracle=TopK(length=2)) for i in range(2)]
    total, random = [Statistics.zero(D), Statistics.zero(D)], np.random.default_rng(1)
    exchanges = 0
    for t in range(1, 120):
        user = int(random.integers(2))
        shown = agents[user].recommend(items(t), words())
        click = [None, 0, 1][int(random.integers(3))]
        total[user] = total[user].observe(shown.features, click)
        upload = agents[user].observe(shown, click, round_=t, draw=float(random.random()))
        for agent, statistics in server.receive(upload) if upload else ():
            agents[agent].receive(statistics)
            exchanges += 1
        for i in range(2):
            known = server.holdings[i] + agents[i].state.buffer
            assert (known.count, known.clicks, known.rounds) == (total[i].count, total[i].clicks, total[i].rounds)
            np.testing.assert_allclose(known.gram, total[i].gram, rtol=1e-12)
    assert 5 < exchanges < 119


def test_receiving_replaces_what_decisions_come_from() -> None:
    agent = agent_of()
    statistics = Statistics.zero(D).observe(items(9), 2)
    agent.receive(statistics)
    np.testing.assert_array_equal(agent.state.decision.theta, Ridge(statistics, 1.0).theta)
    assert agent.state.download.log_det == Ridge(statistics, 1.0).log_det


def test_last_download_is_frozen_between_exchanges() -> None:
    agent = agent_of(replace(SILENT, confidence=Oful()))
    agent.receive(Statistics.zero(D).observe(items(9), 2))
    theta, beta = agent.state.decision.theta.copy(), agent.beta
    before = agent.state.decision.scores(items(3), agent.beta)
    play(agent, 20)
    np.testing.assert_array_equal(agent.state.decision.theta, theta)
    assert agent.beta == beta
    np.testing.assert_array_equal(agent.state.decision.scores(items(3), agent.beta), before)


def test_download_and_buffer_is_the_ridge_of_both() -> None:
    agent = agent_of(LEARNING)
    downloaded = Statistics.zero(D).observe(items(9), 2)
    agent.receive(downloaded)
    for t in range(1, 6):
        agent.observe(agent.recommend(items(t), words()), t % 2, round_=t, draw=0.5)
        sigma = np.eye(D) + downloaded.gram + agent.state.buffer.gram
        theta = np.linalg.solve(sigma, downloaded.moment + agent.state.buffer.moment)
        np.testing.assert_allclose(agent.state.decision.theta, theta, rtol=1e-10, atol=1e-12)
        assert agent.state.decision.log_det == pytest.approx(np.linalg.slogdet(sigma)[1])
        assert agent.beta == LEARNING.confidence.radius(agent.state.decision, PROBLEM)
    # The trigger looks at the download alone.
    assert agent.state.download.statistics is downloaded


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        (np.full((5, D), np.nan, np.float32), "finite"),
        (np.full((5, D), np.inf, np.float32), "finite"),
        ([[0.0, 0.0, 0.0], [0.0, np.nan, 0.0]], "finite"),
        (1.01 * items(), "norm"),
        ([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]], "norm"),
        (np.zeros((5, D + 1), np.float32), "shape"),
        (np.zeros((5, D - 1), np.float32), "shape"),
        (np.zeros(D, np.float32), "shape"),
        (np.zeros((0, D), np.float32), "shape"),
    ],
)
def test_features_that_do_not_fit_are_refused_and_nothing_changes(features: Any, complaint: str) -> None:
    agent = agent_of()
    play(agent, 3)
    before = state(agent)
    with pytest.raises(ValueError, match=complaint):
        agent.recommend(features, words(len(features)))
    assert state(agent) == before
    assert agent.recommend(items(), words()).impression == 4


def test_unit_features_with_rounding_errors_are_accepted() -> None:
    features = items(3, 2000)
    assert np.max(np.linalg.norm(features.astype(np.float64), axis=1)) > 1.0
    assert agent_of().recommend(features, words(2000)).items.size == 2


@pytest.mark.parametrize("count", [0, 4, 6])
def test_words_that_do_not_fit_the_items_are_refused(count: int) -> None:
    agent = agent_of()
    before = state(agent)
    with pytest.raises(ValueError):  # noqa: PT011 (any one-line refusal will do)
        agent.recommend(items(), words(count))
    assert state(agent) == before


def test_feedback_for_a_list_never_shown_is_refused_and_nothing_changes() -> None:
    agent = agent_of()
    shown = agent.recommend(items(), words())
    before = state(agent)
    forged = ShownList(1, shown.impression, shown.items, shown.features)
    another = ShownList(1, 7, shown.items, shown.features)
    foreign = agent_of().recommend(items(), words())
    for wrong in (forged, another, foreign):
        with pytest.raises(ValueError, match="shown"):
            agent.observe(wrong, None, round_=1, draw=0.5)
    assert state(agent) == before
    agent.observe(shown, None, round_=1, draw=0.5)
    assert agent.state.buffer.rounds == 1


@pytest.mark.parametrize("policy", [SILENT, TALKING])
def test_the_same_feedback_twice_is_refused_and_nothing_changes(policy: Policy) -> None:
    agent = agent_of(policy)
    shown = agent.recommend(items(), words())
    agent.observe(shown, 0, round_=1, draw=0.5)
    before = state(agent)
    with pytest.raises(ValueError, match="give feedback once"):
        agent.observe(shown, 0, round_=1, draw=0.5)
    assert state(agent) == before


@pytest.mark.parametrize("click", [-1, 2, 99])
def test_a_click_outside_the_list_is_refused_and_the_list_stays_open(click: int) -> None:
    agent = agent_of()
    shown = agent.recommend(items(), words())
    before = state(agent)
    with pytest.raises(ValueError, match="click"):
        agent.observe(shown, click, round_=1, draw=0.5)
    assert state(agent) == before
    agent.observe(shown, 1, round_=1, draw=0.5)
    assert agent.state.buffer.count == 2


@dataclass(frozen=True)
class Stubborn:
    """An oracle that always answers the same."""

    answer: tuple[int, ...]
    length: int = 2
    alpha: float = 1.0

    def choose(
        self, scores: NDArray[np.float64], ties: NDArray[np.uint32], attributes: ItemAttributes = NO_ATTRIBUTES
    ) -> NDArray[np.intp]:
        return np.array(self.answer, np.intp)

    def best(self, weights: NDArray[np.float64], attributes: ItemAttributes = NO_ATTRIBUTES) -> NDArray[np.intp]:
        return np.array(self.answer, np.intp)


@pytest.mark.parametrize("answer", [(1, 1), (0, 5), (-1,), (0, 1, 2), ()])
def test_an_oracle_that_answers_badly_is_refused_and_nothing_changes(answer: tuple[int, ...]) -> None:
    agent = agent_of(oracle=Stubborn(answer))
    before = state(agent)
    with pytest.raises(ValueError, match="a list must"):
        agent.recommend(items(), words())
    assert state(agent) == before


def test_lists_may_be_answered_in_any_order() -> None:
    agent = agent_of()
    first, second = agent.recommend(items(1), words()), agent.recommend(items(2), words())
    agent.observe(second, None, round_=1, draw=0.5)
    agent.observe(first, 0, round_=2, draw=0.5)
    assert (agent.state.buffer.count, agent.state.buffer.rounds) == (3, 2)


@pytest.mark.parametrize("dimension", [D - 1, D + 1])
def test_a_download_of_another_dimension_is_refused_and_nothing_changes(dimension: int) -> None:
    agent = agent_of()
    before = state(agent)
    with pytest.raises(ValueError):  # noqa: PT011 (any one-line refusal will do)
        agent.receive(Statistics.zero(dimension))
    assert state(agent) == before


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1.0, 1e9, 1e300])
def test_rows_of_any_size_become_as_long_as_an_agent_takes(scale: float) -> None:
    rows = np.random.default_rng(1).normal(size=(50, 20))
    normalised = fedcascade.normalise(scale * rows)
    squares = np.einsum("ij,ij->i", normalised, normalised, dtype=np.float64)
    assert squares.max() <= LARGEST_SQUARE
    assert squares.min() > 0.99  # what rounding to the grid takes is little
    np.testing.assert_array_equal(normalised % GRID, 0)
    np.testing.assert_allclose(normalised, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=2 * GRID)
