"""The population model: evidence, sums of groups, EM, answers, guards, and what forgetting leaves."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import relabel_canonically
from fedcascade.federation.grouping.population.gaussian import (
    Gaussian,
    make_gaussian,
    measure_evidence,
    measure_joints,
    to_statistics,
)
from fedcascade.federation.grouping.population.groups import (
    Groups,
    compute_spread,
    make_groups,
    match_moments,
)
from fedcascade.federation.grouping.population.partition import NO_AGENT, PopulationPartition
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.server import Server
from fedcascade.federation.sharing import Sharing
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics, estimate_noise
from fedcascade.numerics.grid import round_to_grid

from .plays import check_groups

D = 3
OURS = POLICIES["population"]
GUARDED = replace(OURS, sharing=Sharing(min_others=2, max_weight=2.0))
KINDS = np.array([[0.6, 0.0, 0.5], [-0.6, 0.0, 0.5], [0.0, 0.6, 0.5]])
Array = NDArray[np.float64]


def draw_data(random: np.random.Generator, theta: Array, rounds: int) -> Statistics:
    """Draw clicks on single items; the last feature is constant, so that chances stay within 0 and 1."""
    z = random.normal(size=(rounds, D - 1))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    items = round_to_grid(np.hstack([z, np.ones((rounds, 1))]) / np.sqrt(2))
    clicks = random.random(rounds) < items @ theta
    exact = items.astype(np.float64)
    return Statistics(exact.T @ exact, exact[clicks].sum(axis=0), rounds, int(clicks.sum()), rounds)


def upload(server: Server, agent: int, statistics: Statistics, cause: Cause = Cause.FORCED) -> Statistics:
    [[_, download]] = server.receive(Upload(agent=agent, sequence=1, cause=cause, statistics=statistics))
    return download


def get_groups(server: Server) -> PopulationPartition:
    assert isinstance(server.groups, PopulationPartition)
    return server.groups


@pytest.mark.parametrize("places", [[4], [2, 0, 1], list(range(11))])
def test_evidence_of_eight_users_at_a_time_has_the_same_bits(places: list[int]) -> None:
    random = np.random.default_rng(3)
    held = [draw_data(random, KINDS[k % 3], 10 + k) for k in range(11)]
    grams, moments = np.array([each.gram for each in held]), np.array([each.moment for each in held])
    base = make_gaussian(KINDS[0] / 3, np.diag([0.5, 0.2, 0.1]), 0.2)
    for share in (0.0, 1.0):
        data = grams[5], moments[5]
        single = [measure_evidence(*data, share, grams[k], moments[k], base) for k in places]
        assert measure_joints(data, share, grams, moments, np.array(places), base).tolist() == single


def play(thetas: Array, sweeps: int, rounds: int = 30, policy: Policy = OURS, seed: int = 5) -> Server:
    """Let each user upload some times, in turns."""
    random = np.random.default_rng(seed)
    server = Server(policy=policy, agents=len(thetas), dimension=D)
    for _ in range(sweeps):
        for agent, theta in enumerate(thetas):
            upload(server, agent, draw_data(random, theta, rounds))
    return server


def draw_users(users: int, seed: int = 2, spread: float = 0.15) -> Array:
    """Draw users that all differ."""
    drawn = np.random.default_rng(seed).normal([0.1, -0.1, 0.6], [spread, spread, spread / 3], (users, D))
    return np.asarray(drawn, np.float64)


def draw_gaussian(random: np.random.Generator, variance: float = 0.2) -> Gaussian:
    root = random.normal(size=(D, D))
    return make_gaussian(random.normal(size=D), root @ root.T / D + 0.1 * np.eye(D), variance)


def read_others(answer: Statistics, own: Statistics, lambda_: float) -> tuple[Array, Array]:
    """Return mean and covariance of what an answer says beside the asker's own data."""
    precision = (answer.gram - own.gram + lambda_ * np.eye(D)) / estimate_noise(own.count, own.clicks)
    covariance = np.asarray(np.linalg.inv(precision), np.float64)
    noise = estimate_noise(own.count, own.clicks)
    return covariance @ (answer.moment - own.moment) / noise, covariance


