"""Groups of users who share theta: soft sums of their data, and how a user's data are weighed under them, compiled.

A user belongs to group k with responsibility r_k, and to no group with what is left of 1. A group holds the sums of its
members' data, weighted by responsibility. Users of a group may still differ: theta ~ N(mu_k, spread_k T).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.population.gaussian import (
    Cube,
    Gaussian,
    Workspace,
    add_component,
    invert_factor,
    measure_evidence,
    solve_mean,
)
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

Indices = NDArray[np.int64]
LEAST_RESPONSIBILITY = 0.02  # smaller ones count as none
LEAST_SIZE = 0.3  # of members, below which a group is not considered
NEVER = -1e300  # log weight of a group that is not considered
NEAREST = 8  # users that a new group may start with, beside the one that opens it
PRIOR_SPREADS = 4.0  # how firmly a new group is taken to be as wide as the population, against evidence


class Groups(NamedTuple):
    """The groups in their slots; a slot with size 0 is free."""

    gram: Cube
    moment: Matrix
    size: Vector  # sum of responsibilities
    members: Vector  # number of users with a responsibility above 0
    evidence: Vector  # log marginal likelihood of the sums
    misfit: Vector  # of members to the group's mean, in excess of noise
    weight: Vector  # of the misfit: misfit / weight estimates the spread


@jit
def make_groups(slots: int, d: int) -> Groups:
    """Allocate free slots."""
    return Groups(
        np.zeros((slots, d, d)), np.zeros((slots, d)), np.zeros(slots), np.zeros(slots), np.zeros(slots),
        np.zeros(slots), np.zeros(slots),
    )  # fmt: skip


@jit_no_refcount
def measure_group(groups: Groups, slot: int, base: Gaussian, work: Workspace) -> None:
    """Update the evidence of a group after its sums or the population have changed."""
    gram, moment = groups.gram[slot], groups.moment[slot]
    groups.evidence[slot] = measure_evidence(gram, moment, 0.0, gram, moment, base, work)


@jit
def measure_groups(groups: Groups, base: Gaussian, work: Workspace) -> None:
    """Update the evidence of all groups."""
    for slot in range(groups.size.size):
        if groups.size[slot] > 0.0:
            measure_group(groups, slot, base, work)


@jit_no_refcount
def add_data(groups: Groups, slot: int, gram: Matrix, moment: Vector, weight: float) -> None:
    """Add weighted data to the sums of a group."""
    for i in range(moment.size):
        groups.moment[slot, i] += weight * moment[i]
        for j in range(moment.size):
            groups.gram[slot, i, j] += weight * gram[i, j]


@jit
def add_upload(
    groups: Groups, gram: Matrix, moment: Vector, share: float, row: Vector, base: Gaussian, work: Workspace
) -> None:
    """Add new data of a user to the groups that it belongs to."""
    for slot in range(row.size):
        if row[slot] > 0.0:
            add_data(groups, slot, gram, moment, share * row[slot])
            measure_group(groups, slot, base, work)


@jit_no_refcount
def remove_user(
    groups: Groups, gram: Matrix, moment: Vector, share: float, row: Vector, base: Gaussian, work: Workspace
) -> None:
    """Take a user's data out of all groups; a group without members is freed."""
    for slot in range(row.size):
        if row[slot] > 0.0:
            groups.size[slot] -= row[slot]
            groups.members[slot] -= 1.0
            if groups.members[slot] < 0.5:
                free_slot(groups, slot)
            else:
                add_data(groups, slot, gram, moment, -share * row[slot])
                measure_group(groups, slot, base, work)


@jit_no_refcount
def free_slot(groups: Groups, slot: int) -> None:
    """Leave nothing in a slot."""
    groups.gram[slot] = 0.0
    groups.moment[slot] = 0.0
    for array in (groups.size, groups.members, groups.evidence, groups.misfit, groups.weight):
        array[slot] = 0.0


@jit_no_refcount
def place_user(
    groups: Groups,
    gram: Matrix,
    moment: Vector,
    share: float,
    row: Vector,
    weights: Vector,
    base: Gaussian,
    work: Workspace,
) -> None:
    """Add a user, which is in no group, to groups by ``weights``; ``row`` becomes its responsibilities."""
    for slot in range(row.size):
        row[slot] = weights[slot] if weights[slot] > LEAST_RESPONSIBILITY else 0.0
        if row[slot] > 0.0:
            groups.size[slot] += row[slot]
            groups.members[slot] += 1.0
            add_data(groups, slot, gram, moment, share * row[slot])
            measure_group(groups, slot, base, work)


