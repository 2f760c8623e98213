"""Grouping by a population: the mixture's arithmetic, what is learned, what is told, and who is forgotten."""

from copy import deepcopy

import numpy as np
import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.grouping.evidence import FEW
from fedcascade.federation.grouping.expectation import set_population
from fedcascade.federation.grouping.fitting import EVERYTHING, Fit, Sample, Shape, make_fitted
from fedcascade.federation.grouping.guard import Guard
from fedcascade.federation.grouping.mixture import (
    FREE,
    WEIGHT,
    Mixture,
    find_level,
    get_spread,
    make_room,
    match_moments,
    state_as_statistics,
    weigh,
)
from fedcascade.federation.grouping.population import COMPONENTS, POPULATION, PopulationPartition
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.store.snapshot import encode_state
from fedcascade.simulation.engines import simulate

OURS = POLICIES["fedc3ucb-p"]
D, AGENTS, NOISE = 3, 120, 0.2


def make_theta(kind: int, kinds: int) -> np.ndarray:
    angle = 2 * np.pi * kind / kinds
    return np.array([np.cos(angle), np.sin(angle), 1.0]) / 2


def draw_upload(random: np.random.Generator, agent: int, kinds: int, rounds: int = 30) -> Statistics:
    """Rounds of a user of one of some kinds; the kind says which way the clicks go."""
    z = random.normal(size=(rounds, 2))
    x = round_to_grid(np.hstack([z / np.linalg.norm(z, axis=1, keepdims=True), np.ones((rounds, 1))]) / 1.5)
    total = Statistics.zero(D)
    for row, draw in zip(x, random.random(rounds), strict=True):
        total = total.observe(row[None], 0 if draw < row @ make_theta(agent % kinds, kinds) else None)
    return total


def play(kinds: int, uploads: int = 3 * AGENTS, **constants: float) -> Server:
    """A server with which each agent has spoken some times."""
    random = np.random.default_rng(5)
    server = Server(policy=OURS.with_constants(**constants), agents=AGENTS, dimension=D)
    for number in range(uploads):
        receive(server, number % AGENTS, draw_upload(random, number % AGENTS, kinds))
    return server


def receive(server: Server, agent: int, statistics: Statistics) -> Statistics:
    (download,) = server.receive(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics))
    return download.statistics


def get_groups(server: Server) -> PopulationPartition:
    assert isinstance(server.groups, PopulationPartition)
    return server.groups


def check_members(groups: PopulationPartition) -> None:
    """Members must be counted as labels say."""
    assert len(groups) == np.unique(groups.labels).size
    for agent in range(groups.labels.size):
        assert groups.count_members(agent) == np.count_nonzero(groups.labels == groups.labels[agent])


def draw_mixture(random: np.random.Generator) -> tuple[Mixture, np.ndarray]:
    """A mixture of a population and two components in four slots, and the population's covariance."""
    fitted = make_fitted(4, D, NOISE)
    root = random.normal(size=(D, D)) / 3
    covariance = root @ root.T + 0.02 * np.eye(D)
    set_population(fitted.mixture, random.normal(size=D) / 3, covariance, NOISE)
    mixture = fitted.mixture
    mixture.means[[0, 2]], mixture.levels[[0, 2]] = random.normal(size=(2, D)) / 2, [3, 5]
    mixture.log_weights[[0, 2]], mixture.numbers[WEIGHT] = np.log([0.3, 0.2]), np.log(0.5)
    return mixture, covariance


