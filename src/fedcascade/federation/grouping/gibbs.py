"""Collapsed Gibbs sampling of the partitions that data allow, compiled.

An agent's data are a row (``rows.py``). A group's data are the sum of its agents' rows. The sampler works on a table of
groups and on the rows of the agents that it visits; what other agents there are, it need not know.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.rows import COUNTS, Row, Rows
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_no_refcount

MERGE_LOG_ODDS = 7.0  # groups are merged beyond odds of a thousand to one
NO_GROUP = -1
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Model(NamedTuple):
    """What the evidence assumes: log-odds for a group of one's own, noise sigma^2 of a click, l = sigma^2 / tau^2."""

    hurdle: float
    variance: float
    prior: float


class Memory(NamedTuple):
    """Room for one evaluation of the evidence: an upper factor and a solution."""

    upper: Rows
    solution: Row


class GroupTable(NamedTuple):
    """Some groups: sum of the rows of each, E of that sum, and size; a group of size 0 is free.

    ``people`` are members that are agents, and not former selves of some. A version is a number for a set of
    members: when members change, the group gets a version that none had before.
    """

    sums: Rows
    evidence: Row
    size: Indices
    people: Indices
    version: Indices
    last_version: Indices  # one number
    memory: Memory


class GainCache(NamedTuple):
    """The evidence that a row belongs to each group, and for which version of the group it was computed."""

    gains: Row
    version: Indices


class Crowd(NamedTuple):
    """What the sampler must know of agents that it does not visit: how many speak, and how many groups are unlisted."""

    speakers: int
    unlisted: int


@jit
def compute_evidence(gram: Rows, moment: Row, variance: float, prior: float) -> float:
    """E(S, b), the log marginal likelihood of clicks, up to what cancels."""
    upper = linear.factorise_shifted(gram, prior)
    fit = linear.compute_leverage(upper, moment) / variance
    return 0.5 * (fit - linear.compute_log_det(upper) + moment.size * log(prior))


@jit
def make_memory(row: Row) -> Memory:
    """Room for rows of that length."""
    d = int(math.sqrt(2.0 * (row.size - COUNTS) + 2.25) - 1.0)  # a row is d (d + 1) / 2 + d + COUNTS long
    return Memory(np.zeros((d, d)), np.zeros(d))


@jit_no_refcount
def measure_sum(total: Row, row: Row, sign: float, model: Model, memory: Memory) -> float:
    """E of a sum with one more row, or one less, as ``sign`` says; or without that row, if it is 0.

    The operations are those of ``compute_evidence`` in the same order, so the bits are the same.
    """
    upper, solution = memory
    d, k, fit = solution.size, 0, 0.0
    for i in range(d):
        for j in range(i, d):
            upper[i, j] = total[k] + sign * row[k]
            k += 1
        upper[i, i] += model.prior
    linear.factorise(upper)
    for j in range(d):
        value = total[k + j] + sign * row[k + j]
        for i in range(j):
            value -= upper[i, j] * solution[i]
        solution[j] = value / upper[j, j]
        fit += solution[j] * solution[j]
    return float(0.5 * (fit / model.variance - linear.compute_log_det(upper) + d * log(model.prior)))


@jit
def measure_row(row: Row, model: Model) -> float:
    """E of a row."""
    return measure_sum(row, row, 0.0, model, make_memory(row))


@jit
def estimate_theta(row: Row, model: Model) -> Row:
    """(S + l I)^-1 b of a row."""
    memory = make_memory(row)
    measure_sum(row, row, 0.0, model, memory)
    upper, theta = memory
    d = theta.size
    for i in range(d - 1, -1, -1):
        for j in range(i + 1, d):
            theta[i] -= upper[i, j] * theta[j]
        theta[i] /= upper[i, i]
    return theta


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


@jit
def _fill_gains(
    row: Row, alone: float, table: GroupTable, is_candidate: Flags, model: Model, cache: GainCache, gains: Row
) -> None:
    """Fill ``gains`` with the log Bayes factor that a row belongs to each candidate; minus infinity for other groups.

    ``alone`` is E of the row. Gains of groups whose members have not changed come from the cache.
    """
    for group in range(gains.size):
        gains[group] = -math.inf
        if table.size[group] > 0 and is_candidate[group]:
            if cache.version[group] != table.version[group]:
                together = measure_sum(table.sums[group], row, 1.0, model, table.memory)
                cache.gains[group] = together - table.evidence[group] - alone
                cache.version[group] = table.version[group]
            gains[group] = cache.gains[group]