@jit_no_refcount
def weigh_groups(
    groups: Groups, gram: Matrix, moment: Vector, unassigned: float, base: Gaussian, work: Workspace, weights: Vector
) -> float:
    """Fill ``weights`` with log weights of all groups, and last of none, for a user that is in no group.

    ``unassigned`` is how many users belong to no group. Return the largest.
    """
    none = weights.size - 1
    weights[none] = log(max(1.0, unassigned)) + measure_evidence(gram, moment, 0.0, gram, moment, base, work)
    largest = weights[none]
    for slot in range(none):
        weights[slot] = NEVER
        if groups.size[slot] > LEAST_SIZE:
            joint = measure_evidence(gram, moment, 1.0, groups.gram[slot], groups.moment[slot], base, work)
            weights[slot] = log(groups.size[slot]) + joint - groups.evidence[slot]
            largest = max(largest, weights[slot])
    return float(largest)


@jit_no_refcount
def normalise(weights: Vector, largest: float) -> None:
    """Turn log weights into probabilities."""
    total = 0.0
    for k in range(weights.size):
        weights[k] = exp(weights[k] - largest) if weights[k] > largest - 500.0 else 0.0
        total += weights[k]
    for k in range(weights.size):
        weights[k] /= total


@jit_no_refcount
def learn_spread(
    groups: Groups, slot: int, gram: Matrix, moment: Vector, responsibility: float, base: Gaussian, work: Workspace
) -> None:
    """Learn from a user, which is not in the group's sums, how far members are from the group's mean.

    With e = b - S mu, and theta - mu ~ N(0, spread T): E e'Te = spread tr(TSTS) + v tr(TS).
    """
    d = moment.size
    measure_evidence(gram, moment, 0.0, groups.gram[slot], groups.moment[slot], base, work)
    solve_mean(work)
    residual, product, noise, information, square = work.residual, work.product, 0.0, 0.0, 0.0
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
    groups: Groups, weights: Vector, outside: Matrix, least: int, base: Gaussian, work: Workspace
) -> tuple[Vector, Matrix]:
    """Return mean and covariance of the mixture of groups and population with these weights.

    ``outside`` is the covariance of a user in no group. Groups with fewer than ``least`` members are left out.
    """
    d, none = base.mean.size, weights.size - 1
    means, centre, matched = np.zeros((none, d)), np.zeros(d), np.zeros((d, d))
    total = max(weights[none], 1e-6)
    for i in range(d):
        centre[i] = total * base.mean[i]
    for slot in range(none):
        if weights[slot] > 1e-3 and groups.members[slot] >= least:
            measure_group(groups, slot, base, work)
            solve_mean(work)
            total += weights[slot]
            for i in range(d):
                means[slot, i] = work.theta[i]
                centre[i] += weights[slot] * work.theta[i]
    for i in range(d):
        centre[i] /= total
    add_component(max(weights[none], 1e-6) / total, centre, base.mean, outside, matched)
    for slot in range(none):
        if weights[slot] > 1e-3 and groups.members[slot] >= least:
            measure_group(groups, slot, base, work)
            invert_factor(work)
            spread = compute_spread(groups, slot, base.variance)
            for i in range(d):
                for j in range(d):
                    work.inverse[i, j] = base.variance * work.inverse[i, j] + spread * base.covariance[i, j]
            add_component(weights[slot] / total, centre, means[slot], work.inverse, matched)
    return centre, matched


@jit
def measure_merge(groups: Groups, slot: int, base: Gaussian, work: Workspace) -> tuple[float, int]:
    """Return the gain in evidence of the best merge of a group with another one, and which that is; -1 if none."""
    best, partner = 0.0, -1
    gram, moment = groups.gram[slot], groups.moment[slot]
    for other in range(groups.size.size):
        if other != slot and groups.size[other] > 0.0:
            joint = measure_evidence(gram, moment, 1.0, groups.gram[other], groups.moment[other], base, work)
            gain = joint - groups.evidence[slot] - groups.evidence[other]
            if gain > best:
                best, partner = gain, other
    return best, partner


class VisitRule(NamedTuple):
    """What a visit goes by."""

    speakers: int
    limit: float  # most observations of one user that count
    least: int  # fewest members of a group that an answer uses
    hurdle: float  # extra log-odds for opening a group
    outside: Matrix  # covariance of a user in no group, given that m and T are not well known


class Users(NamedTuple):
    """All agents at the server, as arrays: their data, and where they belong."""

    gram: Cube
    moment: Matrix
    counts: Indices
    rows: Matrix  # responsibilities
    shares: Vector  # how much of an agent's data counts
    labels: Indices


