"""Groupings are partitions whose pools are sums; the graph loses exactly the edges that Algorithm 3 names."""

from dataclasses import dataclass, replace
from math import log, sqrt

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph import HeterogeneityGraph, find_components
from fedcascade.federation.grouping.partition import Alone, Everyone, Grouping, KnownClusters, Partition
from fedcascade.federation.holdings import Holdings, compute_confidence_width
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

from ..graphs import get_edges

DIMENSION = 3


@dataclass(frozen=True)
class Play:
    """Some agents of a few kinds, and who uploads when."""

    agents: int
    kinds: list[int]
    turns: list[int]
    seed: int
    alpha_d: float


@st.composite
def plays(draw: st.DrawFn) -> Play:
    agents = draw(st.integers(2, 8))
    return Play(
        agents=agents,
        kinds=draw(st.lists(st.integers(0, 2), min_size=agents, max_size=agents)),
        turns=draw(st.lists(st.integers(0, agents - 1), min_size=1, max_size=25)),
        seed=draw(st.integers(0, 2**32)),
        alpha_d=draw(st.floats(0.05, 1.0)),
    )


def uploads(play: Play) -> list[Upload]:
    """Agents of kind k mostly click items along axis k."""
    random = np.random.default_rng(play.seed)
    found = []
    for sequence, agent in enumerate(play.turns, 1):
        total = Statistics.zero(DIMENSION)
        for _ in range(int(random.integers(1, 12))):
            drawn = np.abs(random.normal(size=(4, DIMENSION)))
            listed = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
            hits = np.flatnonzero(random.random(4) < listed[:, play.kinds[agent]])
            total = total.observe(listed, int(hits[0]) if hits.size else None)
        found.append(Upload(agent=agent, sequence=sequence, cause=Cause.FORCED, statistics=total))
    return found


def server_of(grouping: Grouping, play: Play) -> Server:
    policy = replace(POLICIES["fedc3ucb-h"], grouping=grouping, lambda_=1.0)
    return Server(policy=policy, agents=play.agents, dimension=DIMENSION, truth=np.array(play.kinds))


def parts_of(labels: NDArray[np.int64]) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def true_parts(edges: NDArray[np.bool_]) -> set[frozenset[int]]:
    return {frozenset(part) for part in nx.connected_components(nx.from_numpy_array(edges.astype(int)))}


def check_pools(groups: Partition, holdings: Holdings) -> None:
    for agent in range(len(holdings)):
        members = np.flatnonzero(groups.labels == groups.labels[agent])
        pooled = groups.pooled(agent)
        np.testing.assert_allclose(pooled.gram, holdings.gram[members].sum(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(pooled.moment, holdings.moment[members].sum(axis=0), rtol=1e-12, atol=1e-12)
        assert pooled.count == holdings.count[members].sum()
        assert pooled.clicks == holdings.clicks[members].sum()
        assert pooled.rounds == holdings.rounds[members].sum()


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 14), st.floats(0.0, 0.5), st.integers(0, 2**32), st.data())
def test_components_are_networkxs(size: int, density: float, seed: int, data: st.DataObject) -> None:
    edges = np.triu(np.random.default_rng(seed).random((size, size)) < density, 1)
    edges |= edges.T
    members = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    found = find_components(edges, np.array(members, np.intp))
    graph = nx.from_numpy_array(edges.astype(int)).subgraph(members)
    assert {frozenset(part.tolist()) for part in found} == {frozenset(p) for p in nx.connected_components(graph)}
    assert sum(part.size for part in found) == len(members)
    assert [part.size for part in found] == sorted((part.size for part in found), reverse=True)


@settings(deadline=None, max_examples=40)
@given(plays())
def test_pools_are_the_sums_over_a_group_at_all_times(play: Play) -> None:
    for grouping in (Everyone(), Alone(), KnownClusters(), HeterogeneityGraph(alpha_d=play.alpha_d)):
        server = server_of(grouping, play)
        for upload in uploads(play):
            server.receive(upload)
            check_pools(server.groups, server.holdings)
            assert len(server.groups) == len(np.unique(server.groups.labels))