def test_responsibilities_and_moments_are_those_of_bayes() -> None:
    random = np.random.default_rng(1)
    mixture, covariance = draw_mixture(random)
    x, y = random.normal(size=(7, D)) / 2, random.integers(2, size=7).astype(float)
    room = make_room(4, D)
    evidence = weigh(mixture, x.T @ x, x.T @ y, NOISE, room)
    parts = [
        (0.5, mixture.centre, covariance),
        (0.3, mixture.means[0], get_spread(3) * np.eye(D)),
        (0.2, mixture.means[2], get_spread(5) * np.eye(D)),
    ]
    likelihood, means, seconds = [], [], []
    for weight, mean, spread in parts:
        marginal = x @ spread @ x.T + NOISE * np.eye(7)
        away = y - x @ mean
        log_likelihood = -0.5 * away @ np.linalg.solve(marginal, away) - 0.5 * np.linalg.slogdet(marginal)[1]
        gain = spread @ x.T @ np.linalg.inv(marginal)
        likelihood.append(weight * np.exp(log_likelihood))
        means.append(mean + gain @ away)
        seconds.append(spread - gain @ x @ spread + np.outer(means[-1], means[-1]))
    shares = np.array(likelihood) / sum(likelihood)
    np.testing.assert_allclose([room.numbers[0], room.weights[0], room.weights[2]], shares, rtol=1e-9)
    alone = -0.5 * y @ y / NOISE - 0.5 * 7 * np.log(NOISE)
    assert evidence == pytest.approx(np.log(sum(likelihood)) - alone)
    mean, second = match_moments(mixture, NOISE, room)
    np.testing.assert_allclose(mean, shares @ np.array(means), rtol=1e-9)
    expected = np.einsum("k,kij->ij", shares, np.array(seconds)) - np.outer(mean, mean)
    np.testing.assert_allclose(NOISE * second, expected, rtol=1e-8, atol=1e-12)


def test_a_gaussian_as_statistics_gives_its_mean_and_width_back() -> None:
    random = np.random.default_rng(2)
    root, mean = random.normal(size=(D, D)), random.normal(size=D)
    gram, moment = state_as_statistics(mean, root @ root.T, 4.0)
    ridge = Ridge(Statistics(gram, moment, 0, 0, 0), 4.0)
    np.testing.assert_allclose(ridge.theta, mean, rtol=1e-9)
    np.testing.assert_allclose(ridge.root.T @ ridge.root, root @ root.T, rtol=1e-9)


def test_levels_are_the_nearest() -> None:
    assert [find_level(spread) for spread in (0.0, 5e-4, 0.002, 0.0021, 0.0029, 9.0)] == [0, 0, 2, 2, 3, 9]


def test_clusters_are_found_and_told() -> None:
    server = play(3)
    groups = get_groups(server)
    assert groups.is_many
    assert groups.speakers == AGENTS
    found = groups.means[groups.levels != FREE]
    for kind in range(3):
        assert np.abs(found - make_theta(kind, 3)).max(axis=1).min() < 0.15
    assert groups.is_told.all()
    right = [np.bincount(groups.labels[kind::3]).argmax() for kind in range(3)]
    assert len(set(right)) == 3
    assert np.mean(groups.labels == np.array(right)[np.arange(AGENTS) % 3]) > 0.9
    check_members(groups)
    own = Ridge(server.holdings[0], 4.0).theta - make_theta(0, 3)
    told = Ridge(groups.answer(0), 4.0).theta - make_theta(0, 3)
    assert told @ told < 0.5 * own @ own


def test_among_few_answers_are_those_of_grouping_by_evidence() -> None:
    random = np.random.default_rng(3)
    policies = OURS, POLICIES["fedc3ucb-e"]
    servers = [Server(policy=policy, agents=AGENTS, dimension=D) for policy in policies]
    for number in range(3 * FEW):
        statistics = draw_upload(random, number % FEW, 3)
        ours, theirs = (receive(server, number % FEW, statistics) for server in servers)
        assert ours.gram.tobytes() + ours.moment.tobytes() == theirs.gram.tobytes() + theirs.moment.tobytes()
    assert not get_groups(servers[0]).is_many
    receive(servers[0], FEW, statistics)
    assert get_groups(servers[0]).is_many


def test_components_that_predict_worse_are_told_no_more_until_they_predict_better() -> None:
    server = play(3)
    groups, random = get_groups(server), np.random.default_rng(9)
    groups.work, groups.fit_due = {}, np.inf
    groups.means[groups.levels != FREE] *= -1.0
    for _ in range(80):
        newcomer = server.join()
        receive(server, newcomer, draw_upload(random, newcomer, 3))
    assert groups.is_told.tolist() == [False, True]
    told = groups.answer(0)
    groups.is_told[POPULATION] = False
    assert groups.answer(0).gram.tobytes() == server.holdings[0].gram.tobytes() != told.gram.tobytes()
    groups.fit_due = 0.0
    for number in range(3 * AGENTS):
        receive(server, number % AGENTS, draw_upload(random, number % AGENTS, 3))
    assert groups.is_told[COMPONENTS]