@jit_no_refcount
def label_user(users: Users, user: int) -> None:
    """Set the label of a user: its group if that has half of it, else a label of its own."""
    slots = users.rows.shape[1]
    users.labels[user] = slots + user
    for slot in range(slots):
        if users.rows[user, slot] >= 0.5:
            users.labels[user] = slot


@jit_no_refcount
def _take_out(groups: Groups, users: Users, user: int, base: Gaussian, work: Workspace) -> None:
    gram, moment = users.gram[user], users.moment[user]
    remove_user(groups, gram, moment, users.shares[user], users.rows[user], base, work)
    users.rows[user] = 0.0


@jit_no_refcount
def _put_in(groups: Groups, users: Users, user: int, weights: Vector, base: Gaussian, work: Workspace) -> None:
    gram, moment = users.gram[user], users.moment[user]
    place_user(groups, gram, moment, users.shares[user], users.rows[user], weights, base, work)
    label_user(users, user)


@jit_no_refcount
def find_best(weights: Vector) -> int:
    """Return the slot with the largest weight."""
    best = 0
    for slot in range(weights.size - 1):
        if weights[slot] > weights[best]:
            best = slot
    return best


@jit
def visit_users(
    groups: Groups,
    users: Users,
    visited: Indices,
    candidates: Indices,
    rule: VisitRule,
    base: Gaussian,
    work: Workspace,
) -> tuple[Vector, Matrix]:
    """Take each visited user out of its groups, learn from it, and put it back by its responsibilities.

    The last user opens a group with some of the ``candidates`` if the data support it. Return mean and covariance of
    its theta, before its own data.
    """
    weights = np.empty(users.rows.shape[1] + 1)
    mean, covariance = base.mean, base.covariance
    for place in range(visited.size):
        user = visited[place]
        _take_out(groups, users, user, base, work)
        users.shares[user] = min(1.0, rule.limit / users.counts[user])
        gram, moment = users.gram[user], users.moment[user]
        if users.shares[user] < 1.0:
            gram, moment = users.shares[user] * gram, users.shares[user] * moment
        unassigned = rule.speakers - groups.size.sum()
        largest = weigh_groups(groups, users.gram[user], users.moment[user], unassigned, base, work, weights)
        normalise(weights, largest)
        if place == visited.size - 1:
            mean, covariance = match_moments(groups, weights, rule.outside, rule.least, base, work)
            slot = _find_free(groups)
            if slot >= 0 and weights[weights.size - 1] > 0.5:
                gain, members = _grow_group(users, user, candidates, unassigned, base, work)
                if gain > rule.hurdle:
                    weights[:] = 0.0
                    weights[slot] = 1.0
                    for other in members:
                        _take_out(groups, users, other, base, work)
                        _put_in(groups, users, other, weights, base, work)
        best = find_best(weights)
        if weights[best] > 0.3:
            learn_spread(groups, best, gram, moment, weights[best], base, work)
        _put_in(groups, users, user, weights, base, work)
    return mean, covariance


@jit_no_refcount
def _find_free(groups: Groups) -> int:
    for slot in range(groups.members.size):
        if groups.members[slot] == 0.0:
            return slot
    return -1


@jit
def _grow_group(
    users: Users, user: int, candidates: Indices, unassigned: float, base: Gaussian, work: Workspace
) -> tuple[float, Indices]:
    """Return the users without a group that best form one with ``user``, and the log-odds of that group.

    The candidates closest to ``user`` are added greedily. Each addition counts its gain in evidence and the prior
    log-odds of the group against none.
    """
    near, alone = np.full(NEAREST, -1), np.zeros(NEAREST)
    gram, moment = users.gram[user].copy(), users.moment[user].copy()
    together = measure_evidence(gram, moment, 0.0, gram, moment, base, work)
    _find_nearest(users, user, candidates, base, work, near, alone)
    members, gain, best, count = np.full(NEAREST, -1), 0.0, NEVER, 0
    for size in range(1, NEAREST + 1):
        place, joint = -1, NEVER
        for k in range(NEAREST):
            if near[k] >= 0:
                evidence = measure_evidence(gram, moment, 1.0, users.gram[near[k]], users.moment[near[k]], base, work)
                if evidence - alone[k] > joint:
                    place, joint = k, evidence - alone[k]
        if place < 0:
            break
        gain += joint - together + log(size) - log(max(1.0, unassigned - size))
        together = joint + alone[place]
        members[size - 1] = near[place]
        gram += users.gram[near[place]]
        moment += users.moment[near[place]]
        near[place] = -1
        if gain > best:
            best, count = gain, size
    return best, members[:count]


