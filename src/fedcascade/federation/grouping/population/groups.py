"""Groups of users with similar theta: soft sums of their data, and responsibilities of groups for a user, compiled.

A user belongs to group k with responsibility r_k, and to no group with probability 1 - sum r_k. A group holds the sums
of its members' data, weighted by responsibility. Members of a group may differ: theta ~ N(mu_k, spread_k T).
"""

from typing import NamedTuple

import numpy as np

from fedcascade.federation.grouping.population.gaussian import (
    Cube,
    Gaussian,
    Indices,
    add_component,
    invert_factor_into,
    measure_evidence,
    measure_joints,
    solve_mean,
)
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

MIN_RESPONSIBILITY = 0.02  # smaller responsibilities are set to 0
MIN_SIZE = 0.3  # members; smaller groups are skipped
LOG_ZERO = -1e300  # log weight of a group that is skipped
MAX_FOUNDERS = 8  # users that a new group may start with, besides the one that opens it
OPENING_LOG_ODDS = 2.0  # extra log-odds for opening a group
PRIOR_SPREADS = 4.0  # strength of the prior that a group is as wide as the population


class Groups(NamedTuple):
    """The groups in their slots; a slot with size 0 is free."""

    gram: Cube
    moment: Matrix
    size: Vector  # sum of responsibilities
    members: Vector  # number of users with a responsibility above 0
    evidence: Vector  # log marginal likelihood of the sums
    misfit: Vector  # squared distance of members from the group's mean, less that of noise
    weight: Vector  # misfit / weight estimates the spread


@jit
def make_groups(slots: int, d: int) -> Groups:
    """Allocate free slots."""
    zeros = np.zeros((5, slots))
    return Groups(np.zeros((slots, d, d)), np.zeros((slots, d)), zeros[0], zeros[1], zeros[2], zeros[3], zeros[4])


@jit_no_refcount
def measure_group(groups: Groups, slot: int, base: Gaussian) -> None:
    """Update the evidence of a group after its sums or the population have changed."""
    gram, moment = groups.gram[slot], groups.moment[slot]
    groups.evidence[slot] = measure_evidence(gram, moment, 0.0, gram, moment, base)


@jit
def measure_groups(groups: Groups, base: Gaussian) -> None:
    """Update the evidence of all groups."""
    for slot in range(groups.size.size):
        if groups.size[slot] > 0.0:
            measure_group(groups, slot, base)


@jit_no_refcount
def add_data(groups: Groups, slot: int, gram: Matrix, moment: Vector, weight: float) -> None:
    """Add weighted data to the sums of a group."""
    for i in range(moment.size):
        groups.moment[slot, i] += weight * moment[i]
        for j in range(moment.size):
            groups.gram[slot, i, j] += weight * gram[i, j]


@jit
def add_upload(groups: Groups, gram: Matrix, moment: Vector, share: float, row: Vector, base: Gaussian) -> None:
    """Add new data of a user to the groups that it belongs to."""
    for slot in range(row.size):
        if row[slot] > 0.0:
            add_data(groups, slot, gram, moment, share * row[slot])
            measure_group(groups, slot, base)


@jit_no_refcount
def free_slot(groups: Groups, slot: int) -> None:
    """Clear a slot."""
    groups.gram[slot] = 0.0
    groups.moment[slot] = 0.0
    for array in (groups.size, groups.members, groups.evidence, groups.misfit, groups.weight):
        array[slot] = 0.0


@jit
def weigh_groups(
    groups: Groups, gram: Matrix, moment: Vector, unassigned: float, base: Gaussian, weights: Vector
) -> None:
    """Fill ``weights`` with the log weight of each group for a user outside all groups.

    The last weight is that of no group, to which ``unassigned`` users belong.
    """
    weights[:] = LOG_ZERO
    alone = measure_evidence(gram, moment, 0.0, gram, moment, base)
    weights[weights.size - 1] = log(max(1.0, unassigned)) + alone
    slots = np.flatnonzero(groups.size > MIN_SIZE)
    joint = measure_joints((gram, moment), 1.0, groups.gram, groups.moment, slots, base)
    for k in range(slots.size):
        weights[slots[k]] = log(groups.size[slots[k]]) + joint[k] - groups.evidence[slots[k]]


