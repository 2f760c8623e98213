"""What the exact engine compiles: the rounds of one agent after another, until each wants to speak.

Every number that decides something comes from the same compiled functions that the reference uses, in the
same order, so lists, triggers and statistics are equal to the bit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear, streams
from fedcascade.numerics.jit import fetch_and_increment, jit, jit_inline, jit_no_refcount
from fedcascade.simulation.exact.ranking import best_reward, choose, weight
from fedcascade.simulation.exact.screening import Scratch, filter_items, load

DETERMINANT, AUXILIARY, DOUBLING, ALWAYS = 0, 1, 2, 3  # kinds of triggers
LOG_DET, BETA, TAUGHT, WIDEST = 0, 1, 2, 3  # places in Fleet.numbers
EXAMINED, CLICKS, ROUNDS, ARRIVALS = 0, 1, 2, 3  # places in Fleet.counts


class World(NamedTuple):
    """An environment of clustered users, as compiled code sees it."""

    seed: np.uint64
    lifted: bool
    fewest_items: int
    most_items: int
    thetas: NDArray[np.float64]
    catalogue: NDArray[np.float32]  # one column per item; without columns, rounds draw fresh items


class Rules(NamedTuple):
    """A policy, as compiled code sees it. ``triggers`` are tried in order; ``levels`` are their constants."""

    length: int
    triggers: NDArray[np.int64]
    levels: NDArray[np.float64]
    bounds: NDArray[np.float64]  # while TAUGHT is below, a determinant cannot have passed its level
    slack: float  # how far a width in single precision may be off
    lambda_: float
    every_round: bool  # agents decide with download and buffer
    beta_base: float  # beta = base + slope sqrt(log_det + shift), for agents that decide anew in every round
    beta_slope: float
    beta_shift: float


class Fleet(NamedTuple):
    """The state of all agents, as arrays over agents; ``one_of`` gives the same of a single agent."""

    gram: NDArray[np.float64]  # the download
    moment: NDArray[np.float64]
    theta: NDArray[np.float64]  # the decision made from it
    root: NDArray[np.float64]
    buffer_gram: NDArray[np.float64]
    buffer_moment: NDArray[np.float64]
    numbers: NDArray[
        np.float64
    ]  # ln det of the download, beta, sum of squared widths since, ``linear.bound_width`` or 0
    counts: NDArray[np.int64]  # of the buffer: items examined, clicks, rounds; and arrivals in all


class Window(NamedTuple):
    """A stretch of rounds: who plays which of them, how far each agent is, and what came out."""

    first: int
    rounds: NDArray[np.int64]  # sorted by agent, then by time
    cursor: NDArray[np.int64]  # per agent, the next of its rounds
    stop: NDArray[np.int64]  # per agent, the end of its rounds
    spoke: NDArray[np.int64]  # per agent, the round in which it wants to speak, or 0
    trigger: NDArray[np.int64]  # per agent, which kind of trigger fired
    regret: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    examined: NDArray[np.int64]
    lists: NDArray[np.int32]


@jit
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


def one_of(fleet: Fleet, agent: int) -> Fleet:
    """The state of one agent, in the same memory."""
    return Fleet(*(array[agent] for array in fleet))


@jit_inline
def lent(fleet: Fleet, agent: int) -> Fleet:
    """The same for bare code, which must not keep it longer than the fleet."""
    return Fleet(
        fleet.gram[agent],
        fleet.moment[agent],
        fleet.theta[agent],
        fleet.root[agent],
        fleet.buffer_gram[agent],
        fleet.buffer_moment[agent],
        fleet.numbers[agent],
        fleet.counts[agent],
    )


@jit_no_refcount
def advance(
    world: World,
    rules: Rules,
    fleet: Fleet,
    window: Window,
    agents: NDArray[np.int64],
    taken: NDArray[np.int64],
    scratch: Scratch,
) -> None:
    """Play the rounds of each of ``agents`` until it wants to speak or the window ends.

    ``taken`` holds how many of them some thread has taken up; threads that share it share the agents. Each thread has
    a ``scratch`` of its own.
    """
    number = fetch_and_increment(taken)
    while number < agents.size:
        agent = agents[number]
        one, theta = lent(fleet, agent), world.thetas[agent]
        for k in range(theta.size):
            scratch.true_theta[k] = theta[k]
        cursor, stop, fired = window.cursor[agent], window.stop[agent], -1
        margin = _prepare(rules, one, scratch)
        while cursor < stop and fired < 0:
            t = window.rounds[cursor]
            cursor += 1
            _play(world, rules, theta, one, window, scratch, t, margin)
            fired = _fires(world.seed, rules, one, scratch, t)
            if rules.every_round:
                margin = _prepare(rules, one, scratch)
        window.cursor[agent] = cursor
        window.spoke[agent] = 0 if fired < 0 else window.rounds[cursor - 1]
        window.trigger[agent] = fired
        number = fetch_and_increment(taken)


@jit_inline
def _prepare(rules: Rules, one: Fleet, scratch: Scratch) -> float:
    """Bring an agent's decision up to date; returns the margin of its single-precision scores."""
    bound_width = np.inf  # to find it would take longer than it saves in a single round
    if rules.every_round:
        _decide(rules, one, scratch)
    else:
        if one.numbers[WIDEST] == 0.0:
            one.numbers[WIDEST] = _widest(one, scratch)
        bound_width = one.numbers[WIDEST]
    return load(one.theta, one.root, one.numbers[BETA], bound_width, scratch)