@jit
def find_candidates(row: Row, thetas: Rows, considered: int, is_candidate: Flags) -> None:
    """Mark, of the groups whose estimates are the columns of ``thetas``, the ``considered`` that fit a row best.

    A group fits as well as its estimate predicts the row's clicks: by b.theta - theta' S theta / 2.
    """
    d, count = thetas.shape
    fit, k = np.zeros(count), 0
    for i in range(d):
        for j in range(i, d):
            weight = -0.5 * row[k] if i == j else -row[k]
            for group in range(count):
                fit[group] += weight * thetas[i, group] * thetas[j, group]
            k += 1
    for i in range(d):
        for group in range(count):
            fit[group] += row[k + i] * thetas[i, group]
    is_candidate[:count] = False
    for group in np.argsort(-fit, kind="mergesort")[:considered]:
        is_candidate[group] = True


@jit
def _compute_founding_log_odds(founded: int, others: int) -> float:
    """The log-odds that one of the other agents has founded a group to having joined one.

    With it, before any data, G groups of n agents have the weight exp(hurdle G) / (n - 1 choose G - 1).
    """
    return log(max(founded, 1) / (others - founded + 1))


@jit
def _change_members(table: GroupTable, group: int, row: Row, people: int, sign: float, model: Model) -> None:
    """Add a row, of so many people, to a group or take it away."""
    for k in range(row.size):
        table.sums[group, k] += sign * row[k]
    table.size[group] += int(sign)
    table.people[group] += int(sign) * people
    table.evidence[group] = measure_sum(table.sums[group], row, 0.0, model, table.memory)
    table.last_version[0] += 1
    table.version[group] = table.last_version[0]


class Visited(NamedTuple):
    """The agents that the sampler visits, the asker first, and what it remembers of each.

    ``left_evidence`` is E of the agent's group without the agent, for the version ``left_version`` of that group.
    """

    rows: Rows
    alone: Row  # E of each row
    people: Indices  # 1 for an agent, 0 for a former self of one
    assignment: Indices  # the group of each
    is_moved: Flags
    gains: Rows
    version: Indices
    left_evidence: Row
    left_version: Indices
    is_candidate: Flags


class Merges(NamedTuple):
    """Which groups joined which, in order: group, target, and whether the group was the larger one."""

    lines: Indices
    total: Indices  # one number
    cache: GainCache
    cached_version: Indices  # one number: the version of the group that the cache is about


@jit
def _merge_group(
    group: int, table: GroupTable, thetas: Rows, model: Model, considered: int, merges: Merges, visited: Visited
) -> None:
    """Let a whole group join the one with the most evidence for it, while that is all but certain to be right.

    Agents that move one by one hardly ever empty one of two large groups that are alike.
    """
    gains, is_candidate = np.empty(table.size.size), np.ones(table.size.size, np.bool_)
    while True:
        if merges.cached_version[0] != table.version[group]:
            merges.cached_version[0] = table.version[group]
            merges.cache.version[:] = 0
        is_candidate[:] = True
        if thetas.shape[1] > considered:
            find_candidates(table.sums[group], thetas, considered, is_candidate)
        is_candidate[group] = False
        _fill_gains(table.sums[group], table.evidence[group], table, is_candidate, model, merges.cache, gains)
        target = int(gains.argmax())
        if gains[target] < model.hurdle + MERGE_LOG_ODDS:
            return
        line = merges.lines[merges.total[0]]
        line[0], line[1], line[2] = group, target, int(table.size[group] > table.size[target])
        merges.total[0] += 1
        size = table.size[group] + table.size[target]
        _change_members(table, target, table.sums[group], table.people[group], 1.0, model)
        table.size[target], table.size[group], table.people[group] = size, 0, 0
        table.sums[group] = 0.0
        for agent in range(visited.assignment.size):
            if visited.assignment[agent] == group:
                visited.assignment[agent], visited.is_moved[agent] = target, True
        group = target


