"""What the exact engine compiles: the rounds of one agent after another, until each wants to speak.

Every number that decides something comes from the same compiled functions that the reference uses, in the
same order, so lists, triggers and statistics are equal to the bit. Single precision only says which items
cannot be in the list.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.compiled import approximate, compiled
from fedcascade.environments import streams
from fedcascade.learning import linear
from fedcascade.learning.oracles import top

LANES = 16  # rows of items are padded to a multiple of this, so that no vector loop has a slow remainder
DETERMINANT, AUXILIARY, DOUBLING, ALWAYS = 0, 1, 2, 3


class World(NamedTuple):
    """A synthetic environment, as compiled code sees it."""

    seed: np.uint64
    lifted: bool
    fewest_items: int
    most_items: int
    thetas: NDArray[np.float64]


class Rules(NamedTuple):
    """A policy, as compiled code sees it. ``triggers`` are tried in order; ``levels`` are their constants."""

    length: int
    triggers: NDArray[np.int64]
    levels: NDArray[np.float64]
    lambda_: float
    every_round: bool  # agents decide with download and buffer
    beta_base: float  # beta = base + slope sqrt(log_det + shift), for agents that decide anew in every round
    beta_slope: float
    beta_shift: float


class Fleet(NamedTuple):
    """The state of all agents, as arrays over agents: the download, the decision made from it, the buffer."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    log_det: NDArray[np.float64]
    theta: NDArray[np.float64]
    root_t: NDArray[np.float64]
    beta: NDArray[np.float64]
    decided_log_det: NDArray[np.float64]
    buffer_gram: NDArray[np.float64]
    buffer_moment: NDArray[np.float64]
    buffer_counts: NDArray[np.int64]  # items examined, clicks, rounds
    arrivals: NDArray[np.int64]
    taught: NDArray[np.float64]  # running sum of squared widths since the download: bounds ln det


class Window(NamedTuple):
    """A stretch of rounds: who plays which of them, how far each agent is, and what came out."""

    first: int
    rounds: NDArray[np.int64]  # sorted by agent, then by time
    cursor: NDArray[np.int64]  # per agent, the next of its rounds
    stop: NDArray[np.int64]  # per agent, the end of its rounds
    spoke: NDArray[np.int64]  # per agent, the round in which it wants to speak, or 0
    trigger: NDArray[np.int64]  # per agent, which trigger fired
    regret: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    examined: NDArray[np.int64]
    lists: NDArray[np.int32]


class Scratch(NamedTuple):
    """Room for one round of one thread."""

    columns: NDArray[np.float32]
    score: NDArray[np.float32]
    square: NDArray[np.float32]
    part: NDArray[np.float32]
    theta: NDArray[np.float32]
    root: NDArray[np.float32]
    weights: NDArray[np.float64]
    no_ties: NDArray[np.uint32]
    best: NDArray[np.float32]
    candidates: NDArray[np.int64]
    exact: NDArray[np.float64]
    x: NDArray[np.float64]
    work: NDArray[np.float64]
    listed: NDArray[np.float32]


@compiled
def make_scratch(world: World, length: int) -> Scratch:
    """Room for the largest round there can be."""
    d, items = world.thetas.shape[1], (world.most_items + LANES - 1) // LANES * LANES
    return Scratch(
        np.empty((d, items), np.float32),
        np.empty(items, np.float32),
        np.empty(items, np.float32),
        np.empty(items, np.float32),
        np.empty(d, np.float32),
        np.empty((d, d), np.float32),
        np.empty(items, np.float64),
        np.zeros(items, np.uint32),
        np.empty(length, np.float32),
        np.empty(items, np.int64),
        np.empty(items, np.float64),
        np.empty(d, np.float64),
        np.empty(d, np.float64),
        np.empty((length, d), np.float32),
    )


