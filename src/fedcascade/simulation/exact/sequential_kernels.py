"""Compiled rounds in the order of time, for systems in which one agent's exchange changes what others know.

The round, the triggers and their arithmetic are those of ``kernels``, so every bit is the same.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.confidence import compute_beta
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.exact.kernels import (
    BETA,
    AgentState,
    CompiledPolicy,
    CompiledSimulation,
    PersonalState,
    Window,
)
from fedcascade.simulation.exact.screening import Scratch, load_decision


class Schedule(NamedTuple):
    """Who arrives in each round of a window, and which agent serves."""

    users: NDArray[np.int64]
    agents: NDArray[np.int64]


@jit_no_refcount
def advance_by_time(
    simulation: CompiledSimulation, window: Window, schedule: Schedule, begin: int, end: int, scratch: Scratch
) -> tuple[int, int]:
    """Play rounds until an agent wants to upload; returns how many are done, and the kind of trigger or -1."""
    environment, policy, personal = simulation.environment, simulation.policy, simulation.personal
    has_personal = personal.theta.shape[0] > 0
    for i in range(begin, end):
        agent, t = schedule.agents[i], window.first + i
        state = kernels.view_agent(simulation.states, agent)
        theta = environment.thetas[schedule.users[i]]
        for k in range(theta.size):
            scratch.true_theta[k] = theta[k]
        if has_personal:
            margin = load_decision(state.theta, state.root, state.numbers[BETA], np.inf, scratch)
        else:
            margin = kernels.prepare_decision(policy, state, scratch)
        kernels.play_round(environment, policy, theta, state, window, scratch, t, margin)
        if has_personal:
            _learn_personal(personal, agent, window, scratch, i)
        fired = kernels.find_trigger(environment.seed, policy, state, scratch, t)
        if fired < 0 and policy.sync_budget < np.inf and _compute_spent(policy, state, scratch) >= policy.sync_budget:
            fired = kernels.SYNCHRONISATION
        if fired >= 0:
            return i + 1, fired
        if has_personal:
            fit_personal(policy, state, personal, agent)
    return end, -1


@jit_inline
def _compute_spent(policy: CompiledPolicy, state: AgentState, scratch: Scratch) -> float:
    """n ln(det(A) / det(A - buffer)), as ``SyncBudget`` has it."""
    kernels.factorise_with_buffer(policy.lambda_, state, scratch.upper)
    growth = linear.compute_log_det(scratch.upper) - state.numbers[kernels.LOG_DET]
    return float(state.counts[kernels.EXAMINED] * growth)


@jit_inline
def _learn_personal(personal: PersonalState, agent: int, window: Window, scratch: Scratch, i: int) -> None:
    """Add to the personal part what the buffer has just learned from."""
    examined = window.examined[i]
    click = examined - 1 if window.clicked[i] else -1
    linear.add_examined(personal.gram[agent], personal.moment[agent], scratch.listed_features, examined, click)


@jit  # it makes arrays
def fit_personal(policy: CompiledPolicy, state: AgentState, personal: PersonalState, agent: int) -> None:
    """One step of the alternating minimisation, in the arithmetic of ``PersonalEstimate.fit_to``."""
    matrix = state.gram + state.buffer_gram
    moment = state.moment + (state.buffer_moment - linear.multiply(state.buffer_gram, personal.theta[agent]))
    upper, root, own_root = np.empty_like(matrix), np.empty_like(matrix), np.empty_like(matrix)
    theta, own_theta = np.empty_like(moment), personal.theta[agent]
    log_det = linear.solve_ridge_into(matrix, moment, policy.lambda_, upper, root, theta)
    unexplained = personal.moment[agent] - linear.multiply(personal.gram[agent], theta)
    linear.solve_ridge_into(personal.gram[agent], unexplained, policy.lambda_, upper, own_root, own_theta)
    state.theta[:] = theta + own_theta
    state.root[:] = linear.combine_roots(root, own_root)
    state.numbers[BETA] = compute_beta(policy.beta, log_det)