def test_evidence_differs_between_priors_as_the_normal_marginal_likelihood_does() -> None:
    """The constant that no prior changes is left out, so differences are compared."""
    random = np.random.default_rng(1)
    x, variance = random.normal(size=(12, D)), 0.2
    clicks = x @ random.normal(size=D) + random.normal(size=12) * np.sqrt(variance)
    gram, moment, found, expected = x.T @ x, x.T @ clicks, [], []
    for _ in range(4):
        base = draw_gaussian(random, variance)
        found.append(measure_evidence(gram, moment, 0.0, gram, moment, base))
        covariance = x @ base.covariance @ x.T + variance * np.eye(12)
        rest = clicks - x @ base.mean
        expected.append(-0.5 * (rest @ np.linalg.solve(covariance, rest) + np.linalg.slogdet(covariance)[1]))
    assert max(expected) - min(expected) > 1.0
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-9)
    nothing = np.zeros((D, D)), np.zeros(D)
    assert measure_evidence(*nothing, 0.0, *nothing, base) == pytest.approx(0.0, abs=1e-12)


def test_evidence_of_two_users_together_is_that_of_their_sum() -> None:
    random = np.random.default_rng(3)
    base, one, two = draw_gaussian(random), *(draw_data(random, theta, 20) for theta in KINDS[:2])
    both = one.scale(0.5) + two
    joint = measure_evidence(one.gram, one.moment, 0.5, two.gram, two.moment, base)
    assert joint == pytest.approx(measure_evidence(both.gram, both.moment, 0.0, both.gram, both.moment, base))


def make_two_groups(random: np.random.Generator) -> Groups:
    groups = make_groups(4, D)
    for slot, theta in ((1, KINDS[0]), (2, KINDS[1])):
        data = draw_data(random, theta, 60)
        groups.gram[slot], groups.moment[slot] = data.gram, data.moment
        groups.size[slot], groups.members[slot] = 2.5, 3.0
        groups.misfit[slot], groups.weight[slot] = 0.1 * slot, 3.0
    return groups


@pytest.mark.parametrize("least", [0, 3, 4])
def test_matched_moments_are_those_of_the_mixture(least: int) -> None:
    random = np.random.default_rng(4)
    base, groups = draw_gaussian(random), make_two_groups(random)
    weights = np.array([0.0, 0.5, 0.2, 0.0, 0.3])
    mean, covariance = match_moments(groups, weights, 1.05 * base.covariance, least, base)
    shares, means, covariances = [0.3], [base.mean], [(1 + 1 / 20) * base.covariance]
    for slot in (1, 2) if least <= 3 else ():
        inverse = np.linalg.inv(groups.gram[slot] + base.precision)
        shares.append(float(weights[slot]))
        means.append(inverse @ (groups.moment[slot] + base.pull))
        covariances.append(base.variance * inverse + compute_spread(groups, slot, base.variance) * base.covariance)
    share = np.array(shares) / sum(shares)
    centre = share @ np.array(means)
    away = np.array(means) - centre
    np.testing.assert_allclose(mean, centre)
    np.testing.assert_allclose(covariance, np.tensordot(share, covariances, 1) + (share[:, None] * away).T @ away)


def test_a_ridge_reads_mean_and_covariance_back_from_a_statement() -> None:
    base, lambda_ = draw_gaussian(np.random.default_rng(6)), 0.01
    gram, moment = to_statistics(base.mean, base.covariance, 0.2, lambda_)
    ridge = Ridge(Statistics(gram, moment, 0, 0, 0), lambda_)
    np.testing.assert_allclose(ridge.theta, base.mean)
    np.testing.assert_allclose(0.2 * ridge.root.T @ ridge.root, base.covariance)


