"""Compiled rounds in the order of time, for systems in which one agent's exchange changes what others know.

Agents of such systems cannot be played ahead. Everything else is that of ``kernels``: the same round, the
same triggers, the same bits.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.exact.kernels import BETA, EXAMINED, LOG_DET, Fleet, Rules, Window, World
from fedcascade.simulation.exact.screening import Scratch, load, make_scratch

SYNCHRONISATION = 4  # a kind of trigger, beside those of kernels


class Turns(NamedTuple):
    """What is played: who arrives in each round, which agent serves, and what a synchronisation waits for."""

    users: NDArray[np.int64]
    agents: NDArray[np.int64]
    budget: float  # D of DisLinUCB; inf where nobody synchronises


class Own(NamedTuple):
    """Personal parts, as arrays over agents: all that an agent ever saw, and theta_u; no rows where there are none."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    theta: NDArray[np.float64]


@jit
def advance(
    world: World, rules: Rules, fleet: Fleet, own: Own, window: Window, turns: Turns, begin: int, end: int
) -> tuple[int, int]:
    """Play rounds until an agent wants to speak; returns how far it came and the kind of trigger, or -1."""
    scratch = make_scratch(world.thetas.shape[1], world.most_items, rules.length)
    return _advance(world, rules, fleet, own, window, turns, begin, end, scratch)


@jit_inline
def _advance(
    world: World,
    rules: Rules,
    fleet: Fleet,
    own: Own,
    window: Window,
    turns: Turns,
    begin: int,
    end: int,
    scratch: Scratch,
) -> tuple[int, int]:
    personal = own.theta.shape[0] > 0
    for i in range(begin, end):
        agent, t = turns.agents[i], window.first + i
        one = kernels.lent(fleet, agent)
        theta = world.thetas[turns.users[i]]
        for k in range(theta.size):
            scratch.true_theta[k] = theta[k]
        if personal:
            margin = load(one.theta, one.root, one.numbers[BETA], np.inf, scratch)
        else:
            margin = kernels._prepare(rules, one, scratch)
        kernels._play(world, rules, theta, one, window, scratch, t, margin)
        if personal:
            _see(own, agent, window, scratch, i)
        fired = kernels._fires(world.seed, rules, one, scratch, t)
        if fired < 0 and turns.budget < np.inf and _spent(rules, one, scratch) >= turns.budget:
            fired = SYNCHRONISATION
        if fired >= 0:
            return i + 1, fired
        if personal:
            settle(rules, one, own, agent)
    return end, -1


@jit_inline
def _spent(rules: Rules, one: Fleet, scratch: Scratch) -> float:
    """n ln(det(A) / det(A - buffer)), as ``SyncBudget`` has it."""
    kernels._factor(rules.lambda_, one, scratch.upper)
    growth = linear.compute_log_det(scratch.upper) - one.numbers[LOG_DET]
    return float(one.counts[EXAMINED] * growth)


@jit_inline
def _see(own: Own, agent: int, window: Window, scratch: Scratch, i: int) -> None:
    """The personal part learns from what the buffer has just learned from."""
    examined = window.examined[i]
    click = examined - 1 if window.clicked[i] else -1
    linear.add_examined(own.gram[agent], own.moment[agent], scratch.listed, examined, click)


@jit  # it makes arrays
def settle(rules: Rules, one: Fleet, own: Own, agent: int) -> None:
    """One turn of the alternating minimisation, by the same steps as ``Personal.beside``."""
    matrix = one.gram + one.buffer_gram
    moment = one.moment + (one.buffer_moment - linear.multiply(one.buffer_gram, own.theta[agent]))
    upper, root, own_root = np.empty_like(matrix), np.empty_like(matrix), np.empty_like(matrix)
    theta, own_theta = np.empty_like(moment), own.theta[agent]
    log_det = ridge_into(matrix, moment, rules.lambda_, upper, root, theta)
    left = own.moment[agent] - linear.multiply(own.gram[agent], theta)
    ridge_into(own.gram[agent], left, rules.lambda_, upper, own_root, own_theta)
    one.theta[:] = theta + own_theta
    one.root[:] = linear.combine_roots(root, own_root)
    inside = max(0.0, log_det + rules.beta_shift)
    one.numbers[BETA] = rules.beta_base + rules.beta_slope * np.sqrt(inside)


@jit_inline
def ridge_into(
    gram: NDArray[np.float64],
    moment: NDArray[np.float64],
    lambda_: float,
    upper: NDArray[np.float64],
    root: NDArray[np.float64],
    theta: NDArray[np.float64],
) -> float:
    """Fill the upper factor, the root and theta, by the same steps as ``Ridge``; returns the log-determinant."""
    for k in range(moment.size):
        for j in range(moment.size):
            upper[k, j] = gram[k, j]
        upper[k, k] += lambda_
    linear.factorise(upper)
    linear.invert_root_into(upper, root)
    linear.solve_into(root, moment, theta)
    return linear.compute_log_det(upper)
