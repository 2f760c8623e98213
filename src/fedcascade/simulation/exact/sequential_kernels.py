"""Compiled rounds in the order of time, for systems in which one agent's exchange changes what others know.

The round, the triggers and their arithmetic are those of ``kernels``, so every bit is the same.

A system that exchanges in every round has a loop of its own, which plays until its server finds that two users differ.
Between two such findings the server only adds up, so its sums live in arrays here and are written back before it looks
at its graph; by the same steps as ``Server.answer_arrival``, ``Agent`` and ``Server.receive``. Otherwise each round
would go through the server in Python, and club-cascade would take several times as long (decision 11).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.distance import is_far_apart
from fedcascade.federation.grouping.graph import GraphPartition
from fedcascade.federation.holdings import compute_confidence_width
from fedcascade.federation.personal import SplitSums, split_rewards
from fedcascade.learning.confidence import compute_beta
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.simulation.exact import arrays, kernels
from fedcascade.simulation.exact.arrays import AgentState, CompiledPolicy, CompiledSimulation, PersonalState, Window
from fedcascade.simulation.exact.constrained import select_constrained
from fedcascade.simulation.exact.ranking import compute_best_reward, select_pair_list
from fedcascade.simulation.exact.screening import Indices, Scratch, load_decision, screen_items


class Schedule(NamedTuple):
    """Who arrives in each round of a window, and which agent serves."""

    users: Indices
    agents: Indices


@jit_no_refcount
def advance_by_time(
    simulation: CompiledSimulation, window: Window, schedule: Schedule, begin: int, end: int, scratch: Scratch
) -> tuple[int, int]:
    """Play rounds until an agent wants to upload; returns how many are done, and the kind of trigger or -1."""
    environment, policy, personal = simulation.environment, simulation.policy, simulation.personal
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
        fired = kernels.find_trigger(environment.seed, policy, state, scratch, t)
        if fired < 0 and policy.sync_budget < np.inf and _compute_spent(policy, state, scratch) >= policy.sync_budget:
            fired = arrays.SYNCHRONISATION
        if fired >= 0:
            return i + 1, fired
        if has_personal:
            fit_personal(policy, state, personal, agent)
    return end, -1


@jit_inline
def _compute_spent(policy: CompiledPolicy, state: AgentState, scratch: Scratch) -> float:
    """n ln(det(A) / det(A - buffer)), as ``SyncBudget`` has it."""
    kernels.factorise_with_buffer(policy.lambda_, state, scratch.upper)
    growth = linear.compute_log_det(scratch.upper) - state.numbers[arrays.LOG_DET]
    return float(state.counts[arrays.EXAMINED] * growth)


@jit_no_refcount
def _play_personal_round(
    simulation: CompiledSimulation,
    theta: linear.Vector,
    agent: int,
    window: Window,
    scratch: Scratch,
    t: int,
) -> None:
    """Play one round of an agent with a personal part: two widths score an item, and its reward is split."""
    environment, policy, personal = simulation.environment, simulation.policy, simulation.personal
    state = arrays.view_agent(simulation.states, agent)
    seed, beta, own_root = environment.seed, state.numbers[arrays.BETA], personal.root[agent]
    items = kernels.draw_items(environment, scratch, t)
    listed, best = select_constrained(
        policy.limits,
        seed,
        t,
        items,
        environment.categories,
        state.theta,
        state.root,
        own_root,
        beta,
        environment.behaviour,
        environment.link,
        theta,
        scratch,
    )
    if listed < 0:
        listed = min(policy.length, items)
        margin = load_decision(state.theta, state.root, beta, np.inf, scratch)
        screen_items(items, listed, beta, margin, scratch)
        select_pair_list(seed, t, items, state.theta, state.root, own_root, beta, scratch)
        best = compute_best_reward(environment.behaviour, environment.link, theta, items, policy.length, scratch)
    click, examined = kernels.show_list(environment, policy, theta, window, scratch, t, listed, best)
    _split_rewards(policy, state, personal, agent, scratch.listed_features, examined, click)
    kernels.count_round(state, examined, int(click >= 0))


@jit  # it makes arrays
def _split_rewards(
    policy: CompiledPolicy,
    state: AgentState,
    personal: PersonalState,
    agent: int,
    listed: linear.Features,
    examined: int,
    click: int,
) -> None:
    """Learn from a list as ``PersonalEstimate.observe`` does."""
    gram, moment = state.gram + state.buffer_gram, state.moment + state.buffer_moment
    own_gram, own_moment = personal.gram[agent], personal.moment[agent]
    sums = SplitSums(gram, moment, own_gram, own_moment, state.buffer_gram, state.buffer_moment)
    split_rewards(sums, listed, examined, click, policy.lambda_)


@jit  # it makes arrays
def fit_personal(policy: CompiledPolicy, state: AgentState, personal: PersonalState, agent: int) -> None:
    """Both parts of an agent's estimate, in the arithmetic of ``PersonalEstimate.join``."""
    gram, moment = state.gram + state.buffer_gram, state.moment + state.buffer_moment
    upper, theta, own_theta = np.empty_like(gram), np.empty_like(moment), np.empty_like(moment)
    log_det = linear.solve_ridge_into(gram, moment, policy.lambda_, upper, state.root, theta)
    own_gram, own_moment = personal.gram[agent], personal.moment[agent]
    linear.solve_ridge_into(own_gram, own_moment, policy.lambda_, upper, personal.root[agent], own_theta)
    state.theta[:] = linear.limit_length(theta) + linear.limit_length(own_theta)
    state.numbers[arrays.BETA] = compute_beta(policy.beta, log_det)


