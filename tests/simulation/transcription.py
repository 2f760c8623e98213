"""Algorithms 1-3 of the paper and its ForceComm, transcribed line by line: slow, plain, and nobody's relative.

Written from the paper and its settled open points alone, before reading the package; it shares no code with it except
the world. "A1.5" means Algorithm 1, line 5; "F" is ForceComm-LocalAgent. The paper's indices t and t + 1 are dropped:
whatever a line does not mention keeps its value (which is what A2.7-11 and A2.16-17 say at length).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.environment import Environment

Array: TypeAlias = NDArray[np.float64]
System: TypeAlias = Literal["fedc3ucb-h", "force-comm", "no-auxiliary", "fedlinucb", "fedind"]
Reading: TypeAlias = Literal["add-first", "aggregate-first"]

SYSTEMS: tuple[System, ...] = ("fedc3ucb-h", "force-comm", "no-auxiliary", "fedlinucb", "fedind")
GRAPH_SYSTEMS: tuple[System, ...] = ("fedc3ucb-h", "force-comm", "no-auxiliary")


@dataclass(frozen=True)
class Constants:
    """The inputs of Algorithm 1; p_t = p_scale ln(t) / t."""

    lambda_: float = 4.0
    alpha_c: float = 1.0
    alpha_d: float = 7.0
    beta: float = 10.5
    p_scale: float = 3.0


@dataclass
class State:
    """Everything that agents and the server hold, indexed by user."""

    Sigma: Array  # downloaded: what agent u decides with
    theta: Array
    Sigma_loc: Array  # buffered
    b_loc: Array
    T_loc: NDArray[np.int64]
    count: NDArray[np.int64]  # arrivals of u, for ForceComm
    Sigma_ser: Array  # at the server
    b_ser: Array
    T_ser: NDArray[np.int64]
    G: nx.Graph


@dataclass
class Transcript:
    """What happened."""

    exchanges: list[tuple[int, int, str]] = field(default_factory=list)
    lists: list[list[int]] = field(default_factory=list)
    regret: float = 0.0
    clicks: int = 0
    observations: int = 0
    deletions: int = 0
    partition: list[int] = field(default_factory=list)


def play(
    world: Environment,
    system: System,
    *,
    rounds: int,
    K: int,
    constants: Constants,
    order: Reading = "add-first",
    after_exchange: Callable[[int, State], None] | None = None,
) -> Transcript:
    """Algorithm 1 over ``rounds`` rounds; ``after_exchange`` sees the round and the state after every exchange."""
    state = start(world.users, world.dimension, system, constants.lambda_)
    story = Transcript()
    for t in range(1, rounds + 1):  # A1.4
        u_t = world.arrival(t)  # A1.5
        cause = local_agent(world, t, u_t, system, K, constants, state, story)  # A1.6
        if cause is not None:  # A1.7
            sent = state.Sigma_loc[u_t], state.b_loc[u_t], int(state.T_loc[u_t])  # A1.8
            Sigma_clu, theta_clu = server(u_t, sent, system, constants, order, state, story)  # A1.9-10
            state.Sigma_loc[u_t], state.b_loc[u_t], state.T_loc[u_t] = 0.0, 0.0, 0  # A1.11
            state.Sigma[u_t], state.theta[u_t] = Sigma_clu, theta_clu  # A1.11
            story.exchanges.append((t, u_t, cause))
            if after_exchange is not None:
                after_exchange(t, state)
    story.partition = labels(state.G)
    return story


def start(users: int, d: int, system: System, lambda_: float) -> State:
    """A1.2-3; settled: Sigma_u starts at lambda I. FedInd's agents stand alone, in a graph without edges."""
    return State(
        Sigma=np.array([lambda_ * np.eye(d) for _ in range(users)]),
        theta=np.zeros((users, d)),
        Sigma_loc=np.zeros((users, d, d)),
        b_loc=np.zeros((users, d)),
        T_loc=np.zeros(users, np.int64),
        count=np.zeros(users, np.int64),
        Sigma_ser=np.zeros((users, d, d)),
        b_ser=np.zeros((users, d)),
        T_ser=np.zeros(users, np.int64),
        G=nx.empty_graph(users) if system == "fedind" else nx.complete_graph(users),
    )