@jit_inline
def _widest(one: Fleet, scratch: Scratch) -> float:
    """``linear.bound_width``; infinite where usual items have scores of 1, so that no bound would spare a width."""
    squares = 0.0
    for j in range(one.theta.size):
        for k in range(j + 1):
            squares += one.root[j, k] * one.root[j, k]
    clipped = one.numbers[BETA] * one.numbers[BETA] * squares > 0.5 * one.theta.size
    return np.inf if clipped else linear.bound_width(one.root, scratch.upper, scratch.root_room)


@jit_inline
def _decide(rules: Rules, one: Fleet, scratch: Scratch) -> None:
    """DownloadAndBuffer: the ridge of both together, by the same steps as ``Ridge``."""
    _factor(rules.lambda_, one, scratch.upper)
    linear.invert_root_into(scratch.upper, one.root)
    for k in range(one.moment.size):
        scratch.moments[k] = one.moment[k] + one.buffer_moment[k]
    linear.solve_into(one.root, scratch.moments, one.theta)
    inside = max(0.0, linear.compute_log_det(scratch.upper) + rules.beta_shift)
    one.numbers[BETA] = rules.beta_base + rules.beta_slope * np.sqrt(inside)


@jit_inline
def _factor(lambda_: float, one: Fleet, upper: NDArray[np.float64]) -> None:
    """The upper factor of download and buffer together."""
    for k in range(upper.shape[0]):
        for j in range(upper.shape[0]):
            upper[k, j] = one.gram[k, j] + one.buffer_gram[k, j]
        upper[k, k] += lambda_
    linear.factorise(upper)


