"""Change detection at the agent, and what an upload after a change does at the server."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from fedcascade.federation.agent import Agent
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.delivery import run_exchange
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data import MOST_BLOCKS, OwnData, pack_row
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics, estimate_noise
from fedcascade.numerics.grid import round_to_grid

D, K = 5, 3
LIVING = POLICIES["population"].with_constants(drift="restart")
ALONE = POLICIES["fedind"].with_constants(drift="restart")


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
            keeper.restart(keeper.total)
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
    assert (data.blocks[: used - 1, -2] == 8 * 2.0**levels).all()


def test_blocks_never_run_out() -> None:
    policy = replace(ALONE, changes=ChangeDetection(block=1, threshold=1e9, limit=1e9))
    keeper = OwnDataKeeper(policy, D)
    listed, draws = draw_lists(64, 2)
    estimate = Ridge(Statistics.zero(D), 4.0)
    keeper.data.used[0] = MOST_BLOCKS
    keeper.data.levels[:] = np.arange(MOST_BLOCKS)[::-1]
    keeper.data.blocks[:, -2] = 1.0
    keeper.data.total[-2] = MOST_BLOCKS
    for each, draw in zip(listed, draws, strict=True):
        keeper.follow(each, click(each, draw, FIRST), estimate)
    used = int(keeper.data.used[0])
    assert used <= MOST_BLOCKS
    np.testing.assert_array_equal(keeper.data.blocks[:used].sum(axis=0), keeper.data.total)


def test_a_keeper_goes_on_from_its_state() -> None:
    keeper, _ = play(LIVING, [FIRST], 50)
    other = OwnDataKeeper(LIVING, D, OwnData._make(array.copy() for array in keeper.data))
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


def change(server: Server, agent: int, seed: int, rounds: int = 40) -> Statistics:
    """Let an agent replace all that it uploaded by some new data; returns them."""
    new = make_statistics(rounds, SECOND, seed)
    server.receive(Upload(agent=agent, sequence=2, cause=Cause.CHANGE, statistics=new))
    return new


GRAPH = POLICIES["fedc3ucb-h"]
POOLED = [LIVING, guard_policy(LIVING), ALONE, *(POLICIES[name] for name in ("known-clusters", "fedlinucb")), GRAPH,
          guard_policy(GRAPH)]  # fmt: skip


def name_policy(policy: Policy) -> str:
    return f"{policy.name}-{type(policy.grouping).__name__}-{'guarded' if policy.sharing else 'open'}"


@pytest.mark.parametrize("policy", POOLED, ids=name_policy)
def test_an_upload_after_a_change_replaces_all_earlier_ones(policy: Policy) -> None:
    server = make_server(policy)
    server.groups.set_true_cluster(0, 7)
    new = change(server, 0, 50)
    np.testing.assert_array_equal(server.holdings[0].gram, new.gram)
    assert server.rounds == 300 + new.rounds == int(server.holdings.rounds.sum())
    assert len(server.holdings) == 4
    for agent in range(4):
        members = np.flatnonzero(server.groups.labels == server.groups.labels[agent])
        np.testing.assert_allclose(server.groups.pooled(agent).gram, server.holdings.total(members).gram)
    if policy.name == "known-clusters":
        assert server.groups.labels.tolist() == [7, 0, 0, 0]


@pytest.mark.parametrize("policy", POOLED, ids=name_policy)
def test_replacement_is_idempotent_and_survives_a_restart(policy: Policy) -> None:
    server = make_server(policy)
    for _ in range(3):
        new = change(server, 0, 50)
    np.testing.assert_array_equal(server.holdings[0].gram, new.gram)
    assert server.rounds == 340
    again = Server.from_state(copy.deepcopy(server.to_state()), policy=policy, dimension=D)
    change(server, 1, 51)
    change(again, 1, 51)
    np.testing.assert_array_equal(server.groups.labels, again.groups.labels)
    np.testing.assert_array_equal(server.answer(2).gram, again.answer(2).gram)


def test_an_agent_of_a_graph_is_connected_to_all_again_after_a_change() -> None:
    server = Server(policy=GRAPH.with_constants(alpha_d=3.0), agents=4, dimension=D)
    for agent, theta in enumerate((FIRST, FIRST, SECOND, SECOND)):
        upload = Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=make_statistics(400, theta, agent))
        server.receive(upload)
    assert len(server.groups) > 1
    server.receive(Upload(agent=0, sequence=2, cause=Cause.CHANGE, statistics=make_statistics(400, SECOND, 9)))
    labels = server.groups.labels
    assert labels[0] == labels[2] == labels[3] != labels[1]


def test_the_server_of_a_population_holds_no_data_that_were_replaced() -> None:
    server = Server(policy=POLICIES["population"], agents=80, dimension=D)
    for agent in range(80):
        statistics = make_statistics(20, (FIRST, SECOND)[agent % 2], agent)
        server.receive(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics))
    change(server, 0, 100)
    assert server.holdings[0].rounds == 40
    assert server.rounds == 79 * 20 + 40
    server.forget(0)
    assert server.rounds == 79 * 20


def test_to_forget_an_agent_after_a_change_leaves_nothing_of_it() -> None:
    server = make_server(LIVING)
    for agent, seed in ((1, 60), (3, 61), (1, 62)):
        change(server, agent, seed)
    others = server.holdings.total(np.array([0, 2, 3]))
    server.forget(1)
    left = server.holdings.total(np.arange(len(server.holdings)))
    np.testing.assert_array_equal(left.gram, others.gram)
    assert server.rounds == left.rounds == others.rounds


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
            if upload.cause is Cause.CHANGE:
                resets.append(t)
                kept = upload.statistics
                prior = estimate_noise(kept.count, kept.clicks) * D
                np.testing.assert_allclose(agents[0].state.decision.theta, Ridge(kept, prior).theta)
                np.testing.assert_array_equal(agents[0].state.unanswered.gram, kept.gram)
                assert agents[0].state.buffer.count == 0
            run_exchange(server, agents, upload)
    assert len(resets) == 1
    assert 200 <= resets[0] < 260
    assert agents[0].state.own is not None
    total = server.holdings[0] + agents[0].state.buffer
    np.testing.assert_array_equal(agents[0].state.own_total.gram, total.gram)


def test_a_restart_waits_until_there_is_enough_to_send() -> None:
    policy = replace(LIVING, trigger=AtLeast(trigger=LIVING.trigger, observations=7))
    problem = ProblemSize(users=1, dimension=D, list_length=K, rounds=1_000)
    agent = Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=K))
    agent.state = agent.state._replace(buffer=make_statistics(30, FIRST, 1))
    kept = make_statistics(1, SECOND, 2)
    agent.restart(kept)
    assert agent.state.change_pending
    assert agent.take_back(Statistics.zero(D), least=1) is None
    other = Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=K))
    other.load_state(agent.to_state())
    for each in (agent, other):
        upload = each.take_back(make_statistics(9, SECOND, 3), least=1)
        assert upload is not None
        assert upload.cause is Cause.CHANGE
        assert upload.statistics.rounds == 1 + 9
        assert not each.state.change_pending
        assert each.state.buffer.count == 0
        assert each.state.unanswered.rounds == 10


def test_a_late_reward_goes_to_the_block_of_its_list() -> None:
    """Any blocks that a change leaves are then sums of lists with rewards in [0, 1]."""
    keeper, _ = play(ALONE, [FIRST], 200)
    data, used = keeper.data, int(keeper.data.used[0])
    ends, before = np.cumsum(data.blocks[:used, -2]), data.blocks.copy()
    assert ends[-1] == 200
    difference = Statistics(np.zeros((D, D)), np.full(D, 0.25), 0, 0, 0, -0.25)
    for round_ in (1, int(ends[0]), int(ends[0]) + 1, 200):
        keeper.correct(difference, round_)
        place = next(place for place in range(used) if ends[place] >= round_)
        before[place] += pack_row(difference)
        np.testing.assert_array_equal(data.blocks, before)
    np.testing.assert_array_equal(data.blocks[:used].sum(axis=0), data.total)
