"""Components that a mixture can do without: those that data would hardly miss go, and equal ones become one."""

import numpy as np

from fedcascade.federation.grouping.expectation import solve_component
from fedcascade.federation.grouping.mixture import FREE, Cube, Mixture, Places, Sums, dot, make_room, multiply_into
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix

PARTNERS = 4  # nearest components with which a merger is tried
DELETED_AT_ONCE = 8
LEAST_GAIN = 15.0  # of log-evidence, below which a component is not worth its weight
LEAST_DISTANCE = 2.0  # squared, from the population's mean, in its own spread


@jit
def delete_components(
    mixture: Mixture, sums: Sums, former: Matrix, inverse: Matrix, least_size: float, users: int
) -> None:
    """Delete components of nobody, those near the population's mean, and those that data would hardly miss."""
    d, away, product = mixture.centre.size, np.empty(mixture.centre.size), np.empty(mixture.centre.size)
    for k in range(mixture.levels.size):
        if mixture.levels[k] == FREE:
            continue
        for i in range(d):
            away[i] = mixture.means[k, i] - mixture.centre[i]
        multiply_into(inverse, away, product)
        if sums.sizes[k] < least_size or dot(away, product) < LEAST_DISTANCE:
            _delete(mixture, former, k)
    for _ in range(DELETED_AT_ONCE):
        worst, most = FREE, -LEAST_GAIN
        for k in range(mixture.levels.size):
            if mixture.levels[k] != FREE:
                share = min(sums.sizes[k] / users, 1.0 - 1e-9)
                missed = sums.doubts[k] - users * log(1.0 - share)
                if missed > most:
                    worst, most = k, missed
        if worst == FREE:
            return
        _delete(mixture, former, worst)


@jit
def _delete(mixture: Mixture, former: Matrix, slot: int) -> None:
    mixture.levels[slot] = FREE
    for x in range(former.shape[0]):
        former[x, slot] = 0.0


@jit
def _measure_entropy(left: float, right: float) -> float:
    total, entropy = left + right, 0.0
    if left > 1e-9:
        entropy += left * log(total / left)
    if right > 1e-9:
        entropy += right * log(total / right)
    return entropy


@jit
def merge_components(mixture: Mixture, sums: Sums, former: Matrix, covariances: Cube, inverse: Matrix) -> int:
    """Merge components that one explains as well as two; returns how many were merged into others."""
    slots, d, merged = mixture.levels.size, mixture.centre.size, 0
    room, prior_pull, mean = make_room(0, d), np.empty(d), np.empty(d)
    multiply_into(inverse, mixture.centre, prior_pull)
    joined, pull, covariance = np.zeros((d, d)), np.zeros(d), np.empty((d, d))
    empty = solve_component(joined, pull, inverse, prior_pull, covariance, mean, room)
    evidence = np.zeros(slots)
    for k in range(slots):
        if mixture.levels[k] != FREE:
            information, own = sums.information[k], sums.pulls[k]
            evidence[k] = solve_component(information, own, inverse, prior_pull, covariances[k], mixture.means[k], room)
    for a in range(slots):
        while mixture.levels[a] != FREE:
            best, most = FREE, 0.0
            for b in _find_nearest(mixture, a):
                for i in range(d):
                    pull[i] = sums.pulls[a, i] + sums.pulls[b, i]
                    for j in range(d):
                        joined[i, j] = sums.information[a, i, j] + sums.information[b, i, j]
                gain = solve_component(joined, pull, inverse, prior_pull, covariance, mean, room) + empty
                gain += _measure_entropy(sums.sizes[a], sums.sizes[b]) - evidence[a] - evidence[b]
                for x in range(former.shape[0]):
                    if former[x, a] > 3e-3 and former[x, b] > 3e-3:
                        gain -= _measure_entropy(former[x, a], former[x, b])
                if gain > most:
                    best, most = b, gain
            if best == FREE:
                break
            sums.sizes[a] += sums.sizes[best]
            for i in range(d):
                sums.pulls[a, i] += sums.pulls[best, i]
                for j in range(d):
                    sums.information[a, i, j] += sums.information[best, i, j]
            for x in range(former.shape[0]):
                former[x, a] += former[x, best]
            information, own = sums.information[a], sums.pulls[a]
            evidence[a] = solve_component(information, own, inverse, prior_pull, covariances[a], mixture.means[a], room)
            _delete(mixture, former, best)
            merged += 1
    return merged


@jit
def _find_nearest(mixture: Mixture, slot: int) -> Places:
    """The components whose means are nearest to that of ``slot``, the nearest first."""
    nearest, distances, known = np.empty(PARTNERS, np.int64), np.empty(PARTNERS), 0
    for k in range(mixture.levels.size):
        if k == slot or mixture.levels[k] == FREE:
            continue
        distance = 0.0
        for i in range(mixture.centre.size):
            distance += (mixture.means[k, i] - mixture.means[slot, i]) ** 2
        if known == PARTNERS and distance >= distances[known - 1]:
            continue
        known = min(known + 1, PARTNERS)
        place = known - 1
        while place > 0 and distances[place - 1] > distance:
            distances[place], nearest[place] = distances[place - 1], nearest[place - 1]
            place -= 1
        distances[place], nearest[place] = distance, k
    return nearest[:known].copy()
