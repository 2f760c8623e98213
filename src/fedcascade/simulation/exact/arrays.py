"""What the exact engine's compiled rounds read and write: worlds, policies and agents as arrays and numbers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.behaviours import CompiledBehaviour, Logistic
from fedcascade.federation.changes import CompiledDetection
from fedcascade.federation.own_data import OwnData
from fedcascade.federation.trust import CompiledTrust
from fedcascade.learning.confidence import BetaTerms
from fedcascade.learning.exploration import GREEDY
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.simulation.exact.screening import Indices, Scratch

DETERMINANT, AUXILIARY, DOUBLING, ALWAYS, SYNCHRONISATION, CHANGE = 0, 1, 2, 3, 4, 5  # kinds of triggers
LOG_DET, BETA, SQUARED_WIDTHS, BOUND_WIDTH = 0, 1, 2, 3  # places in AgentState.numbers
EXAMINED, CLICKS, ROUNDS, ARRIVALS = 0, 1, 2, 3  # places in AgentState.counts


class ItemCache(NamedTuple):
    """Items of recent rounds, for runs on one thread whose worlds show the same ones; without rows none are kept.

    Round t is kept in row t modulo the number of rows.
    """

    rounds: NDArray[np.int64]  # the round that each row holds, or 0
    steps: NDArray[np.int16]  # per row, the memory of ``Scratch.columns`` in steps of the grid


class CompiledEnvironment(NamedTuple):
    """An environment of clustered users as arrays and numbers."""

    seed: np.uint64
    lifted: bool
    fewest_items: int
    most_items: int
    thetas: NDArray[np.float64]
    catalogue: NDArray[np.float32]  # one column per item; without columns, rounds draw fresh items
    categories: int  # that items belong to
    cache: ItemCache
    behaviour: CompiledBehaviour | None = None  # how users click; None is the cascade
    link: Logistic | None = None  # from <theta, x> to a probability; None clips it


class CompiledLimits(NamedTuple):
    """The limits of an oracle: so many of a category, or 0 where there is a budget or an exploration instead."""

    per_category: int
    budget: float
    length: int
    exploration: int = GREEDY  # how lists are chosen by chance, as ``learning.exploration`` numbers the ways
    level: float = 0.0  # temperature or epsilon


class CompiledPolicy(NamedTuple):
    """A policy as arrays and numbers. ``triggers`` are tried in order; ``levels`` are their constants."""

    length: int
    alpha: float  # of the oracle
    limits: CompiledLimits | None  # of the oracle; None for the best items
    gammas: NDArray[np.float64] | None  # discounts of positions; None where all count alike
    triggers: NDArray[np.int64]
    levels: NDArray[np.float64]
    bounds: NDArray[np.float64]  # while SQUARED_WIDTHS is below it, a determinant cannot have passed its level
    slack: float  # how far a width in single precision may be off
    lambda_: float
    every_round: bool  # agents decide with download and buffer
    beta: BetaTerms  # for agents that decide anew in every round
    sync_budget: float  # D of DisLinUCB; inf where no agent calls for a synchronisation
    detection: CompiledDetection | None = None
    trust: CompiledTrust | None = None


class AgentState(NamedTuple):
    """The state of one agent; of all agents, where every array has one more axis in front."""

    gram: NDArray[np.float64]  # the download
    moment: NDArray[np.float64]
    theta: NDArray[np.float64]  # the decision made from it
    root: NDArray[np.float64]
    buffer_gram: NDArray[np.float64]
    buffer_moment: NDArray[np.float64]
    numbers: NDArray[np.float64]  # LOG_DET of the download, BETA, SQUARED_WIDTHS since, BOUND_WIDTH or 0 if not found
    counts: NDArray[np.int64]  # of the buffer: items examined, clicks, rounds; and arrivals in all


class PackedStates(NamedTuple):
    """The states of many agents, as little of each as an agent that comes back needs: half of a symmetric matrix.

    A row of ``download`` and of ``buffer`` has the upper triangle of the gram and then the moment. There are no rows in
    engines that keep an ``AgentState`` of all agents. Memory that no agent has written to is not taken.
    """

    download: NDArray[np.float64]
    buffer: NDArray[np.float64]
    numbers: NDArray[np.float64]  # as in AgentState
    counts: NDArray[np.int64]


class PersonalState(NamedTuple):
    """Personal parts, as arrays over agents: all that an agent ever saw, its shares of rewards, and the inverse root.

    There are no rows where there are no such parts.
    """

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    root: NDArray[np.float64]


class CompiledSimulation(NamedTuple):
    """What compiled rounds read and write; agents are the first axis of all but the first two."""

    environment: CompiledEnvironment
    policy: CompiledPolicy
    states: AgentState
    packed: PackedStates
    personal: PersonalState
    own: OwnData | None = None  # where agents keep their own data apart


class Window(NamedTuple):
    """Consecutive rounds: which agent plays which of them, how far each agent is, and what came out."""

    first: int
    rounds: NDArray[np.int64]  # sorted by agent, then by time
    cursor: NDArray[np.int64]  # per agent, the next of its rounds
    stop: NDArray[np.int64]  # per agent, the end of its rounds
    upload_round: NDArray[np.int64]  # per agent, the round in which it wants to upload, or 0
    trigger: NDArray[np.int64]  # per agent, which kind of trigger fired
    regret: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    examined: NDArray[np.int64]
    lists: NDArray[np.int32]
    chances: NDArray[np.float64]  # of the items of lists, where they are chosen by chance; else no rows


@jit
def sort_rounds(arrivals: Indices, first: int, users: int) -> tuple[Indices, Indices, Indices]:
    """Sort the rounds of a window by agent, then by time; also returns where each agent's rounds begin and end."""
    begin = np.zeros(users + 1, np.int64)
    for user in arrivals:
        begin[user + 1] += 1
    for user in range(users):
        begin[user + 1] += begin[user]
    following = begin[:-1].copy()
    rounds = np.empty(arrivals.size, np.int64)
    for i in range(arrivals.size):
        rounds[following[arrivals[i]]] = first + i
        following[arrivals[i]] += 1
    return rounds, begin[:-1].copy(), begin[1:].copy()