def local_agent(
    world: Environment,
    t: int,
    u_t: int,
    system: System,
    K: int,
    constants: Constants,
    state: State,
    story: Transcript,
) -> str | None:
    """Algorithm 2 and ForceComm-LocalAgent: plays the round; the cause of an exchange, or None for ComInd = 0."""
    lambda_, beta = constants.lambda_, constants.beta
    state.count[u_t] += 1  # F.1

    # A2.1
    features = world.items(t)
    x = features.astype(np.float64)

    # A2.2; FedInd decides with all that its agent has seen so far
    Sigma, theta = state.Sigma[u_t], state.theta[u_t]
    if system == "fedind":
        Sigma = lambda_ * np.eye(world.dimension) + state.Sigma_loc[u_t]
        theta = np.linalg.solve(Sigma, state.b_loc[u_t])
    Sigma_inv = np.linalg.inv(Sigma)
    widths = np.sqrt(np.sum((x @ Sigma_inv) * x, axis=1))
    U = np.minimum(x @ theta + beta * widths, 1.0)

    # A2.3; settled: ties are broken by the round's own words, the larger first
    a = top(U, world.ties(t, len(x)), K)

    # A2.4; settled: without a click, O_t = len(a)
    w_bar = world.weights(t, u_t, features)
    w = world.attracted(t, a, w_bar[a])
    O_t = int(np.argmax(w)) + 1 if w.any() else len(a)

    story.lists.append(a.tolist())
    story.clicks += int(w.any())
    story.observations += O_t
    story.regret += f(np.sort(w_bar)[::-1][:K]) - f(w_bar[a])

    # A2.5-6
    state.T_loc[u_t] += O_t
    for k in range(O_t):
        state.Sigma_loc[u_t] += np.outer(x[a[k]], x[a[k]])
        state.b_loc[u_t] += float(w[k]) * x[a[k]]

    # A2.12, drawn in every round
    p = world.draw(t)

    # A2.13, F.13
    if system == "fedind":
        return None
    log_det_new = np.linalg.slogdet(state.Sigma[u_t] + state.Sigma_loc[u_t]).logabsdet
    log_det_old = np.linalg.slogdet(state.Sigma[u_t]).logabsdet
    if log_det_new > np.log(1.0 + constants.alpha_c) + log_det_old:
        return "determinant"
    if system == "fedc3ucb-h" and p < min(constants.p_scale * np.log(t) / t, 1.0):
        return "auxiliary"
    if system == "force-comm" and state.count[u_t] in {2**n for n in range(64)}:
        return "forced"
    return None


def server(
    u_t: int,
    sent: tuple[Array, Array, int],
    system: System,
    constants: Constants,
    order: Reading,
    state: State,
    story: Transcript,
) -> tuple[Array, Array]:
    """Algorithm 3: what the server sends back to ``u_t``. FedLinUCB's never deletes an edge."""
    Sigma_loc, b_loc, T_loc = sent
    eye = constants.lambda_ * np.eye(len(b_loc))

    # A3.1: of G_t, the graph before this upload's deletions
    V_t = sorted(nx.node_connected_component(state.G, u_t))

    # A3.2 where it is written, if the order is read literally
    if order == "aggregate-first":
        Sigma_clu, theta_clu = aggregate(V_t, eye, state)

    # A3.3-4
    state.T_ser[u_t] += T_loc
    state.Sigma_ser[u_t] += Sigma_loc
    state.b_ser[u_t] += b_loc

    # A3.2 as settled: the upload is added first
    if order == "add-first":
        Sigma_clu, theta_clu = aggregate(V_t, eye, state)

    # A3.5-13
    deletion_set = []
    if system != "fedlinucb":
        theta_ser_t = np.linalg.solve(eye + state.Sigma_ser[u_t], state.b_ser[u_t])
        for u in state.G.neighbors(u_t):
            theta_ser = np.linalg.solve(eye + state.Sigma_ser[u], state.b_ser[u])
            threshold = constants.alpha_d * (F(int(state.T_ser[u_t])) + F(int(state.T_ser[u])))
            if np.linalg.norm(theta_ser_t - theta_ser) > threshold:
                deletion_set.append((u_t, u))
    state.G.remove_edges_from(deletion_set)
    story.deletions += len(deletion_set)
    return Sigma_clu, theta_clu


def aggregate(V: list[int], eye: Array, state: State) -> tuple[Array, Array]:
    """A3.2: Sigma_clu and theta_clu over the users ``V``."""
    Sigma_clu = eye + sum(state.Sigma_ser[u] for u in V)
    b_clu = sum(state.b_ser[u] for u in V)
    return Sigma_clu, np.linalg.inv(Sigma_clu) @ b_clu


def F(T: int) -> float:  # noqa: N802 - the paper's name
    """The right side of A3.9, one term."""
    return float(np.sqrt((1.0 + np.log(1.0 + T)) / (1.0 + T)))


def f(w: Array) -> float:
    """The reward of a list whose items have the weights ``w``."""
    return float(1.0 - np.prod(1.0 - w))


def top(U: Array, words: NDArray[np.uint32], K: int) -> NDArray[np.intp]:
    """The ``K`` items of largest U, equal ones by the larger word."""
    ranked = sorted(range(len(U)), key=lambda i: (U[i], words[i]), reverse=True)
    return np.array(ranked[:K], np.intp)


def labels(G: nx.Graph) -> list[int]:
    """The component of every user, numbered in order of first appearance."""
    components = sorted(nx.connected_components(G), key=min)
    return [next(j for j, members in enumerate(components) if u in members) for u in range(len(G))]
