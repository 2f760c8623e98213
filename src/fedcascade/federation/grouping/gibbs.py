"""Collapsed Gibbs sampling of the partitions that data allow, compiled.

An agent's data are a *row*: gram, moment, counts. A group's data are the sum of its agents' rows. An *assignment* holds
the number of each agent's group.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit

NO_GROUP = -1  # the group of an agent that has left one and not yet joined another
MERGE_LOG_ODDS = 7.0  # groups are merged beyond odds of a thousand to one
COUNTS = 3  # a row ends with count, clicks and rounds
Row = NDArray[np.float64]
Rows = NDArray[np.float64]
Assignment = NDArray[np.int64]


class Model(NamedTuple):
    """What the evidence assumes: log-odds for a group of one's own, noise sigma^2 of a click, l = sigma^2 / tau^2."""

    hurdle: float
    variance: float
    prior: float


@jit
def compute_evidence(gram: Rows, moment: Row, variance: float, prior: float) -> float:
    """E(S, b), the log marginal likelihood of clicks, up to what cancels."""
    upper = linear.factorise_shifted(gram, prior)
    fit = linear.compute_leverage(upper, moment) / variance
    return 0.5 * (fit - linear.compute_log_det(upper) + moment.size * log(prior))


@jit
def _compute_row_evidence(row: Row, model: Model) -> float:
    d = int(math.sqrt(row.size - COUNTS))  # a row is d^2 + d + COUNTS long
    return compute_evidence(row[: d * d].reshape((d, d)), row[d * d : d * d + d], model.variance, model.prior)


@jit
def _normalise_log_odds(odds: Row) -> None:
    """Turn log-odds into probabilities; minus infinity becomes 0."""
    largest, total = odds.max(), 0.0
    for group in range(odds.size):
        odds[group] = exp(odds[group] - largest)
        total += odds[group]
    for group in range(odds.size):
        odds[group] /= total


@jit
def _draw_group(probabilities: Row, draw: float) -> int:
    """The group that a uniform number falls on."""
    reached, last = 0.0, 0
    for group in range(probabilities.size):
        if probabilities[group] > 0.0:
            reached += probabilities[group]
            last = group
            if draw < reached:
                return group
    return last  # rounding kept the sum of all below the draw


class GroupTable(NamedTuple):
    """Every group of an assignment: sum of its rows, E of that sum, and size; a group of size 0 is free.

    A version is a number for a set of members: when members change, the group gets a version that none had before.
    """

    sums: Rows
    evidence: Row
    size: Assignment
    version: Assignment
    last_version: Assignment  # one number


class GainCache(NamedTuple):
    """The evidence that an agent belongs to each group, and for which version of the group it was computed."""

    gains: NDArray[np.float64]
    version: Assignment


@jit
def _update_group(rows: Rows, assignment: Assignment, group: int, table: GroupTable, model: Model) -> None:
    """Bring one group's row of the table up to date with the assignment.

    The sum runs in the order of agents, so that it has the same bits however the group came about.
    """
    total, table.size[group] = table.sums[group], 0
    total[:] = 0.0
    for agent in range(assignment.size):
        if assignment[agent] == group:
            table.size[group] += 1
            for k in range(total.size):
                total[k] += rows[agent, k]
    table.evidence[group] = _compute_row_evidence(table.sums[group], model)
    table.last_version[0] += 1
    table.version[group] = table.last_version[0]


@jit
def _fill_gains(row: Row, alone: float, table: GroupTable, model: Model, gains: Row, cache: GainCache) -> int:
    """Fill ``gains`` with the log Bayes factor that a row belongs to each group; returns a free group or NO_GROUP.

    ``alone`` is E of the row. Gains of groups whose members have not changed come from the cache.
    """
    free = NO_GROUP
    for group in range(gains.size):
        gains[group] = -math.inf
        if table.size[group] > 0:
            if cache.version[group] != table.version[group]:
                together = _compute_row_evidence(table.sums[group] + row, model)
                cache.gains[group] = together - table.evidence[group] - alone
                cache.version[group] = table.version[group]
            gains[group] = cache.gains[group]
        elif free == NO_GROUP:
            free = group
    return free


