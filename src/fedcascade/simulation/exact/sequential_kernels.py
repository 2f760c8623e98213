"""Compiled rounds in order of time, for policies in which an exchange reaches other agents.

Rounds and triggers are those of ``kernels``. Policies with an exchange in every round have their own loop: it keeps
the sums of the server in arrays, in the steps of ``Server.answer_arrival``, ``Agent`` and ``Server.receive``, until an
edge of the graph may have to go. Passing each round through the server in Python would take several times as long.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph.complete import GraphPartition
from fedcascade.federation.grouping.graph.search import is_far_apart
from fedcascade.federation.holdings import HeldArrays, add_upload, compute_confidence_width
from fedcascade.federation.personal import SplitSums, split_rewards
from fedcascade.learning.confidence import compute_beta
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.simulation.exact import arrays, kernels
from fedcascade.simulation.exact.arrays import (
    AgentState,
    CompiledPolicy,
    CompiledSimulation,
    PersonalState,
    PushedState,
    Window,
)
from fedcascade.simulation.exact.screening import Indices, Scratch, load_decision


class Schedule(NamedTuple):
    """The user and the serving agent of each round of a window."""

    users: Indices
    agents: Indices


@jit_no_refcount
def advance_by_time(
    simulation: CompiledSimulation, window: Window, schedule: Schedule, begin: int, end: int, scratch: Scratch
) -> tuple[int, int]:
    """Play rounds until the next upload; return the number of rounds done, and the kind of trigger or -1."""
    environment, policy, personal = simulation.environment, simulation.policy, simulation.personal
    has_pushes = simulation.pushed.waits.size > 0
    has_personal = personal.root.shape[0] > 0
    for i in range(begin, end):
        agent, t = schedule.agents[i], window.first + i
        state = arrays.view_agent(simulation.states, agent)
        theta = environment.thetas[schedule.users[i]]
        for k in range(theta.size):
            scratch.true_theta[k] = theta[k]
        if has_personal:
            _play_personal_round(simulation, theta, agent, window, scratch, t)
        else:
            margin = kernels.prepare_decision(policy, state, scratch)
            kernels.play_round(environment, policy, theta, state, window, scratch, t, margin)
            if has_pushes:
                _apply_push(simulation.pushed, agent, state)
        fired = kernels.find_trigger(environment.seed, policy, state, scratch, t)
        if fired < 0 and policy.sync_budget < np.inf and _compute_spent(policy, state, scratch) >= policy.sync_budget:
            fired = arrays.SYNCHRONISATION
        if fired >= 0:
            return i + 1, fired
        if has_personal:
            fit_personal(policy, state, personal, agent)
    return end, -1


@jit_inline
def _apply_push(pushed: PushedState, agent: int, state: AgentState) -> None:
    """Replace the download by a push that arrived before the agent's round, as ``agent.observe`` does."""
    if pushed.waits[agent]:
        pushed.waits[agent] = False
        for i in range(state.moment.size):
            state.moment[i], state.theta[i] = pushed.moment[agent, i], pushed.theta[agent, i]
            for j in range(state.moment.size):
                state.gram[i, j], state.root[i, j] = pushed.gram[agent, i, j], pushed.root[agent, i, j]
        for k in range(state.numbers.size):
            state.numbers[k] = pushed.numbers[agent, k]
        state.numbers[arrays.SQUARED_WIDTHS] = np.inf  # those of the buffer under the new download are unknown


@jit_inline
def _compute_spent(policy: CompiledPolicy, state: AgentState, scratch: Scratch) -> float:
    """Return n ln(det(A) / det(A - buffer)), as in ``SyncBudget``."""
    kernels.factorise_with_buffer(policy.lambda_, state, scratch.upper)
    growth = linear.compute_log_det(scratch.upper) - state.numbers[arrays.LOG_DET]
    return float(state.counts[arrays.EXAMINED] * growth)


@jit_no_refcount
def _play_personal_round(
    simulation: CompiledSimulation, theta: linear.Vector, agent: int, window: Window, scratch: Scratch, t: int
) -> None:
    """Play one round of an agent with a personal part."""
    environment, policy, personal = simulation.environment, simulation.policy, simulation.personal
    state = arrays.view_agent(simulation.states, agent)
    margin = load_decision(state.theta, state.root, state.numbers[arrays.BETA], np.inf, scratch)
    listed, best = kernels.choose_list(environment, policy, personal.root[agent], theta, state, scratch, t, margin)
    click, examined = kernels.show_list(environment, policy, theta, window, scratch, t, listed, best)
    if simulation.pushed.waits.size > 0:
        _apply_push(simulation.pushed, agent, state)
    _split_rewards(policy, state, personal, agent, scratch.listed_features, examined, click)
    kernels.count_round(state, examined, int(click >= 0))


@jit  # allocates arrays
def _split_rewards(
    policy: CompiledPolicy,
    state: AgentState,
    personal: PersonalState,
    agent: int,
    listed: linear.Features,
    examined: int,
    click: int,
) -> None:
    """Add a list to the sums, as ``PersonalEstimate.observe`` does."""
    gram, moment = state.gram + state.buffer_gram, state.moment + state.buffer_moment
    own_gram, own_moment = personal.gram[agent], personal.moment[agent]
    sums = SplitSums(gram, moment, own_gram, own_moment, state.buffer_gram, state.buffer_moment)
    split_rewards(sums, listed, examined, click, 1.0, policy.lambda_)


