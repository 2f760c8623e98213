"""Arguments of the exact engine's compiled rounds: environments, policies and agents as arrays and numbers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.behaviours import CompiledBehaviour, Logistic
from fedcascade.federation.changes import CompiledDetection
from fedcascade.federation.own_data import OwnData, Rows
from fedcascade.learning.confidence import BetaTerms
from fedcascade.learning.exploration import GREEDY
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.simulation.exact.screening import Indices, Scratch

DETERMINANT, AUXILIARY, DOUBLING, ALWAYS, SYNCHRONISATION, CHANGE = 0, 1, 2, 3, 4, 5  # kinds of triggers
LOG_DET, BETA, SQUARED_WIDTHS = 0, 1, 2  # indices into AgentState.numbers
EXAMINED, CLICKS, ROUNDS, ARRIVALS, SHORTFALL = 0, 1, 2, 3, 4  # indices into AgentState.counts


class CompiledEnvironment(NamedTuple):
    """An environment of clustered users as arrays and numbers."""

    seed: np.uint64
    lifted: bool
    fewest_items: int
    most_items: int
    thetas: NDArray[np.float64]
    catalogue: NDArray[np.float32]  # one column per item; without columns, items are random
    categories: int  # number of item categories
    behaviour: CompiledBehaviour | None = None  # click model; None is the cascade
    link: Logistic | None = None  # maps <theta, x> to a probability; None clips it
    values: NDArray[np.float64] | None = None  # of each user: the mean reward of a click is <theta, x>; None is 1


class CompiledLimits(NamedTuple):
    """The limits of an oracle: ``per_category`` is 0 with a budget or exploration."""

    per_category: int
    budget: float
    length: int
    exploration: int = GREEDY  # a constant of ``learning.exploration``
    level: float = 0.0  # temperature or epsilon


class CompiledPolicy(NamedTuple):
    """A policy as arrays and numbers. ``triggers`` are checked in order; ``levels`` are their constants."""

    length: int
    alpha: float  # of the oracle
    limits: CompiledLimits | None  # of the oracle; None for top-k
    triggers: NDArray[np.int64]
    levels: NDArray[np.float64]
    bounds: NDArray[np.float64]  # a determinant cannot exceed its level while SQUARED_WIDTHS is below this
    slack: float  # largest error of a width in single precision
    lambda_: float
    every_round: bool  # agents decide with download and buffer, so solve in each round
    beta: BetaTerms  # for agents that solve in each round
    sync_budget: float  # D of DisLinUCB; inf without synchronisations
    detection: CompiledDetection | None = None
    trust: float | None = None  # own rounds between two weighings of others' data


class AgentState(NamedTuple):
    """The state of one agent, or of all agents with one more leading axis."""

    gram: NDArray[np.float64]  # the download
    moment: NDArray[np.float64]
    theta: NDArray[np.float64]  # solved from the download
    root: NDArray[np.float64]
    buffer_gram: NDArray[np.float64]
    buffer_moment: NDArray[np.float64]
    numbers: NDArray[np.float64]  # LOG_DET of the download, BETA, SQUARED_WIDTHS since then
    counts: NDArray[np.int64]  # EXAMINED, CLICKS, ROUNDS and SHORTFALL (in GRIDs) of the buffer, total ARRIVALS


class PackedStates(NamedTuple):
    """The states of many agents with half of each symmetric matrix, without the decisions.

    A row of ``download`` or ``buffer`` is the upper triangle of the gram, then the moment. Engines that keep an
    ``AgentState`` of all agents have no rows here.
    """

    download: NDArray[np.float64]
    buffer: NDArray[np.float64]
    numbers: NDArray[np.float64]  # as in AgentState
    counts: NDArray[np.int64]


class PersonalState(NamedTuple):
    """Personal parts as arrays over agents: sums of all observations, and the inverse root. Empty without them."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    root: NDArray[np.float64]


class PushedState(NamedTuple):
    """Pushes that agents apply in their next round, as arrays over agents. Empty where downloads apply at once."""

    states: AgentState  # without buffers
    waits: NDArray[np.bool_]  # whether the agent has a push to apply


class CompiledSimulation(NamedTuple):
    """The arguments of compiled rounds; agents are the first axis of all but the first two."""

    environment: CompiledEnvironment
    policy: CompiledPolicy
    states: AgentState
    packed: PackedStates
    personal: PersonalState
    pushed: PushedState
    own: OwnData | None = None  # for agents that keep their own data apart
    first: Rows | None = None  # first items since the last upload, for private uploads


class Window(NamedTuple):
    """Consecutive rounds: the rounds and the progress of each agent, and the results."""

    first: int
    rounds: NDArray[np.int64]  # sorted by agent, then by time
    cursor: NDArray[np.int64]  # per agent, the next of its rounds
    stop: NDArray[np.int64]  # per agent, the end of its rounds
    upload_round: NDArray[np.int64]  # per agent, the round of its pending upload, or 0
    trigger: NDArray[np.int64]  # per agent, the kind of trigger that fired
    regret: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    examined: NDArray[np.int64]
    lists: NDArray[np.int32]
    chances: NDArray[np.float64]  # propensities of listed items; no rows without exploration
    reward: NDArray[np.float64]  # no rows if each click is worth 1


@jit
def sort_rounds(arrivals: Indices, first: int, users: int) -> tuple[Indices, Indices, Indices]:
    """Sort the rounds of a window by agent, then by time; return also the begin and end of each agent's rounds."""
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
    """Return a view of one agent's state; for Python code."""
    return AgentState(*(array[agent] for array in states))


@jit_inline
def view_agent(states: AgentState, agent: int) -> AgentState:
    """Return a view of one agent's state; for compiled code. It must not outlive ``states``."""
    return AgentState(
        states.gram[agent],
        states.moment[agent],
        states.theta[agent],
        states.root[agent],
        states.buffer_gram[agent],
        states.buffer_moment[agent],
        states.numbers[agent],
        states.counts[agent],
    )


@jit_inline
def unpack_agent(
    policy: CompiledPolicy, packed: PackedStates, agent: int, slot: AgentState, scratch: Scratch
) -> AgentState:
    """Fill ``slot`` with an agent's download, buffer and decision; return it with its numbers and counts."""
    gram, moment, theta, root = slot.gram, slot.moment, slot.theta, slot.root
    linear.unpack_sums(packed.download[agent], gram, moment)
    linear.unpack_sums(packed.buffer[agent], slot.buffer_gram, slot.buffer_moment)
    if not policy.every_round:
        linear.solve_ridge_into(gram, moment, policy.lambda_, scratch.upper, root, theta)
    numbers, counts = packed.numbers[agent], packed.counts[agent]
    return AgentState(gram, moment, theta, root, slot.buffer_gram, slot.buffer_moment, numbers, counts)