@jit
def normalise(weights: Vector) -> None:
    """Turn log weights into probabilities."""
    total, largest = 0.0, weights.max()
    for k in range(weights.size):
        weights[k] = exp(weights[k] - largest) if weights[k] > largest - 500.0 else 0.0
        total += weights[k]
    for k in range(weights.size):
        weights[k] /= total


@jit_no_refcount
def learn_spread(
    groups: Groups, slot: int, gram: Matrix, moment: Vector, responsibility: float, base: Gaussian
) -> None:
    """Update the spread of a group with a user outside its sums.

    With e = b - S mu, and theta - mu ~ N(0, spread T): E e'Te = spread tr(TSTS) + v tr(TS).
    """
    d, work = moment.size, base.work
    measure_evidence(gram, moment, 0.0, groups.gram[slot], groups.moment[slot], base)
    solve_mean(work)
    residual, product = work.residual, work.product
    noise = information = square = 0.0
    for i in range(d):
        residual[i] = moment[i]
        for j in range(d):
            residual[i] -= gram[i, j] * work.theta[j]
            product[i, j] = 0.0
    for i in range(d):
        for k in range(d):
            factor = base.covariance[i, k]
            square += residual[i] * factor * residual[k]
            for j in range(d):
                product[i, j] += factor * gram[k, j]
    for i in range(d):
        noise += base.variance * product[i, i]
        for j in range(d):
            information += product[i, j] * product[j, i]
    kept = 1.0 - 1.0 / (groups.size[slot] + 2.0)
    groups.misfit[slot] = kept * groups.misfit[slot] + responsibility * (square - noise)
    groups.weight[slot] = kept * groups.weight[slot] + responsibility * information


@jit_no_refcount
def compute_spread(groups: Groups, slot: int, variance: float) -> float:
    """Return the spread of a group as a share of the population's, at most 1."""
    prior = PRIOR_SPREADS * 2.0 * variance * variance
    return float(min(1.0, max(0.0, groups.misfit[slot] + prior) / (groups.weight[slot] + prior)))


@jit
def match_moments(
    groups: Groups, weights: Vector, outside: Matrix, min_members: int, base: Gaussian
) -> tuple[Vector, Matrix]:
    """Return mean and covariance of the mixture of groups and population with these weights.

    ``outside`` is the covariance of a user in no group. Groups with fewer than ``min_members`` are left out.
    """
    work, alone = base.work, max(weights[weights.size - 1], 1e-6)
    slots = np.flatnonzero((weights[:-1] > 1e-3) & (groups.members >= min_members))
    means = np.empty((slots.size, base.mean.size))
    centre, total, matched = alone * base.mean, alone, np.zeros_like(outside)
    for k in range(slots.size):
        measure_group(groups, slots[k], base)
        solve_mean(work)
        means[k] = work.theta
        centre += weights[slots[k]] * work.theta
        total += weights[slots[k]]
    centre /= total
    add_component(alone / total, centre, base.mean, outside, matched)
    for k in range(slots.size):
        measure_group(groups, slots[k], base)
        invert_factor_into(work.upper, work.root, work.inverse)
        spread = compute_spread(groups, slots[k], base.variance)
        covariance = base.variance * work.inverse + spread * base.covariance
        add_component(weights[slots[k]] / total, centre, means[k], covariance, matched)
    return centre, matched


