"""Plays: agents of a few kinds who upload in some order, for tests of groupings."""

from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import Grouping, Partition
from fedcascade.federation.grouping.population.partition import NO_AGENT, PopulationPartition
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

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
def draw_plays(draw: st.DrawFn) -> Play:
    agents = draw(st.integers(2, 8))
    return Play(
        agents=agents,
        kinds=draw(st.lists(st.integers(0, 2), min_size=agents, max_size=agents)),
        turns=draw(st.lists(st.integers(0, agents - 1), min_size=1, max_size=25)),
        seed=draw(st.integers(0, 2**32)),
        alpha_d=draw(st.floats(0.05, 1.0)),
    )


def make_uploads(play: Play) -> list[Upload]:
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


def make_server(grouping: Grouping, play: Play) -> Server:
    policy = replace(POLICIES["fedc3ucb-h"], grouping=grouping, lambda_=1.0)
    return Server(policy=policy, agents=play.agents, dimension=DIMENSION, truth=np.array(play.kinds))


def to_groups(labels: NDArray[np.int64]) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def find_true_groups(edges: NDArray[np.bool_]) -> set[frozenset[int]]:
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


def play_with_newcomers(grouping: Grouping, play: Play) -> tuple[Server, dict[int, int]]:
    """A server that meets each agent at its first upload; and the numbers it gave them."""
    policy = replace(POLICIES["fedc3ucb-h"], grouping=grouping, lambda_=1.0)
    server = Server(policy=policy, agents=1, dimension=DIMENSION)
    numbers: dict[int, int] = {}
    for upload in make_uploads(play):
        if upload.agent not in numbers:
            numbers[upload.agent] = server.join() if numbers else 0
        server.receive(replace(upload, agent=numbers[upload.agent]))
        check_pools(server.groups, server.holdings)
    return server, numbers


def check_groups(groups: PopulationPartition) -> None:
    """Check sums, sizes, members, labels and speakers against responsibilities and holdings."""
    held, group = groups.holdings, groups.group
    assert ((groups.responsibilities >= 0.0) & (groups.responsibilities <= 1.0)).all()
    assert (groups.responsibilities.sum(axis=1) <= 1.0 + 1e-9).all()
    weights = groups.responsibilities * groups.shares[:, None]
    np.testing.assert_allclose(group.gram, np.einsum("us,uij->sij", weights, held.gram), atol=1e-9)
    np.testing.assert_allclose(group.moment, weights.T @ held.moment, atol=1e-9)
    np.testing.assert_allclose(group.size, groups.responsibilities.sum(axis=0), atol=1e-9)
    np.testing.assert_array_equal(group.members, (groups.responsibilities > 0).sum(axis=0))
    mine = groups.responsibilities.max(axis=1) >= 0.5
    slots, own = groups.responsibilities.argmax(axis=1), groups.rule.slots + np.arange(len(held))
    np.testing.assert_array_equal(groups.labels, np.where(mine, slots, own))
    np.testing.assert_array_equal(np.sort(groups.active), np.flatnonzero(held.count))
    np.testing.assert_array_equal(groups.active_index[groups.active], np.arange(groups.active.size))
    assert (groups.active_index[held.count == 0] == NO_AGENT).all()
    assert (groups.responsibilities[held.count == 0] == 0.0).all()
    lengths = [int(held.count[agent]).bit_length() for agent in groups.active]
    np.testing.assert_array_equal(groups.count_bits, np.bincount(lengths, minlength=64))
