"""Change detection at the agent, and what a reset does at the server."""

from dataclasses import replace

import numpy as np
import pytest

from fedcascade.federation.agent import Agent
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.delivery import run_exchange
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data import MOST_BLOCKS
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.server import Server
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid

D, K = 5, 3
LIVING = POLICIES["fedc3ucb-l"]
ALONE = POLICIES["fedind-c"]


def draw_lists(rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists of items of length 1, on the grid, and a uniform number for each item."""
    random = np.random.Generator(np.random.Philox(key=seed))
    items = random.normal(size=(rounds, K, D))
    items[..., :-1] *= 0.7 / np.linalg.norm(items[..., :-1], axis=2, keepdims=True)
    items[..., -1] = 0.7
    return round_to_grid(items.astype(np.float32)), random.random((rounds, K))


def click(listed: np.ndarray, draws: np.ndarray, theta: np.ndarray) -> Examination:
    attracted = np.flatnonzero(draws < np.clip(listed @ theta, 0, 1))
    return follow_cascade(K, int(attracted[0]) if attracted.size else None)


def play(policy: Policy, thetas: list[np.ndarray], rounds: int, seed: int = 1) -> tuple[OwnDataKeeper, list[int]]:
    """Follow a user who wants each of ``thetas`` for so many rounds; returns when changes were found."""
    keeper, found = OwnDataKeeper(policy, D), []
    lists, draws = draw_lists(rounds * len(thetas), seed)
    for t, (listed, draw) in enumerate(zip(lists, draws, strict=True)):
        estimate = Ridge(keeper.total, 4.0)
        if keeper.follow(listed, click(listed, draw, thetas[t // rounds]), estimate):
            found.append(t)
            keeper.begin_anew(keeper.total)
    return keeper, found


FIRST, SECOND = np.array([0.7, 0, 0, 0, 0.7]), np.array([-0.7, 0, 0, 0, 0.7])


def test_a_change_is_found_soon_and_what_came_before_it_is_forgotten() -> None:
    keeper, found = play(ALONE, [FIRST, SECOND], 300)
    assert len(found) == 1
    assert 300 <= found[0] < 360
    assert 300 - 8 <= keeper.total.rounds <= 300 + 24


def test_a_change_that_raises_clicks_is_found_too() -> None:
    """A CUSUM of fewer clicks is blind to it; the evidence for two users is not."""
    shy, eager = np.array([0.2, 0, 0, 0, 0.3]), np.array([0.2, 0, 0, 0, 1.0])
    _, found = play(ALONE, [shy, eager], 300)
    assert len(found) == 1
    assert 300 <= found[0] < 360


@pytest.mark.parametrize("seed", range(6))
def test_no_change_is_found_where_there_is_none(seed: int) -> None:
    _, found = play(ALONE, [FIRST], 1_500, seed)
    assert found == []


def test_blocks_hold_all_data_in_order_and_at_most_two_of_a_size() -> None:
    keeper, found = play(ALONE, [FIRST], 999)
    data, used = keeper.data, int(keeper.data.used[0])
    assert found == []
    assert used <= MOST_BLOCKS
    np.testing.assert_array_equal(data.blocks[:used].sum(axis=0), data.total)
    levels = data.levels[: used - 1]
    assert (np.diff(levels) <= 0).all()
    assert np.bincount(levels).max() <= 3
    assert (data.blocks[: used - 1, -1] == 8 * 2.0**levels).all()


def test_blocks_never_run_out() -> None:
    policy = replace(ALONE, changes=ChangeDetection(block=1, threshold=1e9, limit=1e9))
    keeper = OwnDataKeeper(policy, D)
    listed, draws = draw_lists(64, 2)
    estimate = Ridge(Statistics.zero(D), 4.0)
    keeper.data.used[0] = MOST_BLOCKS
    keeper.data.levels[:] = np.arange(MOST_BLOCKS)[::-1]
    keeper.data.blocks[:, -1] = 1.0
    keeper.data.total[-1] = MOST_BLOCKS
    for each, draw in zip(listed, draws, strict=True):
        keeper.follow(each, click(each, draw, FIRST), estimate)
    used = int(keeper.data.used[0])
    assert used <= MOST_BLOCKS
    np.testing.assert_array_equal(keeper.data.blocks[:used].sum(axis=0), keeper.data.total)


def test_a_keeper_goes_on_from_its_state() -> None:
    keeper, _ = play(LIVING, [FIRST], 50)
    other = OwnDataKeeper(LIVING, D)
    other.load_state({name: array.copy() for name, array in keeper.to_state().items()})
    lists, draws = draw_lists(40, 9)
    for listed, draw in zip(lists, draws, strict=True):
        seen, estimate = click(listed, draw, SECOND), Ridge(keeper.total, 4.0)
        assert keeper.follow(listed, seen, estimate) == other.follow(listed, seen, estimate)
        np.testing.assert_array_equal(keeper.data.total, other.data.total)


def make_statistics(rounds: int, theta: np.ndarray, seed: int) -> Statistics:
    total = Statistics.zero(D)
    for listed, draw in zip(*draw_lists(rounds, seed), strict=True):
        total = total.observe(listed, click(listed, draw, theta))
    return total


def make_server(policy: Policy, agents: int = 4) -> Server:
    """A server whose agents all want the same, each with 100 rounds."""
    server = Server(policy=policy, agents=agents, dimension=D, truth=np.zeros(agents, np.int64))
    for agent in range(agents):
        statistics = make_statistics(100, FIRST, agent)
        server.receive(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics))
    return server


def reset(server: Server, agent: int, seed: int, rounds: int = 40) -> Statistics:
    """Let an agent say that its user has changed, with some new data; returns them."""
    new = make_statistics(rounds, SECOND, seed)
    server.receive(Upload(agent=agent, sequence=2, cause=Cause.CHANGE, statistics=new, kept=new))
    return new


@pytest.mark.parametrize("name", ["fedc3ucb-l", "fedind-c", "known-clusters"])
def test_a_reset_leaves_the_earlier_self_where_it_was(name: str) -> None:
    server = make_server(POLICIES[name])
    before, rounds = server.holdings[0], server.rounds
    with_me = {agent for agent in range(4) if server.groups.labels[agent] == server.groups.labels[0]}
    server.tell_cluster(0, 7)
    new = reset(server, 0, 50)
    [ghost] = server.find_ghosts(0)
    assert ghost == 4
    np.testing.assert_array_equal(server.holdings[ghost].gram, before.gram)
    np.testing.assert_array_equal(server.holdings[0].gram, new.gram)
    assert server.rounds == rounds + new.rounds
    assert all(server.groups.labels[agent] == server.groups.labels[ghost] for agent in with_me - {0})
    assert server.groups.labels[0] != server.groups.labels[ghost]
    assert server.answer(0).agents == 4
    pooled = server.groups.pooled(0)
    members = np.flatnonzero(server.groups.labels == server.groups.labels[0])
    np.testing.assert_allclose(pooled.gram, server.holdings.total(members).gram)


def test_ghosts_are_bounded_and_the_oldest_gives_way() -> None:
    server = make_server(LIVING.with_constants(ghosts=2))
    first = reset(server, 1, 60)
    for seed in (61, 62, 63):
        reset(server, 1, seed)
    assert len(server.find_ghosts(1)) == 2
    assert len(server.holdings) == 6
    assert server.rounds == int(server.holdings.rounds.sum())
    held = [server.holdings[place].rounds for place in server.find_ghosts(1)]
    assert held == [40, 40]
    assert first.rounds == 40
    assert server.groups.labels.size == 6


def test_without_ghosts_the_earlier_self_is_subtracted() -> None:
    server = make_server(LIVING.with_constants(ghosts=0))
    reset(server, 1, 60)
    assert len(server.holdings) == 4
    assert server.holdings[1].rounds == 40
    assert server.rounds == 340


def test_to_forget_an_agent_forgets_its_ghosts_and_nobody_else_s() -> None:
    server = make_server(LIVING)
    for agent, seed in ((1, 60), (3, 61), (1, 62)):
        reset(server, agent, seed)
    others = server.holdings.total(np.array([0, 2, 3, *server.find_ghosts(3)]))
    assert server.forget(1) == [6, 4, 1]
    assert server.find_ghosts(1) == []  # agent 3 has its place now
    left = server.holdings.total(np.arange(len(server.holdings)))
    np.testing.assert_array_equal(left.gram, others.gram)
    assert server.rounds == left.rounds == others.rounds
    again = Server.from_state(server.to_state(), policy=LIVING, dimension=D)
    np.testing.assert_array_equal(again.ghosts, server.ghosts)
    np.testing.assert_array_equal(again.answer(0).statistics.gram, server.answer(0).statistics.gram)


def test_a_reset_that_keeps_what_was_never_uploaded_is_refused() -> None:
    server, twice = make_server(LIVING), make_statistics(300, SECOND, 70)
    upload = Upload(agent=0, sequence=2, cause=Cause.CHANGE, statistics=Statistics.zero(D), kept=twice)
    before = server.holdings[0]
    with pytest.raises(ValueError, match=r"counts must satisfy|positive semi-definite"):
        server.receive(upload)
    np.testing.assert_array_equal(server.holdings[0].gram, before.gram)
    with pytest.raises(ValueError, match="takes no resets"):
        make_server(POLICIES["fedc3ucb-e"]).receive(replace(upload, kept=Statistics.zero(D)))
    reset(server, 0, 71)
    with pytest.raises(ValueError, match="place of an earlier self"):
        server.receive(Upload(agent=4, sequence=1, cause=Cause.CHANGE, statistics=twice, kept=twice))


def test_an_agent_that_resets_goes_on_with_what_it_keeps() -> None:
    problem = ProblemSize(users=4, dimension=D, list_length=K, rounds=1_000)
    server, ties = make_server(LIVING), np.arange(K, dtype=np.uint32)
    agents = [Agent(id=user, policy=LIVING, problem=problem, oracle=TopK(length=K)) for user in range(4)]
    lists, draws = draw_lists(400, 5)
    resets = []
    server = Server(policy=LIVING, agents=4, dimension=D)
    for t, (listed, draw) in enumerate(zip(lists, draws, strict=True)):
        shown = agents[0].recommend(listed, ties)
        seen = click(listed[shown.items], draw, FIRST if t < 200 else SECOND)
        upload = agents[0].observe(shown, seen.clicks[0] if seen.clicks else None, round_=t + 1, draw=0.5)
        if upload is not None:
            if upload.kept is not None:
                resets.append(t)
                np.testing.assert_array_equal(agents[0].decision.theta, Ridge(upload.kept, LIVING.lambda_).theta)
            run_exchange(server, agents, upload)
    assert len(resets) == 1
    assert 200 <= resets[0] < 260
    assert agents[0].own_data is not None
    total = server.holdings[0] + agents[0].buffer
    np.testing.assert_array_equal(agents[0].own_data.total.gram, total.gram)