@jit
def measure_merge(groups: Groups, slot: int, base: Gaussian) -> tuple[float, int]:
    """Return the largest gain in evidence from merging a group with another, and that other slot, or -1."""
    best, partner = 0.0, -1
    others = np.flatnonzero(groups.size > 0.0)
    data = groups.gram[slot], groups.moment[slot]
    joint = measure_joints(data, 1.0, groups.gram, groups.moment, others, base)
    for k in range(others.size):
        gain = joint[k] - groups.evidence[slot] - groups.evidence[others[k]]
        if others[k] != slot and gain > best:
            best, partner = gain, others[k]
    return best, partner


class VisitRule(NamedTuple):
    """Parameters of a visit."""

    active: int  # number of agents that have uploaded
    limit: float  # most observations of one user that count
    min_members: int  # smaller groups do not enter answers
    outside: Matrix  # covariance of a user in no group


class Users(NamedTuple):
    """Data and responsibilities of all agents, as arrays over agents."""

    gram: Cube
    moment: Matrix
    counts: Indices
    responsibilities: Matrix
    shares: Vector  # fraction of an agent's data that counts
    labels: Indices


@jit_no_refcount
def label_user(users: Users, user: int) -> None:
    """Label a user with the group that has at least half of it, else with a label of its own."""
    slots = users.responsibilities.shape[1]
    users.labels[user] = slots + user
    for slot in range(slots):
        if users.responsibilities[user, slot] >= 0.5:
            users.labels[user] = slot


@jit_no_refcount
def remove_user(groups: Groups, users: Users, user: int, base: Gaussian) -> None:
    """Subtract a user's data from all groups, and free groups without members. ``users`` stays as it is."""
    row = users.responsibilities[user]
    for slot in range(row.size):
        if row[slot] > 0.0:
            groups.size[slot] -= row[slot]
            groups.members[slot] -= 1.0
            if groups.members[slot] < 0.5:
                free_slot(groups, slot)
            else:
                add_data(groups, slot, users.gram[user], users.moment[user], -users.shares[user] * row[slot])
                measure_group(groups, slot, base)


@jit_no_refcount
def detach_user(groups: Groups, users: Users, user: int, base: Gaussian) -> None:
    """Remove a user from all groups."""
    remove_user(groups, users, user, base)
    users.responsibilities[user] = 0.0


@jit_no_refcount
def assign_user(groups: Groups, users: Users, user: int, weights: Vector, base: Gaussian) -> None:
    """Add a detached user to groups by ``weights``."""
    row = users.responsibilities[user]
    for slot in range(row.size):
        row[slot] = weights[slot] if weights[slot] > MIN_RESPONSIBILITY else 0.0
        if row[slot] > 0.0:
            groups.size[slot] += row[slot]
            groups.members[slot] += 1.0
            add_data(groups, slot, users.gram[user], users.moment[user], users.shares[user] * row[slot])
            measure_group(groups, slot, base)
    label_user(users, user)


@jit
def visit_users(
    groups: Groups, users: Users, visited: Indices, candidates: Indices, rule: VisitRule, base: Gaussian
) -> tuple[Vector, Matrix]:
    """Detach each visited user, learn from it, and assign it by its new responsibilities.

    The last user opens a group with some of the ``candidates`` if the evidence supports it. Return the prior mean and
    covariance of its theta, from other users' data.
    """
    weights = np.empty(users.responsibilities.shape[1] + 1)
    mean, covariance = base.mean, base.covariance
    for place in range(visited.size):
        user = visited[place]
        detach_user(groups, users, user, base)
        users.shares[user] = min(1.0, rule.limit / users.counts[user])
        gram, moment = users.gram[user], users.moment[user]
        if users.shares[user] < 1.0:
            gram, moment = users.shares[user] * gram, users.shares[user] * moment
        unassigned = rule.active - groups.size.sum()
        weigh_groups(groups, users.gram[user], users.moment[user], unassigned, base, weights)
        normalise(weights)
        if place == visited.size - 1:
            mean, covariance = match_moments(groups, weights, rule.outside, rule.min_members, base)
            free = np.flatnonzero(groups.members == 0.0)
            if free.size and weights[weights.size - 1] > 0.5:
                gain, members = _grow_group(users, user, candidates, unassigned, base)
                if gain > OPENING_LOG_ODDS:
                    weights[:] = 0.0
                    weights[free[0]] = 1.0
                    for other in members:
                        detach_user(groups, users, other, base)
                        assign_user(groups, users, other, weights, base)
        best = int(weights[:-1].argmax())
        if weights[best] > 0.3:
            learn_spread(groups, best, gram, moment, weights[best], base)
        assign_user(groups, users, user, weights, base)
    return mean, covariance


