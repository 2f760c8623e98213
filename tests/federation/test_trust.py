"""Trust at the agent: the noise of its clicks, the weight of the server's prior, beta, and equal engines."""

import math

import numpy as np
import pytest

from fedcascade.federation.agent import Agent, begin, learn_before, receive, skip_answer, take_back
from fedcascade.federation.grouping.population.gaussian import to_statistics
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.sharing import average_weight
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import MIN_NOISE, Statistics, estimate_noise

from .formulas import measure_evidence
from .test_changes import FIRST, SECOND, D, K, click, draw_lists, make_statistics

OURS = POLICIES["population"]
NOTHING = Statistics.zero(D)
PRIOR_WEIGHT = (1 + 0.25) / (5 + math.exp(4.0))  # of others' data, before any own click


def follow(keeper: OwnDataKeeper, theta: np.ndarray, rounds: int, seed: int) -> None:
    for listed, draw in zip(*draw_lists(rounds, seed), strict=True):
        keeper.follow(listed, click(listed, draw, theta), Ridge(NOTHING, 4.0))


def state_prior(own: Statistics, mean: np.ndarray, deviation: float) -> Statistics:
    """Return a download: own data, and a prior N(mean, deviation^2 I) in units of the noise of own clicks."""
    noise = estimate_noise(own.count, own.clicks)
    gram, moment = to_statistics(mean, deviation**2 * np.eye(D), noise, OURS.lambda_)
    return Statistics(own.gram + gram, own.moment + moment, own.count, own.clicks, own.rounds)


def weigh_by_definition(own: Statistics, others: Statistics, variance: float, prior: float) -> float:
    weights, likelihoods = (1.0, 0.25, 0.0, 0.0, 0.0, 0.0), []
    for weight in weights[:2]:
        gram, moment = weight * others.gram, weight * others.moment
        together = measure_evidence(own.gram + gram, own.moment + moment, variance, prior)
        likelihoods.append(together - measure_evidence(gram, moment, variance, prior))
    likelihoods += [measure_evidence(own.gram, own.moment, variance, prior * 8.0**power) for power in range(4)]
    likelihoods[2] += 4.0
    odds = [math.exp(each - max(likelihoods)) for each in likelihoods]
    return sum(odd * weight for odd, weight in zip(odds, weights, strict=True)) / sum(odds)


@pytest.mark.parametrize("rounds", [1, 10, 100])
@pytest.mark.parametrize("theta", [FIRST, SECOND])
def test_the_weight_is_the_mean_of_its_posterior(rounds: int, theta: np.ndarray) -> None:
    own, others = make_statistics(rounds, FIRST, 1), make_statistics(200, theta, 2)
    weight = average_weight(own.gram, own.moment, others.gram, others.moment, 0.2, 0.2 * D)
    assert weight == pytest.approx(weigh_by_definition(own, others, 0.2, 0.2 * D), rel=1e-6)


@pytest.mark.parametrize(("mean", "low", "high"), [(FIRST, 0.9, 1.0), (SECOND, 0.0, 0.01)])
def test_the_weight_nears_1_for_a_right_prior_and_0_for_a_contradicting_one(
    mean: np.ndarray, low: float, high: float
) -> None:
    keeper = OwnDataKeeper(OURS, D)
    follow(keeper, FIRST, 1_000, 3)
    own = keeper.total
    believed = keeper.receive(state_prior(own, mean, 0.05), NOTHING)
    assert low <= keeper.data.weight[0] <= high
    noise = estimate_noise(own.count, own.clicks)
    prior = keeper.data.weight[0] * noise / 0.05**2 + (1.0 - keeper.data.weight[0]) * noise * D
    np.testing.assert_allclose(believed.gram + OURS.lambda_ * np.eye(D), own.gram + prior * np.eye(D))
    np.testing.assert_allclose(believed.moment, own.moment + keeper.data.weight[0] * noise / 0.05**2 * mean)
    assert np.linalg.norm(Ridge(believed, OURS.lambda_).theta - FIRST) < (0.1 if low else 0.45)


def test_the_weight_falls_as_contradicting_clicks_come_in() -> None:
    keeper, weights = OwnDataKeeper(OURS, D), []
    keeper.receive(state_prior(NOTHING, SECOND, 0.1), NOTHING)
    for seed in range(12):
        follow(keeper, FIRST, 4, seed)
        assert keeper.is_weighing_due()
        keeper.weigh(keeper.total)
        weights.append(float(keeper.data.weight[0]))
    assert weights[0] > weights[-1]
    assert weights[-1] < 0.1 * PRIOR_WEIGHT


def test_weighing_is_due_after_every_few_rounds() -> None:
    keeper = OwnDataKeeper(OURS.with_constants(every=3), D)
    due = []
    for seed in range(7):
        follow(keeper, FIRST, 1, seed)
        due.append(keeper.is_weighing_due())
    assert due == [False, False, True, False, False, True, False]