@jit
def _find_nearest(
    users: Users, user: int, candidates: Indices, base: Gaussian, work: Workspace, near: Indices, alone: Vector
) -> None:
    """Fill ``near`` with the candidates without a group whose data fit best with the user's, -1 where there are none.

    ``alone`` gets their own evidence.
    """
    gain = np.full(near.size, NEVER)
    for other in candidates:
        if other == user or users.rows[other].sum() >= 0.1:
            continue
        gram, moment = users.gram[other], users.moment[other]
        own = measure_evidence(gram, moment, 0.0, gram, moment, base, work)
        joint = measure_evidence(users.gram[user], users.moment[user], 1.0, gram, moment, base, work)
        last = near.size - 1
        if joint - own <= gain[last]:
            continue
        while last > 0 and joint - own > gain[last - 1]:
            gain[last], near[last], alone[last] = gain[last - 1], near[last - 1], alone[last - 1]
            last -= 1
        gain[last], near[last], alone[last] = joint - own, other, own


@jit
def copy_groups(groups: Groups) -> Groups:
    """Return a copy of all groups."""
    return Groups(
        groups.gram.copy(), groups.moment.copy(), groups.size.copy(), groups.members.copy(), groups.evidence.copy(),
        groups.misfit.copy(), groups.weight.copy(),
    )  # fmt: skip


@jit
def answer_user(
    groups: Groups, users: Users, user: int, rule: VisitRule, base: Gaussian, work: Workspace
) -> tuple[Vector, Matrix]:
    """Return mean and covariance of a user's theta before its own data. Changes nothing, not even by rounding."""
    weights, gram, moment = np.empty(users.rows.shape[1] + 1), users.gram[user], users.moment[user]
    others = copy_groups(groups)
    remove_user(others, gram, moment, users.shares[user], users.rows[user], base, work)
    largest = weigh_groups(others, gram, moment, rule.speakers - others.size.sum(), base, work, weights)
    normalise(weights, largest)
    return match_moments(others, weights, rule.outside, rule.least, base, work)


@jit
def predict_users(
    groups: Groups, users: Users, chosen: Indices, speakers: int, base: Gaussian, work: Workspace
) -> Vector:
    """Return the log-likelihood of each chosen user's data under the model of all other users."""
    scores, weights = np.empty(chosen.size), np.empty(users.rows.shape[1] + 1)
    for place in range(chosen.size):
        user = chosen[place]
        gram, moment = users.gram[user], users.moment[user]
        others = copy_groups(groups)
        remove_user(others, gram, moment, users.shares[user], users.rows[user], base, work)
        largest = weigh_groups(others, gram, moment, speakers - others.size.sum(), base, work, weights)
        scores[place] = largest + log(np.exp(weights - largest).sum()) - log(speakers)
    return scores


@jit
def try_groups(
    users: Users, labels: Indices, present: Vector, sweeps: int, base: Gaussian, work: Workspace
) -> tuple[float, float]:
    """Put ``users`` into new groups by ``labels``, and refine these for some sweeps.

    Return the gain in log-likelihood over ``present``, the model without these groups: the sum over users, each left
    out of its groups, and the standard deviation of that sum.
    """
    count = users.rows.shape[1]
    groups, weights = make_groups(count, base.mean.size), np.empty(count + 1)
    total = squares = 0.0
    for sweep in range(sweeps + 1):
        for user in range(labels.size):
            if sweep == 0:
                weights[:] = 0.0
                weights[labels[user]] = 1.0
            else:
                _take_out(groups, users, user, base, work)
                weigh_groups(groups, users.gram[user], users.moment[user], 1.0, base, work, weights)
                weights[count] = NEVER
                largest = weights.max()
                if sweep == sweeps:
                    gain = largest + log(np.exp(weights - largest).sum()) - log(labels.size) - present[user]
                    total += gain
                    squares += gain * gain
                normalise(weights, largest)
            _put_in(groups, users, user, weights, base, work)
    return total, np.sqrt(squares)


@jit
def move_users(
    groups: Groups, users: Users, chosen: Indices, slots: Indices, rows: Matrix, base: Gaussian, work: Workspace
) -> None:
    """Move chosen users from where they are into the groups at ``slots``, with responsibilities ``rows``."""
    weights = np.zeros(users.rows.shape[1] + 1)
    for place in range(chosen.size):
        for k in range(slots.size):
            weights[slots[k]] = rows[place, k]
        _take_out(groups, users, chosen[place], base, work)
        _put_in(groups, users, chosen[place], weights, base, work)
