"""A lazy agent shares, but connects nobody; agents of comparable data connect as in the paper."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph.complete import GraphPartition, HeterogeneityGraph, find_components
from fedcascade.federation.grouping.graph.guarded import GuardedGraph, GuardedPartition, form_groups
from fedcascade.federation.grouping.partition import relabel_canonically
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

D = 4


def saw(axis: int, count: int) -> Statistics:
    """So many items along one axis, all clicked."""
    gram, moment = np.zeros((D, D)), np.zeros(D)
    gram[axis, axis] = moment[axis] = float(count)
    return Statistics(gram, moment, count, count, count)


def speak(server: Server, agent: int, statistics: Statistics) -> Statistics:
    upload = Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics)
    return server.receive(upload)[0][1]


def build_server(grouping: HeterogeneityGraph, agents: int) -> Server:
    policy = replace(POLICIES["fedc3ucb-h"], grouping=grouping)
    return Server(policy=policy, agents=agents, dimension=D)


def teach(server: Server) -> None:
    """Two clusters of two agents each, far apart, and each heard twice."""
    for _ in range(2):
        for agent in range(4):
            speak(server, agent, saw(agent // 2, 2_000))


@pytest.mark.parametrize("comes", ["first", "last"])
def test_one_observation_does_not_keep_two_clusters_in_one_group(comes: str) -> None:
    labels = {}
    for grouping in (HeterogeneityGraph(alpha_d=2.0), GuardedGraph(alpha_d=2.0)):
        server = build_server(grouping, 5 if comes == "first" else 4)
        if comes == "first":
            speak(server, 4, saw(2, 1))
        teach(server)
        lazy = 4 if comes == "first" else server.join()
        answer = speak(server, lazy, saw(2, 1))
        assert answer.count >= 16_000  # it fits both, and hears of both
        labels[type(grouping)] = relabel_canonically(server.groups.labels[:4])
    assert labels[HeterogeneityGraph] == (0, 0, 0, 0)
    assert labels[GuardedGraph] == (0, 0, 1, 1)


def test_a_leaf_that_has_spoken_enough_is_in_one_group_and_no_leaf() -> None:
    server = build_server(GuardedGraph(alpha_d=2.0), 4)
    teach(server)
    lazy = server.join()
    assert isinstance(server.groups, GuardedPartition)
    assert server.groups.leaf[lazy]
    speak(server, lazy, saw(1, 2_000))
    speak(server, lazy, saw(1, 2_000))
    assert not server.groups.leaf[lazy]
    assert relabel_canonically(server.groups.labels) == (0, 0, 1, 1, 1)
    for agent in (2, 0):
        held = server.groups.pooled(agent)
        assert held.count == server.holdings.count[server.groups.labels == server.groups.labels[agent]].sum()


def test_forgetting_and_the_state_keep_leaves() -> None:
    server = build_server(GuardedGraph(alpha_d=2.0), 4)
    teach(server)
    server.join()
    server.forget(0)
    again = Server.from_state(server.to_state(), policy=server.policy, dimension=D)
    assert isinstance(again.groups, GuardedPartition)
    assert again.groups.leaf.tolist() == [True, False, False, False]
    assert relabel_canonically(again.groups.labels[1:]) == (0, 1, 1)


def draw_edges(random: np.random.Generator, agents: int, density: float) -> NDArray[np.bool_]:
    edges = np.triu(random.random((agents, agents)) < density, 1)
    return edges | edges.T


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0.1, 0.9))
def test_agents_of_the_same_data_form_the_components_of_the_graph(seed: int, agents: int, density: float) -> None:
    random = np.random.default_rng(seed)
    edges = draw_edges(random, agents, density)
    members = np.arange(agents)
    groups, leaf = form_groups(edges, members, np.full(agents, 7), np.zeros((agents, D)), 0.5)
    labels = np.empty(agents, np.int64)
    for number, component in enumerate(find_components(edges, members)):
        labels[component] = number
    assert not leaf.any()
    assert relabel_canonically(groups) == relabel_canonically(labels)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0.1, 0.9))
def test_groups_are_connected_by_agents_that_may_connect(seed: int, agents: int, density: float) -> None:
    """Every group is connected without leaves, and nobody else joins two groups."""
    random = np.random.default_rng(seed)
    edges = draw_edges(random, agents, density)
    count = np.sort(random.integers(1, 100, agents))[::-1].copy()
    groups, leaf = form_groups(edges, np.arange(agents), count, random.normal(size=(agents, D)), 0.5)
    for group in np.unique(groups):
        core = np.flatnonzero((groups == group) & ~leaf)
        assert len(find_components(edges, core)) == 1
    for agent in np.flatnonzero(leaf):
        earlier = np.arange(agents) < agent
        fits = np.unique(groups[edges[agent] & ~leaf & earlier])
        assert groups[agent] in fits
        assert sum(2 * count[agent] < count[(groups == group) & ~leaf].max() for group in fits) > 0


def test_the_paper_s_rows_are_not_guarded() -> None:
    for policy in POLICIES.values():
        assert policy.sharing is None
        assert type(policy.grouping) is not GuardedGraph
    assert guard_policy(POLICIES["fedc3ucb-h"]).constants()["bridge_share"] == 0.5
    server = Server(policy=POLICIES["fedc3ucb-h"], agents=3, dimension=D)
    assert type(server.groups) is GraphPartition
