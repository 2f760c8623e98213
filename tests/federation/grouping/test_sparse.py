"""The sparse graph against networkx, and against the complete one where every agent draws all others."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph import HeterogeneityGraph, require_memory
from fedcascade.federation.grouping.guarded import GuardedGraph
from fedcascade.federation.grouping.sparse import SparsePartition, connect_at_random, label_components
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.federation.server import Server

from .plays import Play, check_pools, draw_plays, find_true_groups, make_server, make_uploads, to_groups


def get_edges(server: Server) -> NDArray[np.bool_]:
    """The edges as a matrix."""
    groups = server.groups
    assert isinstance(groups, SparsePartition)
    edges = np.zeros((groups.labels.size,) * 2, np.bool_)
    for agent, degree in enumerate(groups.degrees):
        edges[agent, groups.neighbours[agent, :degree]] = True
    np.testing.assert_array_equal(edges, edges.T)
    assert not edges.diagonal().any()
    return edges


@settings(deadline=None, max_examples=60)
@given(draw_plays())
def test_groups_are_the_components_of_what_is_left_of_the_edges(play: Play) -> None:
    server = make_server(HeterogeneityGraph(alpha_d=play.alpha_d, degree=2), play)
    dense = make_server(HeterogeneityGraph(alpha_d=play.alpha_d), play)
    kept = get_edges(server)
    for upload in make_uploads(play):
        server.receive(upload)
        dense.receive(upload)
        kept &= dense.groups.edges  # type: ignore[attr-defined]
        np.testing.assert_array_equal(get_edges(server), kept)
        assert to_groups(server.groups.labels) == find_true_groups(kept)
        check_pools(server.groups, server.holdings)


@settings(deadline=None, max_examples=30)
@given(draw_plays())
def test_agents_join_and_leave(play: Play) -> None:
    server = make_server(HeterogeneityGraph(alpha_d=play.alpha_d, degree=2), play)
    for step, upload in enumerate(make_uploads(play)):
        server.receive(replace(upload, agent=upload.agent % len(server.holdings)))
        if step % 3 == 0:
            newcomer = server.join()
            assert get_edges(server)[newcomer].sum() == min(2, newcomer)
        elif step % 3 == 1 and len(server.holdings) > 1:
            server.forget(upload.agent % len(server.holdings))
        assert to_groups(server.groups.labels) == find_true_groups(get_edges(server))
        check_pools(server.groups, server.holdings)
        assert len(server.groups) == np.unique(server.groups.labels).size


def test_the_first_edges_are_drawn_evenly_and_connect_everybody() -> None:
    neighbours, degrees = connect_at_random(2_000, 8)
    assert degrees.min() >= 8
    assert 15.5 < degrees.mean() <= 16.0
    graph = nx.Graph((agent, int(n)) for agent in range(2_000) for n in neighbours[agent, : degrees[agent]])
    assert nx.number_connected_components(graph) == 1
    assert not label_components(neighbours, degrees).any()


def test_a_restored_sparse_graph_goes_on_to_the_same_groups() -> None:
    play = Play(8, [0, 1] * 4, list(range(8)) * 30, seed=5, alpha_d=1.0)
    server = make_server(HeterogeneityGraph(alpha_d=play.alpha_d, degree=3), play)
    uploads = make_uploads(play)
    for upload in uploads[:100]:
        server.receive(upload)
    restored = Server.from_state(server.to_state(), policy=server.policy, dimension=3)
    for upload in uploads[100:]:
        restored.receive(upload)
    assert to_groups(restored.groups.labels) == find_true_groups(get_edges(restored))
    assert len(restored.groups) > 1


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^a complete graph of 10000000 agents needs 1e\+05 GB, .* set degree"):
        require_memory(10_000_000)
    with pytest.raises(ValueError, match="degree must be a whole number >= 0, got -1"):
        HeterogeneityGraph(degree=-1)
    with pytest.raises(ValueError, match="a guarded graph starts complete: degree must be 0, got 3"):
        GuardedGraph(degree=3)
    with pytest.raises(ValueError, match="a guarded graph starts complete"):
        guard_policy(POLICIES["fedc3ucb-h"].with_constants(degree=3))
