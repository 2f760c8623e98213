"""Who is told what: pushes go to those who miss something, and phases tell those whose group is new."""

import math

import numpy as np
import pytest

from fedcascade.federation.decisions import Decision
from fedcascade.federation.grouping.graph.complete import HeterogeneityGraph
from fedcascade.federation.grouping.phases import PhasePartition, SplitAndMerge
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.replies import AllAgents, Asker, Lagging, LocalServers, OnArrival, OneLearner, ReplyRule
from fedcascade.federation.server import Server
from fedcascade.federation.triggers import Trigger
from fedcascade.learning.statistics import Statistics

from .graphs import get_edges

D = 3


def axis(k: int, times: int, clicked: bool = True) -> Statistics:
    """The k-th unit vector, examined so many times."""
    x = np.zeros((1, D), np.float32)
    x[0, k] = 1.0
    seen = Statistics.zero(D)
    for _ in range(times):
        seen = seen.observe(x, 0 if clicked else None)
    return seen


def upload(agent: int, statistics: Statistics) -> Upload:
    return Upload(agent=agent, sequence=1, cause=Cause.DETERMINANT, statistics=statistics)


def server_of(policy: Policy, agents: int = 3) -> Server:
    return Server(policy=policy.with_constants(lambda_=1.0), agents=agents, dimension=D)


def told(server: Server, sent: Upload) -> list[int]:
    return [agent for agent, _ in server.receive(sent)]


def test_a_push_goes_to_those_who_miss_too_much() -> None:
    server = server_of(POLICIES["async-linucb"].with_constants(gamma_d=3.001))
    assert told(server, upload(0, axis(0, 1))) == []  # det 2 against 1
    assert told(server, upload(0, axis(0, 1))) == []  # det 3 against 1: not more than 3
    assert told(server, upload(1, axis(1, 1))) == [2]  # det 6 against 3, 2 and 1
    assert told(server, upload(2, axis(1, 2))) == [0, 1]  # det 12 against 3, 2 and 12
    assert told(server, upload(2, axis(1, 2))) == []


def test_a_push_carries_everything() -> None:
    server = server_of(POLICIES["async-linucb"].with_constants(gamma_d=1.0))
    server.receive(upload(0, axis(0, 2)))
    downloads = server.receive(upload(1, axis(1, 3)))
    assert [agent for agent, _ in downloads] == [0, 2]
    assert {statistics.count for _, statistics in downloads} == {5}


def test_infinity_never_pushes() -> None:
    server = server_of(POLICIES["async-linucb"].with_constants(gamma_d=math.inf))
    assert told(server, upload(0, axis(0, 5_000))) == []


def test_everybody_is_called_and_told() -> None:
    server = server_of(POLICIES["dislinucb"])
    first = upload(1, axis(0, 2))
    assert server.agents_to_collect(first) == [0, 2]
    downloads = server.receive(first, upload(0, axis(1, 1)), upload(2, Statistics.zero(D)))
    assert [(agent, statistics.count) for agent, statistics in downloads] == [(0, 3), (1, 3), (2, 3)]


def test_a_bad_hand_over_changes_nothing() -> None:
    server = server_of(POLICIES["dislinucb"])
    with pytest.raises(ValueError, match=r"agent in 0\.\.2"):
        server.receive(upload(1, axis(0, 2)), upload(3, axis(1, 1)))
    assert server.rounds == server.holdings.count.sum() == 0


def test_on_arrival_an_agent_is_told_first() -> None:
    server = server_of(POLICIES["club-cascade"])
    assert told(server, upload(1, axis(0, 2))) == []
    [[agent, statistics]] = server.answer_arrival(2)
    assert (agent, statistics.count) == (2, 2)
    assert server_of(POLICIES["fedc3ucb-h"]).answer_arrival(2) == ()


@pytest.mark.parametrize(
    ("reply_rule", "agents", "alone"),
    [
        (OneLearner(), "single", None),
        (OnArrival(), "synchronous", None),
        (AllAgents(), "synchronous", Cause.SYNCHRONISATION),
        (Lagging(), "partly asynchronous", Cause.PUSH),
        (LocalServers(), "partly asynchronous", Cause.PUSH),
        (Asker(), "asynchronous", None),
    ],
)
def test_the_words_of_table_1_and_what_counts(reply_rule: ReplyRule, agents: str, alone: Cause | None) -> None:
    assert (reply_rule.agents, reply_rule.download_cause) == (agents, alone)


