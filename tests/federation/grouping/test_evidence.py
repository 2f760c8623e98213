from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedcascade.federation.grouping.evidence import Evidence, EvidencePartition
from fedcascade.federation.grouping.gibbs import compute_evidence
from fedcascade.federation.grouping.partition import Partition, relabel_by_appearance
from fedcascade.federation.holdings import Holdings
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid


def drawn(theta: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and clicks of a user with this theta."""
    random = np.random.default_rng(seed)
    z = random.normal(size=(rows, theta.size - 1))
    x = np.hstack([z / np.linalg.norm(z, axis=1, keepdims=True), np.ones((rows, 1))]) / np.sqrt(2)
    return round_to_grid(x), random.random(rows) < x @ theta


def measure(statistics: Statistics, *, variance: float, prior: float) -> float:
    return compute_evidence(statistics.gram, statistics.moment, variance, prior)


def gathered(x: np.ndarray, clicks: np.ndarray) -> Statistics:
    statistics = Statistics.zero(x.shape[1])
    for row, clicked in zip(x, clicks, strict=True):
        statistics = statistics.observe(row[None], 0 if clicked else None)
    return statistics


def lifted(*direction: float) -> np.ndarray:
    z = np.array(direction) / np.linalg.norm(direction)
    return np.asarray(np.append(z, 1.0) / np.sqrt(2))


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 12), prior=st.floats(0.5, 9.0), variance=st.floats(0.05, 1.0), seed=st.integers(0, 999))
def test_the_evidence_is_the_log_marginal_likelihood_against_noise_alone(
    rows: int, prior: float, variance: float, seed: int
) -> None:
    x, clicks = drawn(lifted(1, 2, 0), rows, seed)
    x64, y = x.astype(float), clicks.astype(float)
    noise = variance * np.eye(rows)
    with_theta = multivariate_normal.logpdf(y, cov=noise + (variance / prior) * x64 @ x64.T)
    without = multivariate_normal.logpdf(y, cov=noise)
    ours = measure(gathered(x, clicks), variance=variance, prior=prior)
    assert ours == pytest.approx(with_theta - without, rel=1e-6, abs=1e-6)


def test_evidence_is_zero_without_data_and_tells_equals_from_unequals() -> None:
    def known(statistics: Statistics) -> float:
        return measure(statistics, variance=0.2, prior=4.0)

    def factor(one: Statistics, other: Statistics) -> float:
        return known(one + other) - known(one) - known(other)

    assert known(Statistics.zero(4)) == 0.0
    east, also_east = (gathered(*drawn(lifted(1, 0, 0), 3_000, seed)) for seed in (1, 2))
    west = gathered(*drawn(lifted(-1, 0, 0), 3_000, 3))
    assert factor(east, also_east) > 4.0
    assert factor(east, west) < -100.0


def spoken(thetas: list[np.ndarray], uploads: int, rows: int, rule: Evidence) -> tuple[Holdings, Partition]:
    """A server's state after agents with these thetas spoke in turn."""
    holdings = Holdings(len(thetas), thetas[0].size, 4.0)
    groups = rule.begin(holdings, None)
    assert len(set(groups.labels.tolist())) == len(thetas)
    for step in range(uploads):
        agent = step % len(thetas)
        upload = gathered(*drawn(thetas[agent], rows, step))
        holdings.add(agent, upload)
        groups.add(agent, upload)
    return holdings, groups


def test_agents_start_apart_and_join_their_like() -> None:
    """A partition is a sample, and one in fifty has an agent alone; hence several, and sums to a hundredth."""
    thetas = [lifted(1, 0, 0), lifted(0, -1, 0)] * 3
    joined = 0
    for uploads in range(54, 66):
        holdings, groups = spoken(thetas, uploads, 100, Evidence())
        joined += relabel_by_appearance(groups.labels)[1].tolist() == [0, 1] * 3
    assert joined >= 10
    for agent in range(6):
        total, pooled = holdings.total(np.flatnonzero(groups.labels == groups.labels[agent])), groups.answer(agent)
        np.testing.assert_allclose(pooled.gram, total.gram, atol=1e-2 * total.gram.max())


@pytest.mark.parametrize("visits", [1, 40])
def test_at_any_time_groups_hold_the_sums_of_their_members(visits: int) -> None:
    thetas = [lifted(1, 0, 0), lifted(0.5, 1, 0)] * 4
    for uploads in range(9, 40):
        holdings, groups = spoken(thetas, uploads, 5, Evidence(visits=visits))
        last = (uploads - 1) % 8
        for agent in range(8):
            total, pooled = holdings.total(np.flatnonzero(groups.labels == groups.labels[agent])), groups.pooled(agent)
            np.testing.assert_array_equal(pooled.gram, total.gram)
            assert (pooled.count, pooled.clicks, pooled.rounds) == (total.count, total.clicks, total.rounds)
        told, everything = groups.answer(last), holdings.total(np.arange(8))
        assert holdings[last].count <= told.count <= everything.count
        told.check(4)


def test_the_answer_is_the_average_over_partitions_by_their_probability() -> None:
    holdings = Holdings(3, 4, 4.0)
    thetas = [lifted(1, 0, 0), lifted(1, 0.3, 0), lifted(0, 1, 0)]
    rule = Evidence(sweeps=20_000, hurdle=1.5)
    groups = rule.begin(holdings, None)
    for agent, theta in enumerate(thetas):
        holdings.add(agent, gathered(*drawn(theta, 30, agent)))
        groups.add(agent, holdings[agent])

    partitions = [[[0], [1], [2]], [[0, 1], [2]], [[0, 2], [1]], [[1, 2], [0]], [[0, 1, 2]]]
    totals = [[holdings.total(np.array(group)) for group in partition] for partition in partitions]
    known = [sum(measure(group, variance=0.2, prior=0.8) for group in total) for total in totals]
    log = [e + 1.5 * len(p) - np.log(comb(2, len(p) - 1)) for e, p in zip(known, partitions, strict=True)]
    weights = np.exp(np.array(log) - max(log))
    weights /= weights.sum()
    assert weights.max() < 0.7, "the data should leave several partitions possible, or this shows little"
    mine = [
        next(t for g, t in zip(p, total, strict=True) if 2 in g) for p, total in zip(partitions, totals, strict=True)
    ]
    expected = sum(weight * one.moment for weight, one in zip(weights, mine, strict=True))
    np.testing.assert_allclose(groups.answer(2).moment, expected, rtol=0.02)


def test_two_large_groups_that_are_alike_become_one() -> None:
    holdings = Holdings(20, 4, 4.0)
    groups = Evidence(sweeps=1).begin(holdings, None)
    assert isinstance(groups, EvidencePartition)
    for agent in range(20):
        holdings.add(agent, gathered(*drawn(lifted(1, 0, 0), 300, agent)))
        groups.own_evidence[agent] = measure(holdings[agent], variance=0.2, prior=0.8)
    groups.spoken = np.arange(20)
    groups.labels = np.arange(20) // 10
    groups.listed_labels[:2] = 0, 1
    groups.rebuild()
    assert len(groups) == 2
    groups.add(3, Statistics.zero(4))
    assert np.bincount(groups.labels).max() >= 19


def test_an_agent_whose_taste_has_changed_leaves() -> None:
    holdings = Holdings(3, 4, 4.0)
    groups = Evidence().begin(holdings, None)
    for step in range(30):
        agent = step % 3
        upload = gathered(*drawn(lifted(1, 0, 0), 100, step))
        holdings.add(agent, upload)
        groups.add(agent, upload)
    assert len(groups) == 1
    upload = gathered(*drawn(lifted(-1, 0, 0), 4_000, 99))
    holdings.add(0, upload)
    groups.add(0, upload)
    assert groups.labels[0] != groups.labels[1] == groups.labels[2]


@pytest.mark.parametrize(
    "constants", [{"variance": 0.0}, {"length": -1.0}, {"variance": float("nan")}, {"sweeps": 0}, {"visits": 0}]
)
def test_constants_that_make_no_sense_are_refused(constants: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(constants))):
        Evidence(**constants)


def test_a_newcomer_starts_apart_and_one_who_leaves_takes_its_data_along() -> None:
    holdings = Holdings(2, 4, 4.0)
    groups = Evidence().begin(holdings, None)
    for step in range(20):
        upload = gathered(*drawn(lifted(1, 0, 0), 100, step))
        holdings.add(step % 2, upload)
        groups.add(step % 2, upload)
    assert len(groups) == 1
    newcomer = holdings.join()
    groups.join()
    assert groups.labels[newcomer] not in groups.labels[:2]
    assert groups.pooled(newcomer).count == 0
    holdings.forget(0)
    groups.forget(0)
    np.testing.assert_array_equal(groups.pooled(0).gram, holdings[0].gram)