@pytest.mark.parametrize("policy", [OURS, GUARDED], ids=["open", "guarded"])
@pytest.mark.parametrize("kinds", [1, 3, 30])
def test_groups_are_the_weighted_sums_of_their_members(policy: Policy, kinds: int) -> None:
    thetas = KINDS[np.arange(30) % kinds] if kinds < 30 else draw_users(30)
    random, server = np.random.default_rng(8), Server(policy=policy, agents=30, dimension=D)
    for _ in range(400):
        agent = int(random.geometric(0.1) - 1) % 30  # some speak much more than others
        upload(server, agent, draw_data(random, thetas[agent], int(random.integers(1, 60))))
    groups = get_groups(server)
    check_groups(groups)
    if kinds == 3:  # one kind is the population itself
        assert groups.group.members.max() > 2, "there must be groups, or this test shows little"
    if policy is GUARDED:
        assert groups.shares.min() < 1.0
    for slot in np.flatnonzero(groups.group.size):
        gram, moment = groups.group.gram[slot], groups.group.moment[slot]
        evidence = measure_evidence(gram, moment, 0.0, gram, moment, groups.base)
        assert groups.group.evidence[slot] == pytest.approx(evidence, abs=1e-6)


def test_well_separated_users_with_much_data_are_grouped_by_their_kinds() -> None:
    thetas = KINDS[np.arange(24) % 3]
    server = play(thetas, 8, rounds=200)
    assert relabel_canonically(server.groups.labels) == relabel_canonically(np.arange(24) % 3)
    assert len(server.groups) == 3


def test_users_who_all_differ_are_rarely_grouped() -> None:
    server = play(draw_users(40), 10, rounds=400)
    assert np.count_nonzero(get_groups(server).responsibilities.sum(axis=1) >= 0.5) <= 8


