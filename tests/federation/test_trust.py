"""Trust at the agent: others' data count as far as own clicks agree with them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcascade.federation.grouping.gibbs import compute_evidence
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.sharing import average_weight
from fedcascade.federation.trust import Trust
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

from .test_changes import FIRST, SECOND, D, click, draw_lists, make_statistics

TRUSTING = replace(POLICIES["fedc3ucb-h"], trust=Trust())


def follow(keeper: OwnDataKeeper, theta: np.ndarray, rounds: int, seed: int) -> None:
    for listed, draw in zip(*draw_lists(rounds, seed), strict=True):
        keeper.follow(listed, click(listed, draw, theta), Ridge(Statistics.zero(D), 4.0))


def weigh_by_definition(own: Statistics, others: Statistics) -> float:
    weights = [*(0.5**halving for halving in range(9)), 0.0]
    likelihoods = []
    for weight in weights:
        part = others.scale(weight)
        together, apart = (compute_evidence(each.gram, each.moment, 0.2, 0.2 * D) for each in (own + part, part))
        likelihoods.append(together - apart)
    odds = [math.exp(each - max(likelihoods)) for each in likelihoods]
    return sum(odd * weight for odd, weight in zip(odds, weights, strict=True)) / sum(odds)


@pytest.mark.parametrize("rounds", [1, 10, 100])
@pytest.mark.parametrize("theta", [FIRST, SECOND])
def test_the_weight_is_the_mean_of_its_posterior(rounds: int, theta: np.ndarray) -> None:
    own, others = make_statistics(rounds, FIRST, 1), make_statistics(200, theta, 2)
    weight = average_weight(own.gram, own.moment, others.gram, others.moment, 0.2, 0.2 * D)
    assert weight == pytest.approx(weigh_by_definition(own, others), rel=1e-6)


@pytest.mark.parametrize(("theta", "low", "high"), [(FIRST, 0.5, 1.0), (SECOND, 0.0, 0.02)])
def test_those_who_are_alike_are_believed_and_others_are_not(theta: np.ndarray, low: float, high: float) -> None:
    keeper, others = OwnDataKeeper(TRUSTING, D), make_statistics(300, theta, 4)
    follow(keeper, FIRST, 80, 3)
    own, nothing = keeper.total, Statistics.zero(D)
    believed = keeper.receive(own + others, nothing)
    assert low <= keeper.weight <= high
    np.testing.assert_allclose(believed.gram, own.gram + keeper.weight * others.gram)
    np.testing.assert_allclose(believed.moment, own.moment + keeper.weight * others.moment)


def test_own_data_that_the_server_has_not_seen_are_not_taken_for_others_ones() -> None:
    keeper, others = OwnDataKeeper(TRUSTING, D), make_statistics(300, FIRST, 4)
    follow(keeper, FIRST, 40, 3)
    uploaded = keeper.total
    follow(keeper, FIRST, 24, 5)
    pending = keeper.total - uploaded
    keeper.receive(uploaded + others, pending)
    np.testing.assert_array_equal(keeper.data.others_gram, others.gram)
    follow(keeper, FIRST, 8, 6)
    assert keeper.is_weighing_due()
    believed = keeper.weigh(keeper.total - uploaded)
    np.testing.assert_allclose(believed.gram, uploaded.gram + keeper.weight * others.gram)


def test_a_download_without_others_is_taken_whole() -> None:
    keeper = OwnDataKeeper(TRUSTING, D)
    follow(keeper, FIRST, 20, 3)
    own = keeper.total
    np.testing.assert_array_equal(keeper.receive(own, Statistics.zero(D)).gram, own.gram)
    assert keeper.weight == 1.0