def test_own_data_that_the_server_does_not_hold_are_not_taken_for_others() -> None:
    keeper, others = OwnDataKeeper(OURS, D), make_statistics(300, FIRST, 4)
    follow(keeper, FIRST, 40, 3)
    uploaded = keeper.total
    follow(keeper, FIRST, 24, 5)
    keeper.receive(uploaded + others, keeper.total - uploaded)
    np.testing.assert_array_equal(keeper.data.others_gram, others.gram)
    np.testing.assert_array_equal(keeper.data.others_moment, others.moment)


def test_a_download_without_others_leaves_own_data_and_a_theta_of_length_1() -> None:
    keeper = OwnDataKeeper(OURS, D)
    follow(keeper, FIRST, 20, 3)
    own = keeper.total
    believed = keeper.receive(own, NOTHING)
    prior = estimate_noise(own.count, own.clicks) * D
    np.testing.assert_allclose(Ridge(believed, OURS.lambda_).theta, Ridge(own, prior).theta)
    assert keeper.data.weight[0] == 0.0


@pytest.mark.parametrize(
    ("count", "clicks", "noise"), [(0, 0, 0.25), (996, 98, 0.09), (996, 898, 0.09), (10**9, 0, MIN_NOISE)]
)
def test_the_noise_of_a_click_is_that_of_its_rate(count: int, clicks: int, noise: float) -> None:
    assert estimate_noise(count, clicks) == pytest.approx(noise)


def test_noise_is_estimated_from_own_clicks_alone() -> None:
    keeper = OwnDataKeeper(OURS, D)
    follow(keeper, 0.1 * FIRST, 200, 3)
    keeper.receive(keeper.total, NOTHING)
    own = keeper.total
    assert own.clicks / own.count < 0.1
    assert keeper.deviation == pytest.approx(math.sqrt(estimate_noise(own.count, own.clicks)))
    assert keeper.deviation < 0.35


@pytest.mark.parametrize(("scale", "deviation"), [(0.05, 0.17), (1.0, 0.5)])
def test_beta_is_in_standard_deviations_of_a_click(scale: float, deviation: float) -> None:
    problem = ProblemSize(users=2, dimension=D, list_length=K, rounds=1_000)
    agents = [Agent(id=0, policy=OURS.with_beta(beta), problem=problem, oracle=TopK(length=K)) for beta in (1.5, 3.0)]
    assert [agent.beta for agent in agents] == [0.75, 1.5]
    for agent in agents:
        for t, (listed, draw) in enumerate(zip(*draw_lists(300, 2), strict=True), 1):
            shown = agent.recommend(listed, np.arange(K, dtype=np.uint32))
            seen = click(shown.features, draw, scale * FIRST)
            agent.observe(shown, seen.clicks[0] if seen.clicks else None, round_=t, draw=0.5)
        assert agent.state.own is not None
        own = agent.state.own_total
        expected = math.sqrt(estimate_noise(own.count, own.clicks))
        assert agent.beta == pytest.approx(agent.policy.constants()["beta"] * expected, rel=0.02)
        assert agent.beta == pytest.approx(agent.policy.constants()["beta"] * deviation, rel=0.25)
    assert POLICIES["fedind"].constants()["beta"] == 0.7
    alone = Agent(id=0, policy=POLICIES["fedind"], problem=problem, oracle=TopK(length=K))
    assert alone.beta == 0.7


def test_a_prior_for_a_newcomer_is_used_from_the_first_list_on() -> None:
    problem = ProblemSize(users=2, dimension=D, list_length=K, rounds=1_000)
    agent = Agent(id=0, policy=OURS, problem=problem, oracle=TopK(length=K))
    np.testing.assert_array_equal(agent.state.decision.theta, np.zeros(D))
    agent.receive(state_prior(NOTHING, FIRST, 0.1))
    assert agent.state.own is not None
    assert agent.state.own.weight[0] == pytest.approx(PRIOR_WEIGHT)
    known, unknown = PRIOR_WEIGHT / 0.1**2, (1 - PRIOR_WEIGHT) * D  # precisions in units of the noise
    np.testing.assert_allclose(agent.state.decision.theta, known / (known + unknown) * FIRST)


def test_a_skipped_answer_leaves_others_data_in_the_unit_that_they_came_in() -> None:
    """The next weighing then scales them by the noise of today and that of their download, and by no other."""
    clicked, told = make_statistics(60, FIRST, 5), state_prior(NOTHING, FIRST, 0.1)
    state, upload = take_back(OURS, learn_before(OURS, begin(OURS, D), clicked), clicked)
    state = receive(OURS, state, told, clicked)
    assert upload is not None
    assert state.own is not None
    skipped = skip_answer(OURS, state, upload.statistics, NOTHING)
    assert skipped.own is not None
    assert estimate_noise(clicked.count, clicked.clicks) != estimate_noise(0, 0)
    assert skipped.own.noise[0] == state.own.noise[0] == estimate_noise(0, 0)
    np.testing.assert_array_equal(skipped.own.others_gram, state.own.others_gram)
    np.testing.assert_array_equal(skipped.own.others_moment, state.own.others_moment)
    assert skipped.own.weight[0] == state.own.weight[0]
    np.testing.assert_allclose(skipped.decision.theta, state.decision.theta, atol=1e-12)