@jit_no_refcount
def _play(
    world: World,
    rules: Rules,
    theta: NDArray[np.float64],
    one: Fleet,
    window: Window,
    scratch: Scratch,
    t: int,
    margin: float,
) -> None:
    """One round: draw the items, choose the list, click, learn, count the regret."""
    items = streams.shelf(world.seed, t, world.fewest_items, world.most_items)
    streams.items_into(world.seed, t, scratch.columns[: theta.size], world.lifted, world.catalogue, scratch.draft)
    beta = one.numbers[BETA]
    filter_items(items, min(rules.length, items), beta, margin, scratch)
    choose(world.seed, t, items, rules.length, one.theta, one.root, beta, margin, scratch)
    chosen = scratch.chosen[: min(rules.length, items)]
    click, missed = -1, 1.0
    for position in range(chosen.size):
        item = chosen[position]
        attraction = weight(theta, scratch.columns, item)
        missed *= 1.0 - attraction
        if click < 0 and streams.uniform(world.seed, streams.CLICK, t, item) < attraction:
            click = position
    examined = chosen.size if click < 0 else click + 1
    _learn(one, scratch, chosen, examined, click, rules.slack)

    row = t - window.first
    window.regret[row] = best_reward(theta, items, rules.length, scratch) - (1.0 - missed)
    window.clicked[row] = click >= 0
    window.examined[row] = examined
    if window.lists.shape[0] > 0:
        for position in range(chosen.size):
            window.lists[row, position] = chosen[position]


@jit_inline
def _learn(one: Fleet, scratch: Scratch, chosen: NDArray[np.intp], examined: int, click: int, slack: float) -> None:
    """What was examined goes into the buffer; TAUGHT stays at or above the sum of its squared widths."""
    for position in range(examined):
        item = chosen[position]
        for k in range(scratch.listed.shape[1]):
            scratch.listed[position, k] = scratch.columns[k, item]
        width = np.sqrt(np.float64(scratch.square[item])) + slack
        one.numbers[TAUGHT] += width * width
    linear.add_examined(one.buffer_gram, one.buffer_moment, scratch.listed, examined, click)
    one.counts[EXAMINED] += examined
    one.counts[CLICKS] += click >= 0
    one.counts[ROUNDS] += 1
    one.counts[ARRIVALS] += 1


@jit_inline
def _fires(seed: np.uint64, rules: Rules, one: Fleet, scratch: Scratch, t: int) -> int:
    """The kind of the first trigger that fires, or -1."""
    for which in range(rules.triggers.size):
        kind, level = int(rules.triggers[which]), rules.levels[which]
        if kind == DETERMINANT and _grown(rules, one, scratch, which):
            return kind
        if kind == AUXILIARY and drawn(seed, level, t):
            return kind
        if kind == DOUBLING and one.counts[ARRIVALS] & (one.counts[ARRIVALS] - 1) == 0:
            return kind
        if kind == ALWAYS:
            return kind
    return -1


@jit_inline
def fires(seed: np.uint64, rules: Rules, fleet: Fleet, agent: int, scratch: Scratch, t: int) -> int:
    """The kind of the first trigger of one agent that fires, or -1."""
    return _fires(seed, rules, lent(fleet, agent), scratch, t)


@jit_inline
def drawn(seed: np.uint64, p_scale: float, t: int) -> bool:
    """Whether round t is one of random exchanges: p < p_t = p_scale ln(t) / t."""
    return bool(streams.uniform(seed, streams.AUXILIARY, t, 0) < min(1.0, p_scale * np.log(t) / t))


@jit_inline
def _grown(rules: Rules, one: Fleet, scratch: Scratch, which: int) -> bool:
    """ln det(Sigma + Sigma_loc) - ln det(Sigma) > level.

    With M = Sigma^-1/2 Sigma_loc Sigma^-1/2, ln det(I + M) <= d ln(1 + tr M / d), and tr M is at most TAUGHT
    while decisions are made with the download. So the determinant is looked at only when that may pass the
    level; if it has not, every further item adds at most its squared width to it, and TAUGHT is set so that
    the next look comes when those could make up for what is missing.
    """
    if not rules.every_round and one.numbers[TAUGHT] < rules.bounds[which]:
        return False
    _factor(rules.lambda_, one, scratch.upper)
    growth = linear.compute_log_det(scratch.upper) - one.numbers[LOG_DET]
    missing = rules.levels[which] - growth
    one.numbers[TAUGHT] = rules.bounds[which] - (1.0 - 1e-9) * missing
    return bool(missing < 0.0)