@jit  # allocates arrays
def fit_personal(policy: CompiledPolicy, state: AgentState, personal: PersonalState, agent: int) -> None:
    """Compute both parts of an agent's estimate, as ``PersonalEstimate.join`` does."""
    gram, moment = state.gram + state.buffer_gram, state.moment + state.buffer_moment
    upper, theta, own_theta = np.empty_like(gram), np.empty_like(moment), np.empty_like(moment)
    log_det = linear.solve_ridge_into(gram, moment, policy.lambda_, upper, state.root, theta)
    own_gram, own_moment = personal.gram[agent], personal.moment[agent]
    linear.solve_ridge_into(own_gram, own_moment, policy.lambda_, upper, personal.root[agent], own_theta)
    state.theta[:] = linear.limit_length(theta) + linear.limit_length(own_theta)
    state.numbers[arrays.BETA] = compute_beta(policy.beta, log_det)


class Graph(NamedTuple):
    """The server's state: data and estimates of agents, the sums of groups, and the edges.

    ``counts`` of a group are examined items, clicks and rounds.
    """

    held: HeldArrays
    gram: NDArray[np.float64]
    moment: linear.Matrix
    counts: Indices
    labels: Indices
    edges: NDArray[np.bool_]
    alpha_d: float
    is_narrow: bool


def copy_graph(groups: GraphPartition) -> Graph:
    """Return the server's state as arrays: copies of pooled sums, views of everything else."""
    d, rows = groups.holdings.dimension, max(groups.pools) + 1
    gram, moment, counts = np.zeros((rows, d, d)), np.zeros((rows, d)), np.zeros((rows, 3), np.int64)
    for label, pool in groups.pools.items():
        gram[label], moment[label], counts[label] = pool.gram, pool.moment, (pool.count, pool.clicks, pool.rounds)
    edges = groups.labels, groups.edges, groups.alpha_d, groups.is_narrow
    return Graph(groups.holdings.arrays, gram, moment, counts, *edges)


def write_back(graph: Graph, groups: GraphPartition) -> None:
    """Write pooled sums back to the server's state."""
    for label in groups.pools:
        gram, moment = graph.gram[label].copy(), graph.moment[label].copy()
        groups.pools[label] = Statistics(gram, moment, *graph.counts[label].tolist())


@jit_no_refcount
def advance_every_round(
    simulation: CompiledSimulation, graph: Graph, window: Window, users: Indices, begin: int, scratch: Scratch
) -> int:
    """Play rounds until an edge may have to be removed; return the number of rounds done."""
    environment, policy = simulation.environment, simulation.policy
    state = arrays.view_agent(simulation.states, 0)
    for i in range(begin, users.size):
        user = users[i]
        label, theta = graph.labels[user], environment.thetas[user]
        gram, moment = graph.gram[label], graph.moment[label]
        log_det = linear.solve_ridge_into(gram, moment, policy.lambda_, scratch.upper, state.root, state.theta)
        state.numbers[arrays.BETA] = compute_beta(policy.beta, log_det)
        margin = load_decision(state.theta, state.root, state.numbers[arrays.BETA], np.inf, scratch)
        for k in range(theta.size):
            scratch.true_theta[k] = theta[k]
        kernels.play_round(environment, policy, theta, state, window, scratch, window.first + i, margin)
        for k in range(theta.size):
            moment[k] += state.buffer_moment[k]
            for j in range(theta.size):
                gram[k, j] += state.buffer_gram[k, j]
        for k in range(3):
            graph.counts[label, k] += state.counts[k]
        _hold_buffer(graph.held, user, state, policy.lambda_)
        state.buffer_gram[:] = 0.0
        state.buffer_moment[:] = 0.0
        state.counts[:] = 0
        if _may_differ(graph, user):
            return i + 1
    return int(users.size)


@jit_inline
def _hold_buffer(held: HeldArrays, user: int, state: AgentState, lambda_: float) -> None:
    """Add the buffer to the data held of a user, as ``Holdings.add`` does."""
    held.length[user] = add_upload(
        held.gram[user], held.moment[user], held.theta[user], state.buffer_gram, state.buffer_moment, lambda_
    )
    held.observations[user] += state.counts[arrays.EXAMINED]
    held.clicks[user] += state.counts[arrays.CLICKS]
    held.rounds[user] += state.counts[arrays.ROUNDS]
    held.width[user] = compute_confidence_width(held.observations[user])


@jit_inline
def _may_differ(graph: Graph, user: int) -> bool:
    """Return whether Algorithm 3, line 9, holds for any neighbour."""
    theta, own_width = graph.held.theta, _get_edge_width(graph, user)
    for neighbour in range(graph.labels.size):
        if graph.edges[user, neighbour] and is_far_apart(
            theta[neighbour], _get_edge_width(graph, neighbour), theta[user], own_width, graph.alpha_d
        ):
            return True
    return False


@jit_inline
def _get_edge_width(graph: Graph, user: int) -> float:
    """Return F(T) of a user, as ``GraphPartition.revise`` computes it."""
    width = graph.held.width[user]
    return float(width / np.sqrt(1.0 + graph.held.observations[user]) if graph.is_narrow else width)
