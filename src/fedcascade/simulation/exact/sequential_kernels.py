"""Compiled rounds in order of time, for policies in which an exchange reaches other agents, and for late feedback.

Rounds and triggers are those of ``kernels``. Policies with an exchange in every round have their own loop: it keeps
the sums of the server in arrays, in the steps of ``Server.answer_arrival``, ``Agent`` and ``Server.receive``, until an
edge of the graph may have to go. Passing each round through the server in Python would take several times as long.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph.complete import GraphPartition, is_far_apart
from fedcascade.federation.holdings import HeldArrays, add_upload, compute_confidence_width
from fedcascade.federation.personal import split_rewards
from fedcascade.learning.confidence import compute_beta
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.grid import GRID
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

SHOWN, LEARNED = 0, 1  # indices into OpenLists.progress


class OpenLists(NamedTuple):
    """Lists that wait for their feedback, in a ring over rounds: the list of round t is at t modulo the size."""

    rounds: Indices  # whose feedback arrives before the end, in the order of its arrival
    due: Indices  # when it arrives
    progress: Indices  # the last round whose list was shown, and the number of learned lists
    agents: Indices
    arrivals: Indices  # number of the list among those of its agent
    clicks: Indices
    examined: Indices
    reward: NDArray[np.float64]
    features: NDArray[np.float32]
    clicked: NDArray[np.bool_]


def make_open_lists(first: int, due: Indices, length: int, dimension: int) -> OpenLists:
    """Make an empty ring for the rounds from ``first`` on; ``due`` has the round in which their feedback arrives."""
    order = np.argsort(due, kind="stable")
    order = order[due[order] < first + due.size]
    rounds, due = order + first, due[order]
    size = 1 + int((due - rounds).max(initial=0))
    agents, arrivals, clicks, examined = np.zeros((4, size), np.int64)
    features, clicked = np.zeros((size, length, dimension), np.float32), np.zeros((size, length), np.bool_)
    feedback = agents, arrivals, clicks, examined, np.ones(size), features, clicked
    return OpenLists(rounds, due, np.array([first - 1, 0]), *feedback)


@jit_no_refcount
def advance_by_time(
    simulation: CompiledSimulation, window: Window, users: Indices, agents: Indices, lists: OpenLists, begin: int,
    end: int, scratch: Scratch,
) -> tuple[int, int]:  # fmt: skip
    """Play rounds until the next upload; return the number of rounds done, and the kind of trigger or -1.

    Each round has a user and the agent that serves it. It is done when all feedback that arrives in it is learned.
    """
    progress, due = lists.progress, lists.due
    for i in range(begin, end):
        t = window.first + i
        if progress[SHOWN] < t:
            _show_list(simulation, window, users[i], agents[i], lists, t, scratch)
            progress[SHOWN] = t
        while progress[LEARNED] < due.size and due[progress[LEARNED]] <= t:
            progress[LEARNED] += 1
            fired = _learn_list(simulation, lists, lists.rounds[progress[LEARNED] - 1], t, scratch)
            if fired >= 0:
                has_more = progress[LEARNED] < due.size and due[progress[LEARNED]] <= t
                return i if has_more else i + 1, fired
    return end, -1


@jit_inline
def _show_list(
    simulation: CompiledSimulation, window: Window, user: int, agent: int, lists: OpenLists, t: int, scratch: Scratch
) -> None:
    """Show the list of a round, and keep it with its feedback."""
    environment, policy, place = simulation.environment, simulation.policy, t % lists.agents.size
    state = arrays.view_agent(simulation.states, agent)
    kernels.load_user(environment, user, scratch)
    if simulation.personal.root.shape[0] > 0:
        own_root = simulation.personal.root[agent]
        margin = load_decision(state.theta, state.root, state.numbers[arrays.BETA], scratch)
        listed, best = kernels.choose_list(environment, policy, own_root, user, state, scratch, t, margin)
    else:
        margin = kernels.prepare_decision(policy, state, scratch)
        listed, best = kernels.choose_list(environment, policy, None, user, state, scratch, t, margin)
    seen = kernels.show_list(environment, policy, user, window, scratch, t, listed, best)
    lists.agents[place], lists.arrivals[place] = agent, state.counts[arrays.ARRIVALS]
    lists.clicks[place], lists.examined[place], lists.reward[place] = seen
    for position in range(seen[1]):
        lists.clicked[place, position] = scratch.clicked[position]
        for k in range(scratch.listed_features.shape[1]):
            lists.features[place, position, k] = scratch.listed_features[position, k]


@jit_inline
def _learn_list(simulation: CompiledSimulation, lists: OpenLists, shown: int, t: int, scratch: Scratch) -> int:
    """Learn in round ``t`` from the list of round ``shown``; return the kind of trigger that fires, or -1."""
    policy, own, place = simulation.policy, simulation.own, shown % lists.agents.size
    agent, seen = lists.agents[place], (lists.clicks[place], lists.examined[place], lists.reward[place])
    state, has_personal = arrays.view_agent(simulation.states, agent), simulation.personal.root.shape[0] > 0
    for position in range(seen[1]):
        scratch.clicked[position] = lists.clicked[place, position]
        for k in range(scratch.listed_features.shape[1]):
            scratch.listed_features[position, k] = lists.features[place, position, k]
    if own is not None and policy.every_round:
        kernels.solve_decision(policy, state, scratch)  # may be older than feedback learned before
    if simulation.pushed.waits.size > 0:
        _apply_push(simulation.pushed, agent, state)
    if has_personal:
        _split_rewards(policy, state, simulation.personal, agent, scratch.listed_features, seen)
    else:
        kernels.learn_list(simulation.environment.behaviour, state, scratch, seen)
    kernels.keep_first(simulation.first, agent, scratch, seen)
    state.numbers[arrays.SQUARED_WIDTHS] = np.inf  # the widths under the present download are unknown
    detection, trust = policy.detection, policy.trust
    if kernels.follow_user(own, detection, trust, simulation, agent, state, scratch, seen) == kernels.CHANGED:
        return arrays.CHANGE
    arrivals = lists.arrivals[place]
    fired = kernels.find_trigger(simulation.environment.seed, policy, state, scratch, t, shown, arrivals)
    if fired < 0 and policy.sync_budget < np.inf:
        growth = kernels.compute_growth(policy.lambda_, state, scratch.upper)
        if state.counts[arrays.EXAMINED] * growth >= policy.sync_budget:  # as in ``SyncBudget``
            fired = arrays.SYNCHRONISATION
    if fired < 0 and has_personal:
        fit_personal(policy, state, simulation.personal, agent)
    return fired


@jit_inline
def _apply_push(pushed: PushedState, agent: int, state: AgentState) -> None:
    """Replace the download by a push that arrived before the agent's round, as ``agent.observe`` does."""
    if pushed.waits[agent]:
        pushed.waits[agent] = False
        push = arrays.view_agent(pushed.states, agent)
        for i in range(state.moment.size):
            state.moment[i], state.theta[i] = push.moment[i], push.theta[i]
            for j in range(state.moment.size):
                state.gram[i, j], state.root[i, j] = push.gram[i, j], push.root[i, j]
        for k in range(state.numbers.size):
            state.numbers[k] = push.numbers[k]


