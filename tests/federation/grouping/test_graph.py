"""The graph loses exactly the edges that Algorithm 3 names, and its components are the groups."""

from math import log, sqrt

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.federation.grouping.graph.complete import (
    ClubGraph,
    HeterogeneityGraph,
    Width,
    find_components,
    require_memory,
)
from fedcascade.federation.holdings import Holdings, compute_confidence_width
from fedcascade.learning.statistics import Statistics

from ..graphs import get_edges
from .plays import (
    DIMENSION,
    Play,
    check_pools,
    draw_plays,
    find_true_groups,
    make_server,
    make_uploads,
    play_with_newcomers,
    to_groups,
)


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


@settings(deadline=None, max_examples=60)
@given(draw_plays())
def test_an_edge_vanishes_iff_the_inequality_holds_and_labels_are_the_components(play: Play) -> None:
    server = make_server(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    held = [Statistics.zero(DIMENSION) for _ in range(play.agents)]

    def width(count: int) -> float:
        return sqrt((1 + log(1 + count)) / (1 + count))

    for upload in make_uploads(play):
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
        assert to_groups(server.groups.labels) == find_true_groups(after)


def test_a_long_play_splits_the_graph_into_the_true_kinds() -> None:
    # Otherwise the two tests above could pass without an edge ever vanishing.
    play = Play(6, [0, 1, 2, 0, 1, 2], list(range(6)) * 40, seed=5, alpha_d=1.5)
    server = make_server(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    assert to_groups(server.groups.labels) == {frozenset(range(6))}
    for upload in make_uploads(play):
        server.receive(upload)
    assert to_groups(server.groups.labels) == {frozenset({0, 3}), frozenset({1, 4}), frozenset({2, 5})}
    check_pools(server.groups, server.holdings)


def test_removing_edges_without_splitting_keeps_one_group() -> None:
    # 0 - 1 - 2 stays connected through 1 when 0 - 2 goes.
    edges = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.bool_)
    assert [part.tolist() for part in find_components(edges, np.arange(3))] == [[0, 1, 2]]


def test_confidence_width_by_hand() -> None:
    assert compute_confidence_width(0) == 1.0
    np.testing.assert_allclose(compute_confidence_width(99), sqrt((1 + log(100)) / 100))


@pytest.mark.parametrize(("width", "last"), [("code", 176), ("paper", 61_583)])
def test_the_edges_of_club_cascade_last_as_long_as_its_f_says(width: Width, last: int) -> None:
    """At d = 20 and a distance of 1, with the authors' alpha_d of 8 sqrt(d)."""
    for count, is_kept in ((last, True), (last + 1, False)):
        holdings = Holdings(2, 20, 4.0)
        holdings.theta[1, 0] = holdings.length[1] = 1.0
        holdings.count[:], holdings.width[:] = count, compute_confidence_width(count)
        groups = ClubGraph(alpha_d=8 * sqrt(20), width=width).begin(holdings, None)
        groups.revise(0)
        assert (groups.labels[0] == groups.labels[1]) == is_kept


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_a_bad_alpha_d_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="alpha_d"):
        HeterogeneityGraph(alpha_d=bad)


@settings(deadline=None, max_examples=60)
@given(draw_plays())
def test_a_newcomer_is_joined_to_all_by_the_graph(play: Play) -> None:
    server, _ = play_with_newcomers(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    before = get_edges(server).copy()
    newcomer = server.join()
    after = get_edges(server)
    assert np.array_equal(after[:newcomer, :newcomer], before)
    assert after[newcomer, :newcomer].all()
    assert not after[newcomer, newcomer]
    assert len(server.groups) == 1
    check_pools(server.groups, server.holdings)


def test_a_thousand_newcomers_share_one_large_graph() -> None:
    server = make_server(HeterogeneityGraph(), Play(agents=1, kinds=[0], turns=[0], seed=0, alpha_d=1.0))
    for _ in range(999):
        server.join()
    assert get_edges(server).sum() == 1000 * 999
    assert len(server.groups) == 1


def test_a_graph_that_memory_cannot_hold_is_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"^a complete graph of 10000000 agents needs 1e\+05 GB, .* such as population$"
    ):
        require_memory(10_000_000)