@jit
def _weigh_groups(agent: int, visited: Visited, table: GroupTable, model: Model, crowd: Crowd, odds: Row) -> None:
    """Take an agent out of its group, and fill ``odds`` with the probability of each group for it."""
    left = visited.assignment[agent]
    if table.size[left] > 1 and visited.left_version[agent] != table.version[left]:
        visited.left_evidence[agent] = measure_sum(table.sums[left], visited.rows[agent], -1.0, model, table.memory)
        visited.left_version[agent] = table.version[left]
    is_candidate = visited.is_candidate[agent]
    was_candidate, is_candidate[left] = is_candidate[left], False
    cache = GainCache(visited.gains[agent], visited.version[agent])
    _fill_gains(visited.rows[agent], visited.alone[agent], table, is_candidate, model, cache, odds)
    is_candidate[left] = was_candidate
    if table.size[left] > 1:
        odds[left] = table.evidence[left] - visited.left_evidence[agent] - visited.alone[agent]
    free, founded = NO_GROUP, crowd.unlisted
    for group in range(odds.size):
        size = table.size[group] - (group == left)
        founded += size > 0
        if size == 0 and free == NO_GROUP:
            free = group
    odds[free] = model.hurdle + _compute_founding_log_odds(founded, crowd.speakers - 1)
    _normalise_log_odds(odds)


@jit
def _add_expected(agent: int, visited: Visited, table: GroupTable, odds: Row, told: int, expected: Row) -> None:
    """Add to ``expected`` the sums of all groups, without the agent, by their probability; those of few people not."""
    left = visited.assignment[agent]
    for group in range(odds.size):
        own = int(group == left)
        is_hidden = table.people[group] - own * visited.people[agent] >= told
        if odds[group] > 0.0 and is_hidden and table.size[group] > own:
            for k in range(expected.size):
                others = table.sums[group, k]
                if group == left:
                    others -= visited.rows[agent, k]
                expected[k] += odds[group] * others


@jit
def _move(agent: int, target: int, visited: Visited, table: GroupTable, model: Model) -> None:
    """Let an agent change groups; one that has the last member of a group leaves nothing behind."""
    left = visited.assignment[agent]
    if target == left:
        return
    if table.size[left] > 1:
        _change_members(table, left, visited.rows[agent], visited.people[agent], -1.0, model)
    else:
        table.size[left] = table.people[left] = 0
        table.sums[left] = 0.0
    _change_members(table, target, visited.rows[agent], visited.people[agent], 1.0, model)
    visited.assignment[agent], visited.is_moved[agent] = target, True


@jit
def sample_partitions(
    rows: Rows,
    alone: Row,
    people: Indices,
    assignment: Indices,
    table: GroupTable,
    thetas: Rows,
    draws: Row,
    model: Model,
    crowd: Crowd,
    considered: int,
    told: int,
) -> tuple[Row, Flags, Indices]:
    """Visit agents in turn; each leaves its group and joins the one that the data and its draw say.

    Changes ``assignment`` and ``table``.

    Args:
        rows: the data of each agent to visit; the first one is the asker.
        alone: E of each row.
        people: 1 for each row of an agent, 0 for that of a former self.
        assignment: the group of each.
        table: the groups, and after them as many free places as there are rows, and one more.
        thetas: the estimate of each group, in columns.
        draws: a uniform number for each visit.
        model: its hurdle is added to the log-odds of a group of one's own, which are those of the other agents.
        crowd: what there is beyond the table.
        considered: of more groups than this, an agent looks at so many alone, those that fit it best.
        told: how many other people a group must have for the asker to be told of it.

    Returns:
        The expected sum of the asker's group without the asker, on average over the visits to it; who has moved; and
        ``Merges.lines``.
    """
    agents, capacity = rows.shape[0], table.size.size
    is_candidate = np.ones((agents, capacity), np.bool_)
    visited = Visited(
        rows, alone, people, assignment, np.zeros(agents, np.bool_), np.empty((agents, capacity)),
        np.zeros((agents, capacity), np.int64), np.empty(agents), np.zeros(agents, np.int64), is_candidate,
    )  # fmt: skip
    cache = GainCache(np.empty(capacity), np.zeros(capacity, np.int64))
    most = capacity + draws.size
    merges = Merges(np.empty((most, 3), np.int64), np.zeros(1, np.int64), cache, np.zeros(1, np.int64))
    if thetas.shape[1] > considered:
        for agent in range(agents):
            find_candidates(rows[agent], thetas, considered, is_candidate[agent])
    odds, expected = np.empty(capacity), np.zeros(rows.shape[1])
    for visit in range(draws.size):
        agent = visit % agents
        _weigh_groups(agent, visited, table, model, crowd, odds)
        if agent == 0:
            _add_expected(agent, visited, table, odds, told, expected)
        _move(agent, _draw_group(odds, draws[visit]), visited, table, model)
        if agent == 0:
            _merge_group(assignment[agent], table, thetas, model, considered, merges, visited)
    return expected / (draws.size // agents), visited.is_moved, merges.lines[: merges.total[0]]