def test_phases_double_and_regroup_at_their_end() -> None:
    row = Policy("mine", SplitAndMerge(local_servers=1, alpha_d=0.5), *_local())
    server = server_of(row)
    ends = []
    for one in range(20):
        server.receive(upload(one % 3, axis(0, 1)))
        assert isinstance(server.groups, PhasePartition)
        ends.append(server.groups.phase)
    assert ends == [1, 1, 2, 2, 2, 2, *[3] * 8, *[4] * 6]


def test_edges_go_when_a_phase_starts_and_all_cells_are_told() -> None:
    row = Policy("mine", SplitAndMerge(local_servers=1, alpha_d=1.0, alpha_2=0.5), *_local())
    server = server_of(row)
    groups = server.groups
    assert isinstance(groups, PhasePartition)
    server.receive(upload(0, axis(0, 400)))
    server.receive(upload(1, axis(0, 400)))
    server.receive(upload(2, axis(0, 100, clicked=False)))
    assert get_edges(server)[2].any(), "the last phase, up to round 1023, is not over"
    assert groups.take_tier_messages()[0]
    server.receive(upload(2, axis(0, 1000, clicked=False)))
    assert not get_edges(server)[2].any()
    assert groups.labels.tolist() == [0, 0, 1]
    uploads, downloads = groups.take_tier_messages()
    synchronised = [(sent.agent, sent.statistics.clicks) for sent in uploads if sent.cause is Cause.SYNCHRONISATION]
    assert synchronised == [(0, 800), (2, 0)]
    assert [(agent, statistics.clicks) for agent, statistics in downloads][-2:] == [(0, 800), (2, 0)]
    assert [groups.answer(agent).clicks for agent in range(3)] == [800, 800, 0]


def test_local_servers_pool_for_free_and_talk_by_determinants() -> None:
    rule = SplitAndMerge(local_servers=2, alpha_d=1e9, alpha_2=1e9, gamma_u=3.0, gamma_d=3.0)
    server = server_of(Policy("mine", rule, *_local()), agents=4)
    groups = server.groups
    assert isinstance(groups, PhasePartition)
    for _ in range(3):  # up to the end of the second phase, after which all know all
        server.receive(upload(0, axis(1, 1)))
    groups.take_tier_messages()
    server.receive(upload(0, axis(0, 1)))  # det 4 to 8: no upload, yet the neighbour of the same server knows
    assert groups.take_tier_messages() == ((), ())
    assert [groups.answer(agent).count for agent in range(4)] == [4, 3, 4, 3]
    server.receive(upload(2, axis(0, 2)))  # det 4 to 16: an upload, and the other server is behind by 4
    uploads, downloads = groups.take_tier_messages()
    assert [(sent.agent, sent.cause, sent.statistics.count) for sent in uploads] == [(2, Cause.DETERMINANT, 3)]
    assert [(agent, statistics.count) for agent, statistics in downloads] == [(1, 6)]
    assert [groups.answer(agent).count for agent in range(4)] == [6, 6, 6, 6]


def test_clusters_are_merged_across_servers_and_within_one() -> None:
    grouping = SplitAndMerge(local_servers=2, alpha_d=0.5, alpha_2=0.5)
    server = server_of(Policy("mine", grouping, *_local()), agents=6)
    for agent in range(6):  # servers: 0 2 4 and 1 3 5; alike: 0 1 2 3 and 4 5
        server.receive(upload(agent, axis(0, 500, clicked=agent < 4)))
    server.receive(upload(0, axis(0, 3000)))
    assert server.groups.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert not get_edges(server)[0, 1]


def test_an_agent_that_was_split_off_is_told_at_once() -> None:
    row = Policy("mine", HeterogeneityGraph(alpha_d=1.0), *_rest())
    server = server_of(row, agents=2)
    server.receive(upload(0, axis(0, 400)))
    server.receive(upload(1, axis(0, 400, clicked=False)))  # answered over the graph as it stood, then split
    assert len(server.groups) == 2
    downloads = server.receive(upload(0, axis(0, 1)))
    assert {agent: statistics.count for agent, statistics in downloads} == {0: 401, 1: 400}


def _local() -> tuple[Trigger, Decision, str, ReplyRule]:
    row = POLICIES["phase-fclub"]
    return row.trigger, row.decision, "", row.reply_rule


def _rest() -> tuple[Trigger, Decision, str, ReplyRule]:
    row = POLICIES["async-linucb"].with_constants(gamma_d=1.01)
    return row.trigger, row.decision, "", row.reply_rule