def test_a_restored_server_goes_on_to_the_same_bits_among_many() -> None:
    random, server = np.random.default_rng(4), play(3, sample=90)
    while not get_groups(server).work:
        receive(server, 5, draw_upload(random, 5, 3))
    restored = Server.from_state(deepcopy(server.to_state()), policy=server.policy, dimension=D)
    for number in range(AGENTS):
        statistics = draw_upload(random, number, 3)
        ours, theirs = receive(server, number, statistics), receive(restored, number, statistics)
        assert ours.gram.tobytes() + ours.moment.tobytes() == theirs.gram.tobytes() + theirs.moment.tobytes()
        if number == 60:
            for either in (server, restored):
                assert either.join() == AGENTS
                either.forget(int(get_groups(either).sample[3]))
    assert get_groups(server).fits == get_groups(restored).fits > 5


def test_a_newcomer_is_told_what_is_known_of_anybody() -> None:
    server = play(3)
    newcomer = server.join()
    theta = Ridge(server.answer(newcomer).statistics, 4.0).theta
    assert abs(theta[2] - 0.5) < 0.1
    assert np.abs(theta[:2]).max() < 0.15
    groups = get_groups(server)
    assert groups.labels.size == AGENTS + 1
    assert groups.labels[newcomer] == groups.levels.size + newcomer


def test_forgetting_leaves_nothing_of_an_agent_in_the_sums() -> None:
    server = play(3, sample=90)
    groups = get_groups(server)
    sampled = int(groups.sample[0])
    taught = [*groups.sample.tolist(), *groups.leavers.tolist()]
    other = next(agent for agent in range(AGENTS) if agent not in taught)
    means, fits = groups.means.copy(), groups.fits
    server.forget(other)
    np.testing.assert_array_equal(groups.means, means)
    assert groups.fits == fits
    assert groups.sample.max() < AGENTS - 1
    assert groups.speakers == AGENTS - 1
    server.forget(other if sampled == AGENTS - 1 else sampled)
    assert groups.fits == fits + 1
    assert groups.sample.size == groups.former.shape[0] == 89
    check_members(groups)


def test_an_agent_whose_user_changed_is_a_newcomer_to_the_sample() -> None:
    server, random = play(3), np.random.default_rng(7)
    groups, fits = get_groups(server), get_groups(server).fits
    server.take(Upload(agent=0, sequence=9, cause=Cause.CHANGE, statistics=draw_upload(random, 1, 3)))
    assert groups.fits > fits
    assert groups.sample[-1] == 0
    assert groups.speakers == AGENTS == groups.labels.size == groups.sample.size
    check_members(groups)


def test_who_has_left_the_sample_is_forgotten_like_those_in_it() -> None:
    server = play(3, sample=90)
    groups, fits = get_groups(server), get_groups(server).fits
    groups.leavers = np.append(groups.leavers, next(agent for agent in range(AGENTS) if agent not in groups.sample))
    server.forget(int(groups.leavers[-1]))
    assert groups.fits == fits + 1
    assert not groups.work


def test_a_fit_in_pieces_is_the_fit_at_once() -> None:
    groups = get_groups(play(3))
    shape = Shape(NOISE, 0.002, 1.5)
    pieces, whole = (Fit(groups._fitted, np.arange(AGENTS), 7, True) for _ in range(2))
    formers = groups.former.copy(), groups.former.copy()
    whole.advance(Sample(groups.holdings, groups.sample, formers[0]), shape, EVERYTHING)
    steps = 0
    while not pieces.is_done:
        pieces.advance(Sample(groups.holdings, groups.sample, formers[1]), shape, 11.0)
        pieces, steps = Fit.from_state(deepcopy(pieces.to_state())), steps + 1
    assert steps > 20
    assert formers[0].tobytes() == formers[1].tobytes()
    for ours, theirs in zip(pieces.to_state()["fitted"], whole.to_state()["fitted"], strict=True):
        assert ours.tobytes() == theirs.tobytes()