class Sums(NamedTuple):
    """Statistics as arrays over agents or groups; ``counts`` are items examined, clicks and rounds."""

    gram: linear.Matrix
    moment: linear.Vector
    counts: Indices


class Graph(NamedTuple):
    """What the server knows of its agents: their sums and estimates, their groups, and who may be alike."""

    held: Sums
    theta: linear.Matrix
    pooled: Sums
    labels: Indices
    edges: NDArray[np.bool_]
    alpha_d: float


def copy_graph(groups: GraphPartition) -> Graph:
    """The server's state as arrays: copies of counts and pooled sums, the server's own memory for everything else."""
    held, d = groups.holdings, groups.holdings.dimension
    labels, members = np.unique(groups.labels, return_index=True)
    rows = int(labels.max()) + 1
    pooled = Sums(np.zeros((rows, d, d)), np.zeros((rows, d)), np.zeros((rows, 3), np.int64))
    for label, member in zip(labels, members.tolist(), strict=True):
        statistics = groups.pooled(member)
        pooled.gram[label], pooled.moment[label] = statistics.gram, statistics.moment
        pooled.counts[label] = statistics.count, statistics.clicks, statistics.rounds
    counts = np.stack([held.count, held.clicks, held.rounds], axis=1)
    sums = Sums(held.gram, held.moment, counts)
    return Graph(sums, held.theta, pooled, groups.labels, groups.edges, groups.alpha_d)


def write_back(graph: Graph, groups: GraphPartition) -> None:
    """Write counts and pooled sums back into the server's state."""
    held, pooled = groups.holdings, graph.pooled
    held.count[:], held.clicks[:], held.rounds[:] = graph.held.counts.T
    held.length[:] = np.linalg.norm(held.theta, axis=1)
    held.width[:] = [compute_confidence_width(int(count)) for count in held.count]
    for label in np.unique(graph.labels):
        counts = [int(count) for count in pooled.counts[label]]
        groups.pools[int(label)] = Statistics(pooled.gram[label].copy(), pooled.moment[label].copy(), *counts)


@jit_no_refcount
def advance_every_round(
    simulation: CompiledSimulation, graph: Graph, window: Window, users: Indices, begin: int, scratch: Scratch
) -> int:
    """Play rounds until an edge may have to go; returns how many are done."""
    environment, policy = simulation.environment, simulation.policy
    state = arrays.view_agent(simulation.states, 0)
    for i in range(begin, users.size):
        user, label, theta = users[i], graph.labels[users[i]], environment.thetas[users[i]]
        gram, moment = graph.pooled.gram[label], graph.pooled.moment[label]
        log_det = linear.solve_ridge_into(gram, moment, policy.lambda_, scratch.upper, state.root, state.theta)
        state.numbers[arrays.BETA] = compute_beta(policy.beta, log_det)
        margin = load_decision(state.theta, state.root, state.numbers[arrays.BETA], np.inf, scratch)
        for k in range(theta.size):
            scratch.true_theta[k] = theta[k]
        kernels.play_round(environment, policy, theta, state, window, scratch, window.first + i, margin)
        _add_buffer(graph.held, user, state)
        _add_buffer(graph.pooled, label, state)
        state.buffer_gram[:] = 0.0
        state.buffer_moment[:] = 0.0
        state.counts[:] = 0
        gram, moment = graph.held.gram[user], graph.held.moment[user]
        linear.solve_ridge_into(gram, moment, policy.lambda_, scratch.upper, scratch.root_workspace, graph.theta[user])
        if _may_differ(graph, user):
            return i + 1
    return int(users.size)


@jit_inline
def _add_buffer(sums: Sums, row: int, state: AgentState) -> None:
    gram, moment = sums.gram[row], sums.moment[row]
    for i in range(moment.size):
        moment[i] += state.buffer_moment[i]
        for j in range(moment.size):
            gram[i, j] += state.buffer_gram[i, j]
    for k in range(3):
        sums.counts[row, k] += state.counts[k]


@jit_inline
def _may_differ(graph: Graph, user: int) -> bool:
    """Algorithm 3, line 9, for any neighbour."""
    own = compute_confidence_width(graph.held.counts[user, 0])
    for neighbour in range(graph.labels.size):
        if graph.edges[user, neighbour]:
            width = compute_confidence_width(graph.held.counts[neighbour, 0])
            if is_far_apart(graph.theta[neighbour], width, graph.theta[user], own, graph.alpha_d):
                return True
    return False
