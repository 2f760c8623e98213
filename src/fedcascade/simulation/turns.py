"""Compiled rounds in the order of time, for systems in which one agent's exchange changes what others know.

Agents of such systems cannot be played ahead. Everything else is that of ``kernels``: the same round, the
same triggers, the same bits.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.compiled import compiled
from fedcascade.learning import linear
from fedcascade.simulation import kernels
from fedcascade.simulation.kernels import BETA, EXAMINED, LOG_DET, Fleet, Rules, Window, World
from fedcascade.simulation.lists import Scratch, load, make_scratch

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


@compiled
def advance(
    world: World, rules: Rules, fleet: Fleet, own: Own, window: Window, turns: Turns, begin: int, end: int
) -> tuple[int, int]:
    """Play rounds until an agent wants to speak; returns how far it came and the kind of trigger, or -1."""
    scratch = make_scratch(world.thetas.shape[1], world.most_items, rules.length)
    personal = own.theta.shape[0] > 0
    for i in range(begin, end):
        agent, t = turns.agents[i], window.first + i
        one = kernels.one_of(fleet, agent)
        theta = world.thetas[turns.users[i]]
        scratch.true_theta[: theta.size] = theta
        if personal:
            margin = load(one.theta, one.root, one.numbers[BETA], scratch)
        else:
            margin = kernels._prepare(rules, one, scratch)
        kernels._play(world, rules, theta, one, window, scratch, t, margin)
        if personal:
            _see(own, agent, window, scratch, i)
        fired = kernels._fires(world.seed, rules, one, t)
        if fired < 0 and turns.budget < np.inf and _spent(rules, one) >= turns.budget:
            fired = SYNCHRONISATION
        if fired >= 0:
            return i + 1, fired
        if personal:
            settle(rules, one, own, agent)
    return end, -1


@compiled
def _spent(rules: Rules, one: Fleet) -> float:
    """n ln(det(A) / det(A - buffer)), as ``SyncBudget`` has it."""
    growth = linear.log_determinant(kernels._factor(rules.lambda_, one)) - one.numbers[LOG_DET]
    return float(one.counts[EXAMINED] * growth)


@compiled
def _see(own: Own, agent: int, window: Window, scratch: Scratch, i: int) -> None:
    """The personal part learns from what the buffer has just learned from."""
    examined = window.examined[i]
    click = examined - 1 if window.clicked[i] else -1
    linear.add_examined(own.gram[agent], own.moment[agent], scratch.listed, examined, click)


@compiled
def settle(rules: Rules, one: Fleet, own: Own, agent: int) -> None:
    """One turn of the alternating minimisation, by the same steps as ``Personal.beside``."""
    matrix = one.gram + one.buffer_gram
    moment = one.moment + (one.buffer_moment - linear.multiply(one.buffer_gram, own.theta[agent]))
    root, theta, log_det = linear.ridge(matrix, moment, rules.lambda_)
    left = own.moment[agent] - linear.multiply(own.gram[agent], theta)
    own_root, own_theta, _ = linear.ridge(own.gram[agent], left, rules.lambda_)
    own.theta[agent] = own_theta
    one.theta[:] = theta + own_theta
    one.root[:] = linear.joint_root(root, own_root)
    inside = max(0.0, log_det + rules.beta_shift)
    one.numbers[BETA] = rules.beta_base + rules.beta_slope * np.sqrt(inside)