@settings(deadline=None, max_examples=60)
@given(plays())
def test_an_edge_vanishes_iff_the_inequality_holds_and_labels_are_the_components(play: Play) -> None:
    server = server_of(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    held = [Statistics.zero(DIMENSION) for _ in range(play.agents)]

    def width(count: int) -> float:
        return sqrt((1 + log(1 + count)) / (1 + count))

    for upload in uploads(play):
        one = upload.agent
        before = get_edges(server).copy()
        server.receive(upload)
        after = get_edges(server)
        held[one] = held[one] + upload.statistics
        theta = [np.linalg.solve(np.eye(DIMENSION) + seen.gram, seen.moment) for seen in held]
        np.testing.assert_array_equal(after, after.T)
        for other in range(play.agents):
            gap = np.linalg.norm(theta[one] - theta[other])
            bound = play.alpha_d * (width(held[one].count) + width(held[other].count))
            if abs(gap - bound) > 1e-9:
                assert after[one, other] == (before[one, other] and gap <= bound)
        others = np.arange(play.agents) != one
        np.testing.assert_array_equal(after[np.ix_(others, others)], before[np.ix_(others, others)])
        assert not np.any(after & ~before)
        assert parts_of(server.groups.labels) == true_parts(after)


def test_a_long_play_splits_the_graph_into_the_true_kinds() -> None:
    # Otherwise the two tests above could pass without an edge ever vanishing.
    play = Play(6, [0, 1, 2, 0, 1, 2], list(range(6)) * 40, seed=5, alpha_d=1.5)
    server = server_of(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    assert parts_of(server.groups.labels) == {frozenset(range(6))}
    for upload in uploads(play):
        server.receive(upload)
    assert parts_of(server.groups.labels) == {frozenset({0, 3}), frozenset({1, 4}), frozenset({2, 5})}
    check_pools(server.groups, server.holdings)


def test_removing_edges_without_splitting_keeps_one_group() -> None:
    # 0 - 1 - 2 stays connected through 1 when 0 - 2 goes.
    edges = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.bool_)
    assert [part.tolist() for part in find_components(edges, np.arange(3))] == [[0, 1, 2]]


def test_fixed_groupings_start_as_they_say() -> None:
    holdings, truth = Holdings(4, 2, 1.0), np.array([5, 3, 5, 9])
    assert parts_of(Everyone().begin(holdings, None).labels) == {frozenset(range(4))}
    assert parts_of(Alone().begin(holdings, None).labels) == {frozenset({i}) for i in range(4)}
    known = KnownClusters().begin(holdings, truth)
    assert parts_of(known.labels) == {frozenset({0, 2}), frozenset({1}), frozenset({3})}
    assert not np.shares_memory(known.labels, truth)
    assert parts_of(HeterogeneityGraph().begin(holdings, truth).labels) == {frozenset(range(4))}


def test_known_clusters_without_the_truth_is_refused() -> None:
    with pytest.raises(ValueError, match="known-clusters needs the true clusters"):
        KnownClusters().begin(Holdings(3, 2, 1.0), None)


def test_known_clusters_of_other_agents_are_refused() -> None:
    with pytest.raises(ValueError, match="clusters"):
        KnownClusters().begin(Holdings(3, 2, 1.0), np.array([0, 1]))


def test_confidence_width_by_hand() -> None:
    assert compute_confidence_width(0) == 1.0
    np.testing.assert_allclose(compute_confidence_width(99), sqrt((1 + log(100)) / 100))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_a_bad_alpha_d_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="alpha_d"):
        HeterogeneityGraph(alpha_d=bad)


def late(grouping: Grouping, play: Play) -> tuple[Server, dict[int, int]]:
    """A server that meets each agent at its first upload; and the numbers it gave them."""
    policy = replace(POLICIES["fedc3ucb-h"], grouping=grouping, lambda_=1.0)
    server = Server(policy=policy, agents=1, dimension=DIMENSION)
    numbers: dict[int, int] = {}
    for upload in uploads(play):
        if upload.agent not in numbers:
            numbers[upload.agent] = server.join() if numbers else 0
        server.receive(replace(upload, agent=numbers[upload.agent]))
        check_pools(server.groups, server.holdings)
    return server, numbers


@settings(deadline=None, max_examples=60)
@given(plays())
def test_agents_may_join_at_any_time(play: Play) -> None:
    for grouping in (Everyone(), Alone(), HeterogeneityGraph(alpha_d=play.alpha_d)):
        server, numbers = late(grouping, play)
        early = server_of(grouping, play)
        for upload in uploads(play):
            early.receive(upload)
        for agent, number in numbers.items():
            assert np.array_equal(early.holdings.gram[agent], server.holdings.gram[number])
            assert np.array_equal(early.holdings.theta[agent], server.holdings.theta[number])


@settings(deadline=None, max_examples=60)
@given(plays())
def test_a_newcomer_is_joined_to_all_by_the_graph(play: Play) -> None:
    server, _ = late(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    before = get_edges(server).copy()
    newcomer = server.join()
    after = get_edges(server)
    assert np.array_equal(after[:newcomer, :newcomer], before)
    assert after[newcomer, :newcomer].all()
    assert not after[newcomer, newcomer]
    assert len(server.groups) == 1
    check_pools(server.groups, server.holdings)


@settings(deadline=None, max_examples=60)
@given(plays(), st.data())
def test_a_forgotten_agent_leaves_nothing_behind(play: Play, data: st.DataObject) -> None:
    for grouping in (Everyone(), Alone(), HeterogeneityGraph(alpha_d=play.alpha_d)):
        server, numbers = late(grouping, play)
        gone = data.draw(st.sampled_from(sorted(numbers)))
        server.forget(numbers[gone])
        left = sorted((number, agent) for agent, number in numbers.items() if agent != gone)
        assert len(server.holdings) == len(server.groups.labels) == len(left)
        for place, (_, agent) in enumerate(left):
            own = [upload.statistics for upload in uploads(play) if upload.agent == agent]
            assert np.array_equal(server.holdings.gram[place], sum((s.gram for s in own[1:]), own[0].gram))
        assert server.rounds == server.holdings.rounds.sum()
        check_pools(server.groups, server.holdings)
        if isinstance(grouping, HeterogeneityGraph) and left:
            assert parts_of(server.groups.labels) == true_parts(get_edges(server))


def test_a_grouping_that_does_not_say_where_newcomers_go_refuses_them() -> None:
    play = Play(agents=2, kinds=[0, 1], turns=[0], seed=0, alpha_d=1.0)
    with pytest.raises(ValueError, match="newcomer"):
        server_of(KnownClusters(), play).join()


def test_a_thousand_newcomers_share_one_large_graph() -> None:
    server = server_of(HeterogeneityGraph(), Play(agents=1, kinds=[0], turns=[0], seed=0, alpha_d=1.0))
    for _ in range(999):
        server.join()
    assert get_edges(server).sum() == 1000 * 999
    assert len(server.groups) == 1
