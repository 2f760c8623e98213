"""Refuted edges and connected components of a graph (Algorithm 3, lines 6 to 13), compiled."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import Holdings
from fedcascade.numerics.jit import jit, jit_brief, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

Edges = NDArray[np.bool_]  # a symmetric matrix
ROUNDING_MARGIN = 1.0 - 1e-9  # for the triangle inequality in ``find_far``


@jit_inline
def is_far_apart(theta_u: Vector, width_u: float, theta_v: Vector, width_v: float, alpha: float) -> bool:
    """Return whether ||theta_u - theta_v|| > alpha (width_u + width_v) (Algorithm 3, line 9)."""
    bound = alpha * (width_u + width_v)
    even, odd = 0.0, 0.0  # two independent sums take half the time of one
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
    """Return the neighbours of ``agent`` whose estimate is too far away (Algorithm 3, lines 6 to 12).

    The triangle inequality rules out most of them: no distance exceeds the sum of the two lengths.
    """
    certain, own_length, own_width = ROUNDING_MARGIN * alpha, length[agent], width[agent]
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


def delete_refuted_edges(edges: Edges, holdings: Holdings, width: Vector, agent: int, alpha: float) -> bool:
    """Delete the refuted edges of ``agent``, and return whether there were any."""
    refuted = find_far(edges[agent], holdings.theta, holdings.length, width, agent, alpha)
    if refuted.size:
        edges[agent, refuted] = edges[refuted, agent] = False
    return refuted.size > 0


def connect_to_all(edges: Edges, agent: int) -> None:
    """Connect an agent to all others."""
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
    """Return the agents that a path inside ``within`` connects to ``start``."""
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