def test_the_mean_and_covariance_of_a_population_are_found() -> None:
    """Users with much data: their thetas are known, so the estimates are near the moments of the sample."""
    thetas = draw_users(120)
    groups = get_groups(play(thetas, 8, rounds=400))
    np.testing.assert_allclose(groups.mean, thetas.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(groups.covariance, np.cov(thetas.T), atol=0.012)
    held = groups.holdings
    rate = np.mean((held.clicks + 1) / (held.count + 2))
    assert groups.variance == pytest.approx(rate * (1 - rate), rel=0.05)


def test_an_answer_leaves_the_own_data_of_the_asker_out() -> None:
    """Where no group is in sight, what others say does not depend on what the asker uploaded."""
    random = np.random.default_rng(9)
    stated = []
    for theta in (KINDS[0], KINDS[2]):
        server = play(KINDS[:2], 1)  # two unlike users, and a third one that asks
        server.join()
        groups = get_groups(server)
        assert (groups.responsibilities == 0.0).all()
        own = draw_data(random, theta, 50)
        stated.append(read_others(upload(server, 2, own), own, OURS.lambda_))
    np.testing.assert_allclose(stated[0][0], stated[1][0], rtol=1e-6)
    np.testing.assert_allclose(stated[0][1], stated[1][1], rtol=1e-6)


def test_a_member_is_told_the_mean_of_the_others() -> None:
    """Its own data choose the group, but are not in the group's mean."""
    server = play(KINDS[np.arange(24) % 3], 8, rounds=200)
    groups = get_groups(server)
    own, before = server.holdings[0], deepcopy(server.to_state())
    mean, covariance = read_others(server.answer(0), own, OURS.lambda_)
    others = server.holdings.total(np.arange(3, 24, 3))
    expected = np.linalg.solve(others.gram + groups.base.precision, others.moment + groups.base.pull)
    np.testing.assert_allclose(mean, expected, atol=1e-3)
    assert np.linalg.norm(mean - KINDS[0]) < 0.1
    assert np.trace(covariance) < 0.5 * np.trace(groups.covariance)
    after = server.to_state()
    for name in ("responsibilities", "labels"):
        np.testing.assert_array_equal(before["groups"][name], after["groups"][name])
    for kept, now in zip(before["groups"]["group"], after["groups"]["group"], strict=True):
        np.testing.assert_array_equal(kept, now)


def test_a_user_without_data_is_told_the_population() -> None:
    server = play(draw_users(12), 3)
    server.join()
    groups = get_groups(server)
    prior = groups.prior_for_newcomer()
    assert prior is not None
    mean, covariance = read_others(prior, Statistics.zero(D), OURS.lambda_)
    np.testing.assert_allclose(mean, groups.mean)
    np.testing.assert_allclose(covariance, groups.outside)
    assert get_groups(play(draw_users(1), 3)).prior_for_newcomer() is None


@pytest.mark.parametrize("others", [1, 2, 3, 4])
def test_an_answer_needs_so_many_others(others: int) -> None:
    random, least = np.random.default_rng(3), 3
    policy = replace(OURS, sharing=Sharing(min_others=least, max_weight=2.0))
    server = play(KINDS[np.zeros(others, np.int64)], 3, policy=policy)
    asker, own = server.join(), draw_data(random, KINDS[0], 30)
    answer = upload(server, asker, own)
    assert np.array_equal(answer.gram, own.gram) == (others < least)
    assert (server.groups.prior_for_newcomer() is None) == (others + 1 < least + 1)


def test_a_group_of_fewer_others_is_not_used() -> None:
    """A group of three shows two others to a member: too few for a guard that wants three."""
    thetas = np.concatenate([KINDS[np.zeros(3, np.int64)], draw_users(12, spread=0.2)])
    for least, is_used in ((2, True), (3, False)):
        server = play(thetas, 8, rounds=300, policy=replace(OURS, sharing=Sharing(min_others=least, max_weight=2.0)))
        groups = get_groups(server)
        members = np.flatnonzero(groups.responsibilities[:, groups.responsibilities[0].argmax()])
        assert members.tolist() == [0, 1, 2], "the three must have a group of their own, or this test shows little"
        mean, _ = read_others(server.answer(0), server.holdings[0], OURS.lambda_)
        assert (np.linalg.norm(mean - KINDS[0]) < 0.1) == is_used


def test_no_agent_counts_more_than_some_medians() -> None:
    random = np.random.default_rng(7)
    server = play(KINDS[np.zeros(9, np.int64)], 3, policy=GUARDED)
    for _ in range(30):
        upload(server, 0, draw_data(random, KINDS[0], 500))
    groups = get_groups(server)
    counted = groups.shares * groups.holdings.count
    median = int(np.median(groups.holdings.count))
    assert groups.limit == 2.0 * 2.0 ** median.bit_length()
    assert counted[0] == pytest.approx(groups.limit)
    assert groups.shares[1:].tolist() == [1.0] * 8
    check_groups(groups)


@pytest.mark.parametrize("policy", [OURS, GUARDED], ids=["open", "guarded"])
def test_one_extreme_user_moves_the_mean_by_a_bounded_amount(policy: Policy) -> None:
    """An agent that uploads a theta of length 100 is a fake: its weight falls with its distance."""
    means = []
    for lie in (0.0, 2.0, 100.0):
        server, random = play(draw_users(30), 3, policy=policy), np.random.default_rng(1)
        liar = server.join()
        for _ in range(60):
            data = draw_data(random, KINDS[0], 50)
            upload(server, liar, replace(data, moment=data.gram @ np.array([lie, 0.0, 0.0])))
            agent = int(random.integers(30))
            upload(server, agent, draw_data(random, draw_users(30)[agent], 30))
        means.append(get_groups(server).mean)
    deviation = np.sqrt(np.trace(get_groups(server).covariance))
    assert np.linalg.norm(means[1] - means[0]) < 0.15
    assert np.linalg.norm(means[2] - means[0]) < 0.5 * deviation
    assert np.isfinite(means[2]).all()


def test_a_forgotten_agent_leaves_nothing_in_the_sums() -> None:
    server = play(KINDS[np.arange(12) % 3], 5)
    groups = get_groups(server)
    order = [0, 1, 2, 3, 11, 5, 6, 7, 8, 9, 10]  # the last one takes the place
    rows, held = groups.responsibilities[order].copy(), server.holdings.gram[order].copy()
    server.forget(4)
    check_groups(groups)
    np.testing.assert_array_equal(groups.responsibilities, rows)
    np.testing.assert_allclose(groups.group.gram, np.einsum("us,uij->sij", rows, held), atol=1e-9)
    assert groups.active.size == 11
    mean, fits = groups.mean.copy(), groups.fits
    upload(server, 0, Statistics.zero(D))
    assert groups.fits == fits + 1, "the next upload refits mean and covariance"
    assert not np.array_equal(groups.mean, mean)


def test_a_restarted_agent_leaves_nothing_in_the_sums_and_is_placed_again() -> None:
    server, random = play(KINDS[np.arange(12) % 3], 8, rounds=200), np.random.default_rng(4)
    groups = get_groups(server)
    before = int(groups.labels[0])
    new = draw_data(random, KINDS[1], 400)
    upload(server, 0, new, Cause.CHANGE)
    check_groups(groups)
    assert groups.holdings.count[0] == 400
    assert groups.labels[0] == groups.labels[1] != before
    upload(server, 0, Statistics.zero(D), Cause.CHANGE)
    check_groups(groups)
    assert groups.active_index[0] == NO_AGENT
    assert groups.labels[0] == groups.rule.slots


def test_agents_that_join_speak_and_leave_until_nobody_is_left() -> None:
    random, server = np.random.default_rng(2), play(KINDS[np.arange(6) % 3], 4)
    groups = get_groups(server)
    for number in range(6):
        newcomer = server.join()
        check_groups(groups)
        upload(server, newcomer, draw_data(random, KINDS[number % 3], 40))
        server.forget(int(random.integers(len(server.holdings))))
        check_groups(groups)
    for _ in range(5):
        server.forget(0)
        check_groups(groups)
    upload(server, 0, draw_data(random, KINDS[0], 40))
    server.forget(0)
    assert groups.active.size == 0
    assert not any(array.any() for array in groups.group)
    assert server.join() == 0
    upload(server, 0, draw_data(random, KINDS[0], 40))
    check_groups(groups)


@pytest.mark.parametrize("policy", [OURS, GUARDED], ids=["open", "guarded"])
def test_a_restored_server_continues_with_the_same_bits(policy: Policy) -> None:
    server = play(KINDS[np.arange(30) % 3], 5, policy=policy)
    server.answer(3)  # must leave no trace
    restored = Server.from_state(deepcopy(server.to_state()), policy=policy, dimension=D)
    answers: list[list[bytes]] = [[], []]
    for place, each in enumerate((server, restored)):
        random = np.random.default_rng(11)
        for number in range(90):
            answer = upload(each, number % 29, draw_data(random, KINDS[number % 3], 30))
            answers[place].append(answer.gram.tobytes() + answer.moment.tobytes())
            if number == 40:
                each.forget(3)
            answers[place].append(each.answer(7).gram.tobytes())
            if place:
                each.answer(5)
    assert answers[0] == answers[1]
    first, second = (get_groups(each).to_state() for each in (server, restored))
    for name, value in first.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_answers_change_smoothly_from_two_users_to_a_hundred() -> None:
    """With each user who joins, what a newcomer is told moves little, and uncertainty never vanishes or explodes."""
    random, thetas = np.random.default_rng(13), draw_users(100)
    server = play(thetas[:2], 2)
    jumps, traces = [], []
    for user in range(2, 100):
        before = get_groups(server).mean.copy()
        upload(server, server.join(), draw_data(random, thetas[user], 40))
        jumps.append(float(np.linalg.norm(get_groups(server).mean - before)))
        known = get_groups(server).prior_for_newcomer()
        assert known is not None
        traces.append(float(np.trace(read_others(known, Statistics.zero(D), OURS.lambda_)[1])))
        check_groups(get_groups(server))
    assert max(jumps[10:]) < 0.15
    assert min(traces) > 0.01
    assert max(traces) < 1.5