@jit
def _grow_group(
    users: Users, user: int, candidates: Indices, unassigned: float, base: Gaussian
) -> tuple[float, Indices]:
    """Choose users without a group to form one with ``user``; return the log-odds of that group, and the users.

    Candidates are added greedily, the closest first. The log-odds sum each addition's gain in evidence and its prior
    log-odds.
    """
    near, alone = _find_nearest(users, user, candidates, base)
    gram, moment = users.gram[user].copy(), users.moment[user].copy()
    together = measure_evidence(gram, moment, 0.0, gram, moment, base)
    members, count = np.empty_like(near), 0
    gain, best = 0.0, LOG_ZERO
    for size in range(1, members.size + 1):
        fits = measure_joints((gram, moment), 1.0, users.gram, users.moment, near, base) - alone
        place = fits.argmax()
        gain += fits[place] - together + log(size) - log(max(1.0, unassigned - size))
        together = fits[place] + alone[place]
        members[size - 1] = near[place]
        gram += users.gram[near[place]]
        moment += users.moment[near[place]]
        rest = np.arange(near.size) != place
        near, alone = near[rest], alone[rest]
        if gain > best:
            best, count = gain, size
    return best, members[:count]


@jit
def _find_nearest(users: Users, user: int, candidates: Indices, base: Gaussian) -> tuple[Indices, Vector]:
    """Return the ungrouped candidates that fit the user best, the best first, and their own evidence."""
    data, is_free = (users.gram[user], users.moment[user]), np.zeros(candidates.size, np.bool_)
    for k in range(candidates.size):
        is_free[k] = candidates[k] != user and users.responsibilities[candidates[k]].sum() < 0.1
    others = candidates[is_free]
    own = measure_joints(data, 0.0, users.gram, users.moment, others, base)
    joint = measure_joints(data, 1.0, users.gram, users.moment, others, base)
    best = np.argsort(own - joint, kind="mergesort")[:MAX_FOUNDERS]
    return others[best], own[best]


@jit
def copy_groups(groups: Groups) -> Groups:
    """Return a copy of all groups."""
    members = groups.gram.copy(), groups.moment.copy(), groups.size.copy(), groups.members.copy()
    return Groups(*members, groups.evidence.copy(), groups.misfit.copy(), groups.weight.copy())


@jit
def weigh_without(groups: Groups, users: Users, user: int, active: int, base: Gaussian, weights: Vector) -> Groups:
    """Fill ``weights`` with the log weights of groups without a user for that user, and return those groups."""
    others = copy_groups(groups)  # subtracting and adding data again would change the sums by rounding
    remove_user(others, users, user, base)
    weigh_groups(others, users.gram[user], users.moment[user], active - others.size.sum(), base, weights)
    return others


@jit
def answer_user(groups: Groups, users: Users, user: int, rule: VisitRule, base: Gaussian) -> tuple[Vector, Matrix]:
    """Return the prior mean and covariance of a user's theta, from other users' data, without changing the state."""
    weights = np.empty(users.responsibilities.shape[1] + 1)
    others = weigh_without(groups, users, user, rule.active, base, weights)
    normalise(weights)
    return match_moments(others, weights, rule.outside, rule.min_members, base)
