"""Partitions have pools that are sums at all times, whoever joins and leaves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.federation.grouping.graph.complete import HeterogeneityGraph
from fedcascade.federation.grouping.partition import Alone, Everyone, KnownClusters
from fedcascade.federation.holdings import Holdings

from ..graphs import get_edges
from .plays import (
    Play,
    check_pools,
    draw_plays,
    find_true_groups,
    make_server,
    make_uploads,
    play_with_newcomers,
    to_groups,
)


@settings(deadline=None, max_examples=40)
@given(draw_plays())
def test_pools_are_the_sums_over_a_group_at_all_times(play: Play) -> None:
    for grouping in (Everyone(), Alone(), KnownClusters(), HeterogeneityGraph(alpha_d=play.alpha_d)):
        server = make_server(grouping, play)
        for upload in make_uploads(play):
            server.receive(upload)
            check_pools(server.groups, server.holdings)
            assert len(server.groups) == len(np.unique(server.groups.labels))


def test_fixed_groupings_start_as_they_say() -> None:
    holdings, truth = Holdings(4, 2, 1.0), np.array([5, 3, 5, 9])
    assert to_groups(Everyone().begin(holdings, None).labels) == {frozenset(range(4))}
    assert to_groups(Alone().begin(holdings, None).labels) == {frozenset({i}) for i in range(4)}
    known = KnownClusters().begin(holdings, truth)
    assert to_groups(known.labels) == {frozenset({0, 2}), frozenset({1}), frozenset({3})}
    assert not np.shares_memory(known.labels, truth)
    assert to_groups(HeterogeneityGraph().begin(holdings, truth).labels) == {frozenset(range(4))}


def test_known_clusters_without_the_truth_is_refused() -> None:
    with pytest.raises(ValueError, match="known-clusters needs the true clusters"):
        KnownClusters().begin(Holdings(3, 2, 1.0), None)


def test_known_clusters_of_other_agents_are_refused() -> None:
    with pytest.raises(ValueError, match="clusters"):
        KnownClusters().begin(Holdings(3, 2, 1.0), np.array([0, 1]))


@settings(deadline=None, max_examples=60)
@given(draw_plays())
def test_agents_may_join_at_any_time(play: Play) -> None:
    for grouping in (Everyone(), Alone(), HeterogeneityGraph(alpha_d=play.alpha_d)):
        server, numbers = play_with_newcomers(grouping, play)
        early = make_server(grouping, play)
        for upload in make_uploads(play):
            early.receive(upload)
        for agent, number in numbers.items():
            assert np.array_equal(early.holdings.gram[agent], server.holdings.gram[number])
            assert np.array_equal(early.holdings.theta[agent], server.holdings.theta[number])


@settings(deadline=None, max_examples=60)
@given(draw_plays(), st.data())
def test_a_forgotten_agent_leaves_nothing_behind(play: Play, data: st.DataObject) -> None:
    for grouping in (Everyone(), Alone(), HeterogeneityGraph(alpha_d=play.alpha_d)):
        server, numbers = play_with_newcomers(grouping, play)
        gone = data.draw(st.sampled_from(sorted(numbers)))
        vacated = numbers.pop(gone)
        server.forget(vacated)
        left = {agent: vacated if number == len(numbers) else number for agent, number in numbers.items()}
        assert len(server.holdings) == len(server.groups.labels) == len(left)
        for agent, place in left.items():
            own = [upload.statistics for upload in make_uploads(play) if upload.agent == agent]
            assert np.array_equal(server.holdings.gram[place], sum((s.gram for s in own[1:]), own[0].gram))
        assert server.rounds == server.holdings.rounds.sum()
        check_pools(server.groups, server.holdings)
        if isinstance(grouping, HeterogeneityGraph) and left:
            assert to_groups(server.groups.labels) == find_true_groups(get_edges(server))


def test_a_grouping_that_does_not_say_where_newcomers_go_refuses_them() -> None:
    play = Play(agents=2, kinds=[0, 1], turns=[0], seed=0, alpha_d=1.0)
    with pytest.raises(ValueError, match="new agents"):
        make_server(KnownClusters(), play).join()