@jit  # allocates arrays
def _split_rewards(
    policy: CompiledPolicy,
    state: AgentState,
    personal: PersonalState,
    agent: int,
    listed: linear.Features,
    seen: kernels.Seen,
) -> None:
    """Add a list to the sums, as ``PersonalEstimate.observe`` does."""
    shared = state.gram + state.buffer_gram, state.moment + state.buffer_moment
    own, buffer = (personal.gram[agent], personal.moment[agent]), (state.buffer_gram, state.buffer_moment)
    split_rewards(shared, own, buffer, listed, seen[1], seen[0], seen[2], policy.lambda_)
    kernels.count_round(state, seen, int(seen[0] >= 0))


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

    ``counts`` of a group are examined items, clicks, rounds and its shortfall in GRIDs.
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
    gram, moment, counts = np.zeros((rows, d, d)), np.zeros((rows, d)), np.zeros((rows, 4), np.int64)
    for label, pool in groups.pools.items():
        gram[label], moment[label] = pool.gram, pool.moment
        counts[label] = pool.count, pool.clicks, pool.rounds, int(pool.shortfall / GRID)
    edges = groups.labels, groups.edges, groups.alpha_d, groups.is_narrow
    return Graph(groups.holdings.arrays, gram, moment, counts, *edges)


def write_back(graph: Graph, groups: GraphPartition) -> None:
    """Write pooled sums back to the server's state."""
    for label in groups.pools:
        gram, moment = graph.gram[label].copy(), graph.moment[label].copy()
        count, clicks, rounds, shortfall = graph.counts[label].tolist()
        groups.pools[label] = Statistics(gram, moment, count, clicks, rounds, GRID * shortfall)


@jit_no_refcount
def advance_every_round(
    simulation: CompiledSimulation, graph: Graph, window: Window, users: Indices, begin: int, scratch: Scratch
) -> int:
    """Play rounds until an edge may have to be removed; return the number of rounds done."""
    environment, policy = simulation.environment, simulation.policy
    state = arrays.view_agent(simulation.states, 0)
    for i in range(begin, users.size):
        user = users[i]
        label = graph.labels[user]
        gram, moment = graph.gram[label], graph.moment[label]
        log_det = linear.solve_ridge_into(gram, moment, policy.lambda_, scratch.upper, state.root, state.theta)
        state.numbers[arrays.BETA] = compute_beta(policy.beta, log_det)
        margin = load_decision(state.theta, state.root, state.numbers[arrays.BETA], scratch)
        kernels.load_user(environment, user, scratch)
        kernels.play_round(environment, policy, user, state, window, scratch, window.first + i, margin)
        for k in range(moment.size):
            moment[k] += state.buffer_moment[k]
            for j in range(moment.size):
                gram[k, j] += state.buffer_gram[k, j]
        for k in range(arrays.ARRIVALS):
            graph.counts[label, k] += state.counts[k]
        graph.counts[label, arrays.ARRIVALS] += state.counts[arrays.SHORTFALL]
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
    held.shortfall[user] += GRID * state.counts[arrays.SHORTFALL]
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
