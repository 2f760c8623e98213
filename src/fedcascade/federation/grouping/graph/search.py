"""Edges that the data refute, and the parts into which a graph falls (Algorithm 3, lines 6 to 13), compiled."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import Holdings
from fedcascade.numerics.jit import jit, jit_brief, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

Edges = NDArray[np.bool_]  # a symmetric matrix
# Two estimates are never further apart than their lengths together; this leaves room for rounding.
CERTAIN = 1.0 - 1e-9


@jit_inline
def is_far_apart(theta_u: Vector, width_u: float, theta_v: Vector, width_v: float, alpha: float) -> bool:
    """Algorithm 3, line 9: ||theta_u - theta_v|| > alpha (F(T_u) + F(T_v)), where F(T_u) is ``width_u``."""
    bound = alpha * (width_u + width_v)
    even, odd = 0.0, 0.0  # ||theta_u - theta_v||^2 in two sums side by side: half the time of a single one
    for k in range(0, theta_u.size - 1, 2):
        even += (theta_u[k] - theta_v[k]) ** 2
        odd += (theta_u[k + 1] - theta_v[k + 1]) ** 2
    if theta_u.size % 2:
        even += (theta_u[-1] - theta_v[-1]) ** 2
    return even + odd > bound * bound


@jit_brief
def find_far(
    connected: NDArray[np.bool_], theta: Matrix, length: Vector, width: Vector, agent: int, alpha: float
) -> NDArray[np.intp]:
    """Algorithm 3, lines 6 to 12: return the neighbours of ``agent`` whose estimate is too far away.

    Most are ruled out by the lengths of the estimates alone: no two are further apart than their lengths together.
    """
    certain, own_length, own_width = CERTAIN * alpha, length[agent], width[agent]
    candidates = 0
    for neighbour in range(connected.size):  # without a branch, so that LLVM vectorises the loop
        short = length[neighbour] + own_length < certain * (width[neighbour] + own_width)
        candidates += connected[neighbour] & (not short)
    far, size = np.empty(candidates, np.intp), 0
    for neighbour in range(connected.size if candidates else 0):
        short = length[neighbour] + own_length < certain * (width[neighbour] + own_width)
        if not connected[neighbour] or short:
            continue
        if is_far_apart(theta[neighbour], width[neighbour], theta[agent], own_width, alpha):
            far[size] = neighbour
            size += 1
    return far[:size]


def delete_refuted_edges(edges: Edges, holdings: Holdings, agent: int, alpha: float) -> bool:
    """Algorithm 3, lines 5 to 13, without the partition; return whether an edge was deleted."""
    refuted = find_far(edges[agent], holdings.theta, holdings.length, holdings.width, agent, alpha)
    if refuted.size:
        edges[agent, refuted] = edges[refuted, agent] = False
    return refuted.size > 0


def connect_to_all(edges: Edges, agent: int) -> None:
    """Give an agent an edge to every other one."""
    edges[agent] = edges[:, agent] = True
    edges[agent, agent] = False


@jit
def find_far_pairs(theta: Matrix, width: Vector, alpha: float) -> Edges:
    """Return which pairs of estimates, one per row of ``theta``, are too far apart."""
    far = np.zeros((width.size, width.size), np.bool_)
    for u in range(width.size):
        for v in range(u):
            far[u, v] = far[v, u] = is_far_apart(theta[u], width[u], theta[v], width[v], alpha)
    return far


def find_components(edges: Edges, members: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return the connected components of the graph restricted to ``members``, the largest first."""
    remaining = np.zeros(len(edges), np.bool_)
    remaining[members] = True
    components = []
    while remaining.any():
        component = _find_reachable(edges, int(remaining.argmax()), remaining)
        remaining ^= component
        components.append(np.flatnonzero(component))
    return sorted(components, key=len, reverse=True)


def _find_reachable(edges: Edges, start: int, within: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the agents that a path inside ``within`` connects to ``start``.

    The search ends when all are reached: in a graph of many edges, after a few steps.
    """
    unreached = within.copy()
    unreached[start] = False
    frontier = [start]
    while frontier:
        reached = edges[frontier.pop()] & unreached
        unreached ^= reached
        if not unreached.any():
            break
        frontier.extend(np.flatnonzero(reached).tolist())
    return within ^ unreached