@jit
def _compute_founding_log_odds(size: Assignment, others: int) -> float:
    """The log-odds that one of the other agents has founded a group to having joined one.

    With it, before any data, G groups of n agents have the weight exp(hurdle G) / (n - 1 choose G - 1).
    """
    founded = int(np.count_nonzero(size))
    return log(max(founded, 1) / (others - founded + 1))


@jit
def _merge_group(rows: Rows, assignment: Assignment, group: int, table: GroupTable, model: Model) -> None:
    """Let a whole group join the one with the most evidence for it, while that is all but certain to be right.

    Agents that move one by one hardly ever empty one of two large groups that are alike.
    """
    gains = np.empty(table.size.size)
    while True:
        size, table.size[group] = table.size[group], 0
        cache = GainCache(np.empty(gains.size), np.zeros(gains.size, np.int64))
        _fill_gains(table.sums[group], table.evidence[group], table, model, gains, cache)
        table.size[group] = size
        target = int(gains.argmax())
        if gains[target] < model.hurdle + MERGE_LOG_ODDS:
            return
        assignment[assignment == group] = target
        table.size[group] = 0
        _update_group(rows, assignment, target, table, model)
        group = target


@jit
def sample_partitions(
    rows: Rows,
    alone: Row,
    assignment: Assignment,
    count: int,
    visits: Assignment,
    draws: Row,
    model: Model,
    told: int,
) -> Row:
    """Visit agents; each leaves its group and joins the one that the data and its draw say. Changes ``assignment``.

    Args:
        rows: the data of each agent that has spoken.
        alone: E of each row.
        assignment: the group of each agent, in 0..count - 1.
        count: how many groups there are.
        visits: the agents to visit, in order; the first one is the asker.
        draws: a uniform number for each visit.
        model: its hurdle is added to the log-odds of a group of one's own, which are those of the other agents.
        told: how many others a group must have for the asker to be told of it.

    Returns:
        The expected sum of the asker's group without the asker, on average over the visits to it.
    """
    capacity = min(count + visits.size, rows.shape[0]) + 1
    sums, evidence = np.zeros((capacity, rows.shape[1])), np.zeros(capacity)
    size, version = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    table = GroupTable(sums, evidence, size, version, np.zeros(1, np.int64))
    turns = np.flatnonzero(visits == visits[0])
    sweep = turns[1] if turns.size > 1 else visits.size
    caches = GainCache(np.zeros((sweep, capacity)), np.zeros((sweep, capacity), np.int64))
    for group in range(count):
        _update_group(rows, assignment, group, table, model)
    odds, asked, expected = np.empty(capacity), 0, np.zeros(rows.shape[1])
    for visit in range(visits.size):
        agent = visits[visit]
        left = assignment[agent]
        assignment[agent] = NO_GROUP
        version_left = table.version[left]
        _update_group(rows, assignment, left, table, model)
        cache = GainCache(caches.gains[visit % sweep], caches.version[visit % sweep])
        free = _fill_gains(rows[agent], alone[agent], table, model, odds, cache)
        odds[free] = model.hurdle + _compute_founding_log_odds(table.size, assignment.size - 1)
        _normalise_log_odds(odds)
        if agent == visits[0]:
            asked += 1
            for group in range(capacity):
                if odds[group] > 0.0 and table.size[group] >= told:
                    expected += odds[group] * table.sums[group]
        assignment[agent] = _draw_group(odds, draws[visit])
        _update_group(rows, assignment, assignment[agent], table, model)
        if assignment[agent] == left:
            table.version[left] = version_left  # it is the group that it was
        if agent == visits[0]:
            _merge_group(rows, assignment, assignment[agent], table, model)
    return expected / asked
