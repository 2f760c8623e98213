"""Compiled rounds of a system that asks its server in every round, until the server finds that two users differ.

Between two such findings the server only adds up, so its sums are kept in arrays here and written back
before it looks at its graph. By the same steps as ``Server.greet``, ``Agent`` and ``Server.receive``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph import GraphPartition, is_far_apart
from fedcascade.federation.holdings import Holdings, compute_confidence_width
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.exact.kernels import BETA, Fleet, Rules, Window, World
from fedcascade.simulation.exact.screening import Scratch, load, make_scratch
from fedcascade.simulation.exact.sequential import ridge_into


class Sums(NamedTuple):
    """Statistics as arrays over agents or groups; ``counts`` are items examined, clicks and rounds."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    counts: NDArray[np.int64]


class Graph(NamedTuple):
    """What the server knows of its agents: their sums and estimates, their groups, and who may be alike."""

    held: Sums
    theta: NDArray[np.float64]
    pooled: Sums
    labels: NDArray[np.int64]
    edges: NDArray[np.bool_]
    alpha_d: float


def borrow(groups: GraphPartition) -> Graph:
    """The server's state as arrays; those of estimates, labels and edges are its own."""
    held = groups.holdings
    labels = np.unique(groups.labels)
    size = int(labels.max()) + 1
    pooled = _zeros(size, held.dimension)
    for label in labels:
        member = int(np.flatnonzero(groups.labels == label)[0])
        put(pooled, int(label), groups.pooled(member))
    counts = np.stack([held.count, held.clicks, held.rounds], axis=1)
    sums = Sums(held.gram, held.moment, counts)
    return Graph(sums, held.theta, pooled, groups.labels, groups.edges, groups.alpha_d)


def give_back(graph: Graph, groups: GraphPartition) -> None:
    """Write the sums back into the server's state."""
    held: Holdings = groups.holdings
    held.count[:], held.clicks[:], held.rounds[:] = graph.held.counts.T
    held.length[:] = np.linalg.norm(held.theta, axis=1)
    held.width[:] = [compute_confidence_width(int(count)) for count in held.count]
    for label in np.unique(graph.labels):
        pooled = graph.pooled
        counts = [int(count) for count in pooled.counts[label]]
        groups.set_pooled(int(label), Statistics(pooled.gram[label].copy(), pooled.moment[label].copy(), *counts))


def put(sums: Sums, row: int, statistics: Statistics) -> None:
    """Set one row."""
    sums.gram[row] = statistics.gram
    sums.moment[row] = statistics.moment
    sums.counts[row] = statistics.count, statistics.clicks, statistics.rounds


def _zeros(rows: int, d: int) -> Sums:
    return Sums(np.zeros((rows, d, d)), np.zeros((rows, d)), np.zeros((rows, 3), np.int64))


@jit
def advance(
    world: World, rules: Rules, fleet: Fleet, graph: Graph, window: Window, users: NDArray[np.int64], begin: int
) -> int:
    """Play rounds until an edge may have to go; returns how far it came."""
    scratch = make_scratch(world.thetas.shape[1], world.most_items, rules.length)
    return _advance(world, rules, fleet, graph, window, users, begin, scratch)


@jit_inline
def _advance(
    world: World,
    rules: Rules,
    fleet: Fleet,
    graph: Graph,
    window: Window,
    users: NDArray[np.int64],
    begin: int,
    scratch: Scratch,
) -> int:
    one = kernels.lent(fleet, 0)
    for i in range(begin, users.size):
        user, label = users[i], graph.labels[users[i]]
        gram, moment = graph.pooled.gram[label], graph.pooled.moment[label]
        log_det = ridge_into(gram, moment, rules.lambda_, scratch.upper, one.root, one.theta)
        one.numbers[BETA] = rules.beta_base + rules.beta_slope * np.sqrt(max(0.0, log_det + rules.beta_shift))
        margin = load(one.theta, one.root, one.numbers[BETA], np.inf, scratch)
        for k in range(one.theta.size):
            scratch.true_theta[k] = world.thetas[user, k]
        kernels._play(world, rules, world.thetas[user], one, window, scratch, window.first + i, margin)
        _add(graph.held, user, one)
        _add(graph.pooled, label, one)
        one.buffer_gram[:] = 0.0
        one.buffer_moment[:] = 0.0
        one.counts[:] = 0
        gram, moment = graph.held.gram[user], graph.held.moment[user]
        ridge_into(gram, moment, rules.lambda_, scratch.upper, scratch.root_room, graph.theta[user])
        if _may_differ(graph, user):
            return i + 1
    return int(users.size)


@jit_inline
def _add(sums: Sums, row: int, one: Fleet) -> None:
    gram, moment = sums.gram[row], sums.moment[row]
    for i in range(moment.size):
        moment[i] += one.buffer_moment[i]
        for j in range(moment.size):
            gram[i, j] += one.buffer_gram[i, j]
    for k in range(3):
        sums.counts[row, k] += one.counts[k]


@jit_inline
def _may_differ(graph: Graph, user: int) -> bool:
    """Algorithm 3, line 9, for any neighbour."""
    own = compute_confidence_width(graph.held.counts[user, 0])
    for other in range(graph.labels.size):
        if graph.edges[user, other]:
            width = compute_confidence_width(graph.held.counts[other, 0])
            if is_far_apart(graph.theta[other], width, graph.theta[user], own, graph.alpha_d):
                return True
    return False