@compiled
def sort_rounds(
    arrivals: NDArray[np.int64], first: int, users: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The rounds of a window by agent and time, and where each agent's begin and end."""
    begin = np.zeros(users + 1, np.int64)
    for user in arrivals:
        begin[user + 1] += 1
    for user in range(users):
        begin[user + 1] += begin[user]
    free = begin[:-1].copy()
    rounds = np.empty(arrivals.size, np.int64)
    for i in range(arrivals.size):
        rounds[free[arrivals[i]]] = first + i
        free[arrivals[i]] += 1
    return rounds, begin[:-1].copy(), begin[1:].copy()


@compiled
def advance(world: World, rules: Rules, fleet: Fleet, window: Window, agents: NDArray[np.int64]) -> None:
    """Play the rounds of each of ``agents`` until it wants to speak or the window ends."""
    scratch = make_scratch(world, rules.length)
    for agent in agents:
        window.spoke[agent] = 0
        margin = _load(rules, fleet, scratch, agent)
        while window.cursor[agent] < window.stop[agent]:
            t = window.rounds[window.cursor[agent]]
            window.cursor[agent] += 1
            play(world, rules, fleet, window, scratch, agent, t, margin)
            fired = _fires(world, rules, fleet, agent, t)
            if fired >= 0:
                window.spoke[agent] = t
                window.trigger[agent] = rules.triggers[fired]
                break
            if rules.every_round:
                margin = _load(rules, fleet, scratch, agent)


@compiled
def play(
    world: World, rules: Rules, fleet: Fleet, window: Window, scratch: Scratch, agent: int, t: int, margin: float
) -> None:
    """One round: draw the items, choose the list, click, learn, count the regret."""
    items = streams.shelf(world.seed, t, world.fewest_items, world.most_items)
    streams.unit_items_into(world.seed, t, scratch.columns, world.lifted)
    linear.means_into(world.thetas[agent], scratch.columns, scratch.weights)
    chosen = _choose(world.seed, t, items, rules.length, fleet, scratch, agent, margin)
    click = _learn(world.seed, t, fleet, scratch, agent, chosen)

    row = t - window.first
    best = top(scratch.weights[:items], scratch.no_ties, rules.length)
    window.regret[row] = _reward(scratch.weights, best) - _reward(scratch.weights, chosen)
    window.clicked[row] = click >= 0
    window.examined[row] = click + 1 if click >= 0 else chosen.size
    if window.lists.shape[0] > 0:
        for position in range(chosen.size):
            window.lists[row, position] = chosen[position]


@compiled
def _load(rules: Rules, fleet: Fleet, scratch: Scratch, agent: int) -> float:
    """Bring an agent's decision up to date and into single precision; returns the margin of the filter.

    With u = 2^-24, rounding the factors and summing d terms in any order moves a score by less than
    2 (d + 3) u (||theta|| + beta ||root||); the margin is twice that.
    """
    if rules.every_round:
        _decide(rules, fleet, agent)
    theta, root_t, d = fleet.theta[agent], fleet.root_t[agent], fleet.theta.shape[1]
    length = frobenius = 0.0
    for k in range(d):
        length += theta[k] * theta[k]
        scratch.theta[k] = theta[k]
        for j in range(d):
            frobenius += root_t[k, j] * root_t[k, j]
            scratch.root[j, k] = root_t[k, j]
    size = np.sqrt(length) + fleet.beta[agent] * np.sqrt(frobenius)
    return float(4.0 * (d + 4) * 2.0**-24 * size)


@compiled
def _decide(rules: Rules, fleet: Fleet, agent: int) -> None:
    """DownloadAndBuffer: the ridge of both together, by the same steps as ``Ridge``."""
    upper = _factor(rules, fleet, agent)
    root = linear.inverse_root(upper)
    log_det = linear.log_determinant(upper)
    fleet.decided_log_det[agent] = log_det
    fleet.theta[agent] = linear.solve(root, fleet.moment[agent] + fleet.buffer_moment[agent])
    fleet.root_t[agent] = root.T
    fleet.beta[agent] = rules.beta_base + rules.beta_slope * np.sqrt(max(0.0, log_det + rules.beta_shift))


@compiled
def _factor(rules: Rules, fleet: Fleet, agent: int) -> NDArray[np.float64]:
    matrix = fleet.gram[agent] + fleet.buffer_gram[agent]
    for k in range(matrix.shape[0]):
        matrix[k, k] += rules.lambda_
    return linear.cholesky(matrix)


@approximate
def _filter(columns: NDArray[np.float32], beta: np.float32, scratch: Scratch) -> None:
    """Scores of all items in single precision, not clipped at 1."""
    d = columns.shape[0]
    score, square, part = scratch.score, scratch.square, scratch.part
    _mix_rows(columns, scratch.theta, d, score)
    square[:] = np.float32(0.0)
    for j in range(d):
        _mix_rows(columns, scratch.root[j], j + 1, part)
        for i in range(part.size):
            square[i] += part[i] * part[i]
    for i in range(score.size):
        score[i] += beta * np.sqrt(square[i])


@approximate
def _mix_rows(columns: NDArray[np.float32], factors: NDArray[np.float32], rows: int, out: NDArray[np.float32]) -> None:
    """The sum of the first rows of ``columns``, each times its factor; four rows at a time to save stores."""
    out[:] = np.float32(0.0)
    fours = rows // 4 * 4
    for k in range(0, fours, 4):
        a, b, c, d = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
        for i in range(out.size):
            out[i] += a * columns[k, i] + b * columns[k + 1, i] + c * columns[k + 2, i] + d * columns[k + 3, i]
    for k in range(fours, rows):
        a = factors[k]
        for i in range(out.size):
            out[i] += a * columns[k, i]


@compiled
def _choose(
    seed: np.uint64, t: int, items: int, length: int, fleet: Fleet, scratch: Scratch, agent: int, margin: float
) -> NDArray[np.intp]:
    """The list of the reference: filter with a margin, score the survivors exactly, take the best."""
    beta = fleet.beta[agent]
    _filter(scratch.columns, np.float32(beta), scratch)
    floor = _kth_largest(scratch.score, items, scratch.best[: min(length, items)]) - 2.0 * margin
    found = 0
    for i in range(items):
        if scratch.score[i] >= floor:
            scratch.candidates[found] = i
            if scratch.score[i] > 1.0 + margin:
                scratch.exact[found] = 1.0
            else:
                _item(scratch.columns, i, scratch.x)
                scratch.exact[found] = linear.optimistic_score(
                    fleet.theta[agent], fleet.root_t[agent], beta, scratch.x, scratch.work
                )
            found += 1
    ties = _ties(seed, t, items, scratch.candidates[:found], scratch.exact[:found], scratch.no_ties)
    chosen = top(scratch.exact[:found], ties, length)
    for position in range(chosen.size):
        chosen[position] = scratch.candidates[chosen[position]]
    return chosen


@compiled
def _kth_largest(values: NDArray[np.float32], items: int, best: NDArray[np.float32]) -> float:
    """The smallest of the ``best.size`` largest values, each taken as at most 1."""
    best[:] = -np.inf
    last = best.size - 1
    for i in range(items):
        value = min(values[i], np.float32(1.0))
        if value > best[last]:
            place = last
            while place > 0 and best[place - 1] < value:
                best[place] = best[place - 1]
                place -= 1
            best[place] = value
    return np.float64(best[last])


@compiled
def _ties(
    seed: np.uint64,
    t: int,
    items: int,
    candidates: NDArray[np.int64],
    exact: NDArray[np.float64],
    none: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """The tie-breaks of the candidates; drawn only where two of them may be equal."""
    if not _any_equal(exact):
        return none
    return streams.words(seed, streams.TIE, t, items)[candidates]


@compiled
def _any_equal(values: NDArray[np.float64]) -> bool:
    if values.size > LANES:
        return True
    for i in range(values.size):
        for j in range(i):
            if values[i] == values[j]:
                return True
    return False


@compiled
def _item(columns: NDArray[np.float32], item: int, x: NDArray[np.float64]) -> None:
    for k in range(x.size):
        x[k] = columns[k, item]


@compiled
def _learn(seed: np.uint64, t: int, fleet: Fleet, scratch: Scratch, agent: int, chosen: NDArray[np.intp]) -> int:
    """The position of the click or -1; what was examined goes into the buffer."""
    click, examined = -1, chosen.size
    for position in range(chosen.size):
        item = chosen[position]
        _item(scratch.columns, item, scratch.x)
        scratch.listed[position] = scratch.x
        fleet.taught[agent] += linear.squared_width(fleet.root_t[agent], scratch.x, scratch.work)
        if streams.uniform(seed, streams.CLICK, t, item) < scratch.weights[item]:
            click, examined = position, position + 1
            break
    linear.add_examined(fleet.buffer_gram[agent], fleet.buffer_moment[agent], scratch.listed, examined, click)
    fleet.buffer_counts[agent, 0] += examined
    fleet.buffer_counts[agent, 1] += click >= 0
    fleet.buffer_counts[agent, 2] += 1
    fleet.arrivals[agent] += 1
    return click


@compiled
def _reward(weights: NDArray[np.float64], items: NDArray[np.intp]) -> float:
    missed = 1.0
    for item in items:
        missed *= 1.0 - min(max(weights[item], 0.0), 1.0)
    return 1.0 - missed


@compiled
def _fires(world: World, rules: Rules, fleet: Fleet, agent: int, t: int) -> int:
    """Which trigger fires, the first that does, or -1."""
    for which in range(rules.triggers.size):
        kind, level = rules.triggers[which], rules.levels[which]
        if kind == DETERMINANT and _grown(rules, fleet, agent, level):
            return which
        if kind == AUXILIARY and streams.uniform(world.seed, streams.AUXILIARY, t, 0) < min(1.0, level * np.log(t) / t):
            return which
        if kind == DOUBLING and fleet.arrivals[agent] & (fleet.arrivals[agent] - 1) == 0:
            return which
        if kind == ALWAYS:
            return which
    return -1


@compiled
def _grown(rules: Rules, fleet: Fleet, agent: int, level: float) -> bool:
    """ln det(Sigma + Sigma_loc) - ln det(Sigma) > level.

    With M = Sigma^-1/2 Sigma_loc Sigma^-1/2, ln det(I + M) <= d ln(1 + tr M / d), and tr M is the running sum
    of squared widths; the determinant is looked at only when that bound passes the level.
    """
    d = fleet.theta.shape[1]
    if not rules.every_round and d * np.log1p(fleet.taught[agent] / d) < level * (1.0 - 1e-9):
        return False
    return bool(linear.log_determinant(_factor(rules, fleet, agent)) - fleet.log_det[agent] > level)