def draw_lie(rounds: int) -> Statistics:
    """Rounds of a user who wants what users of the first kind do not."""
    random, lie = np.random.default_rng(1), Statistics.zero(D)
    for _ in range(rounds // 30):
        truth = draw_upload(random, 0, 3)
        lie = lie + Statistics(truth.gram, truth.gram.sum(axis=1) / 1.5 - truth.moment, truth.count, 0, truth.rounds)
    return lie


@pytest.mark.parametrize("uploads", [1, 100])
def test_one_agent_cannot_shut_the_gate(uploads: int) -> None:
    server = play(3)
    groups = get_groups(server)
    before = [Ridge(groups.answer(agent), 4.0).theta for agent in (0, 2, 5)]
    for number in range(uploads):
        receive(server, 1, draw_lie(3000 if number == 0 else 60))
    assert groups.is_told.all()
    for agent, theta in zip((0, 2, 5), before, strict=True):
        assert np.abs(Ridge(groups.answer(agent), 4.0).theta - theta).max() < 0.1


def test_one_agent_cannot_hold_the_gate_open() -> None:
    server = play(3)
    groups, random = get_groups(server), np.random.default_rng(9)
    groups.work, groups.fit_due, groups.scores[:] = {}, np.inf, 0.0
    groups.means[groups.levels != FREE] *= -1.0
    flattery = draw_lie(60)
    for _ in range(80):
        newcomer = server.join()
        receive(server, newcomer, draw_upload(random, newcomer, 3))
        for _ in range(3):
            receive(server, 1, flattery)
    assert not groups.is_told[COMPONENTS]


def test_one_agent_of_much_data_does_not_keep_others_out_of_a_fit() -> None:
    server = play(3)
    receive(server, 1, draw_lie(30_000))
    groups = get_groups(server)
    groups.work, groups.fit_due = {}, 0.0
    receive(server, 2, draw_upload(np.random.default_rng(2), 2, 3))
    assert groups.work["places"].size > 0.9 * AGENTS
    fits = groups.fits
    random = np.random.default_rng(3)
    for number in range(2 * AGENTS):
        receive(server, number % AGENTS, draw_upload(random, number % AGENTS, 3))
    assert groups.fits > fits, "one agent's observations must not put off fits"


def test_a_liar_moves_nobody_else_far() -> None:
    honest, deceived = play(3), play(3)
    lie = Statistics.zero(D)
    for _ in range(2000):
        lie = lie.observe(np.array([[0.0, 2.0**-7, 0.0]], np.float32), 0)
    receive(deceived, 1, lie)
    random = np.random.default_rng(8)
    for number in range(2 * AGENTS):
        statistics = draw_upload(random, number % AGENTS, 3)
        for server in (honest, deceived):
            receive(server, number % AGENTS, statistics)
    assert get_groups(deceived).fits > get_groups(honest).fits - 5
    for agent in (0, 2, 5):
        thetas = [Ridge(server.groups.answer(agent), 4.0).theta for server in (honest, deceived)]
        assert np.abs(thetas[0] - thetas[1]).max() < 0.1


def test_a_guarded_server_tells_of_components_of_enough_members_alone() -> None:
    policy = guard_policy(OURS)
    server, random = Server(policy=policy, agents=AGENTS, dimension=D), np.random.default_rng(6)
    for number in range(2 * AGENTS):
        answer = receive(server, number % AGENTS, draw_upload(random, number % AGENTS, 3))
    groups = get_groups(server)
    assert groups.former.sum(axis=0)[groups.levels != FREE].min() >= 2
    assert answer.gram.tobytes() == groups.answer(AGENTS - 1).gram.tobytes(), "sharing must leave the answer as it is"


def test_engines_agree_among_many() -> None:
    world = Synthetic(users=80, clusters=3, dimension=4, items=10, seed=1)
    exact, reference = (simulate(world, OURS, rounds=1600, engine=engine) for engine in ("exact", "reference"))
    assert exact.ledger == reference.ledger
    assert exact.curve == reference.curve
    assert len({entry.agent for entry in exact.ledger}) > FEW


def test_a_newcomer_is_told_what_an_agent_without_data_is_answered_and_nothing_changes() -> None:
    server = play(3)
    told, before = server.welcome(99), deepcopy(server.to_state())
    assert told is not None
    assert (told.agent, told.agents, told.statistics.count) == (99, AGENTS, 0)
    joined = server.join()
    answered = server.answer(joined).statistics
    np.testing.assert_array_equal(told.statistics.gram, answered.gram)
    np.testing.assert_array_equal(told.statistics.moment, answered.moment)
    server.forget(joined)
    again = server.to_state()
    assert encode_state(again["groups"]) == encode_state(before["groups"])


def test_a_newcomer_is_told_nothing_where_a_guard_hides_everybody() -> None:
    server = play(3)
    server.groups.guard = Guard(AGENTS, 2.0)
    assert server.welcome(0) is None