def select_agent(states: AgentState, agent: int) -> AgentState:
    """The state of one agent, in the memory of ``states``; for Python code."""
    return AgentState(*(array[agent] for array in states))


@jit_inline
def view_agent(states: AgentState, agent: int) -> AgentState:
    """The state of one agent, in the memory of ``states``; for compiled code, which must not outlive ``states``."""
    gram, moment, theta, root = states.gram[agent], states.moment[agent], states.theta[agent], states.root[agent]
    buffer_gram, buffer_moment = states.buffer_gram[agent], states.buffer_moment[agent]
    numbers, counts = states.numbers[agent], states.counts[agent]
    return AgentState(gram, moment, theta, root, buffer_gram, buffer_moment, numbers, counts)


@jit_inline
def unpack_agent(policy: CompiledPolicy, packed: PackedStates, agent: int, room: AgentState, scratch: Scratch) -> None:
    """Fill ``room`` with an agent's download, buffer and decision; its numbers and counts stay where they are."""
    linear.unpack_sums(packed.download[agent], room.gram, room.moment)
    linear.unpack_sums(packed.buffer[agent], room.buffer_gram, room.buffer_moment)
    if not policy.every_round:
        linear.solve_ridge_into(room.gram, room.moment, policy.lambda_, scratch.upper, room.root, room.theta)


@jit_inline
def place_agent(room: AgentState, packed: PackedStates, agent: int) -> AgentState:
    """The matrices and vectors of ``room``, with the numbers and counts of an agent in the memory of ``packed``."""
    gram, moment, theta, root = room.gram, room.moment, room.theta, room.root
    numbers, counts = packed.numbers[agent], packed.counts[agent]
    return AgentState(gram, moment, theta, root, room.buffer_gram, room.buffer_moment, numbers, counts)
