"""The systems of Table 1 as their papers describe them: determinants, inverses, download buffers.

Written for tests, from the papers, with numpy alone. What to compare: lists, exchanges and the partition.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import networkx as nx
import numpy as np

from fedcascade.environments.synthetic import Synthetic

See = Callable[[np.ndarray, float], None]
Beta = float | Callable[["Data"], float]


@dataclass
class Transcript:
    """What a transcription records of a run."""

    lists: list[list[int]] = field(default_factory=list)
    exchanges: list[tuple[int, int, str]] = field(default_factory=list)
    partition: list[int] = field(default_factory=list)


@dataclass
class Data:
    """A and b of a sum over observations."""

    A: np.ndarray
    b: np.ndarray
    n: int = 0

    @classmethod
    def zero(cls, d: int) -> "Data":
        return cls(np.zeros((d, d)), np.zeros(d))

    def plus(self, other: "Data") -> "Data":
        return Data(self.A + other.A, self.b + other.b, self.n + other.n)

    def minus(self, other: "Data") -> "Data":
        return Data(self.A - other.A, self.b - other.b, self.n - other.n)

    def see(self, x: np.ndarray, y: float) -> None:
        self.A += np.outer(x, x)
        self.b += x * y
        self.n += 1


def compute_det(data: Data, lambda_: float) -> float:
    return float(np.linalg.det(data.A + lambda_ * np.eye(len(data.b))))


def make_self_normalised_beta(lambda_: float, noise: float, delta: float) -> Callable[[Data], float]:
    """beta = noise sqrt(ln(det(V) / det(lambda I)) + 2 ln(1 / delta)) + sqrt(lambda), with V = lambda I + A."""

    def compute_beta(data: Data) -> float:
        growth = compute_det(data, lambda_) / lambda_ ** len(data.b)
        return float(noise * np.sqrt(np.log(growth) + 2 * np.log(1 / delta)) + np.sqrt(lambda_))

    return compute_beta


def play_round(world: Synthetic, t: int, K: int, lambda_: float, beta: Beta, data: Data, see: See) -> list[int]:
    """Show the K best by optimistic score, and let ``see`` have every item that was examined."""
    radius = beta(data) if callable(beta) else beta
    X = world.items(t).astype(np.float64)
    inverse = np.linalg.inv(data.A + lambda_ * np.eye(world.dimension))
    scores = X @ (inverse @ data.b) + radius * np.sqrt(np.einsum("ij,jk,ik->i", X, inverse, X))
    return show_best(world, t, K, np.minimum(scores, 1.0), see)


def show_best(world: Synthetic, t: int, K: int, scores: np.ndarray, see: See) -> list[int]:
    """Show the K items of the highest scores, and let ``see`` have every item that was examined."""
    user, X = world.arrival(t), world.items(t).astype(np.float64)
    ties = world.ties(t, len(X))
    order = sorted(range(len(X)), key=lambda i: (-scores[i], -int(ties[i]), i))[:K]
    weights = world.weights(t, user, world.items(t))
    attracted = world.attracted(t, np.array(order), weights[order])
    for item, attractive in zip(order, attracted, strict=True):
        see(X[item], float(attractive))
        if attractive:
            break
    return order


class AsyncClients:
    """What clients and the server know; the server keeps for each client what it has not been sent yet."""

    def __init__(self, world: Synthetic, lambda_: float, gamma_u: float, gamma_d: float) -> None:
        self.d, self.users = world.dimension, range(world.users)
        self.lambda_, self.gamma_u, self.gamma_d = lambda_, gamma_u, gamma_d
        self.local = [Data.zero(self.d) for _ in self.users]
        self.decided = [Data.zero(self.d) for _ in self.users]  # theta and AInv of a client come from this
        self.upload_buffer = [Data.zero(self.d) for _ in self.users]
        self.download_buffer = [Data.zero(self.d) for _ in self.users]
        self.server = Data.zero(self.d)

    def has_grown(self, now: Data, news: Data, gamma: float) -> bool:
        return bool(compute_det(now, self.lambda_) / compute_det(now.minus(news), self.lambda_) > gamma)

    def exchange(self, t: int, u: int, transcript: Transcript) -> None:
        """Li and Wang 2021, algorithm 1: client u uploads if it has learned enough; who misses enough is told."""
        if not self.has_grown(self.local[u], self.upload_buffer[u], self.gamma_u):
            return
        transcript.exchanges.append((t, u, "determinant"))
        self.server = self.server.plus(self.upload_buffer[u])
        for v in self.users:
            if v != u:
                self.download_buffer[v] = self.download_buffer[v].plus(self.upload_buffer[u])
        self.upload_buffer[u] = Data.zero(self.d)
        for v in self.users:
            if self.has_grown(self.server, self.download_buffer[v], self.gamma_d):
                transcript.exchanges.append((t, v, "push"))
                self.local[v] = self.local[v].plus(self.download_buffer[v])
                self.download_buffer[v] = Data.zero(self.d)


def play_async_linucb(
    world: Synthetic, *, rounds: int, K: int, lambda_: float, beta: Beta, gamma_u: float, gamma_d: float
) -> Transcript:
    """Li and Wang 2021, algorithm 1: the server keeps for each client what it has not been sent yet."""
    clients, transcript = AsyncClients(world, lambda_, gamma_u, gamma_d), Transcript()
    for t in range(1, rounds + 1):
        u = world.arrival(t)

        def see(x: np.ndarray, y: float, u: int = u) -> None:
            clients.local[u].see(x, y)
            clients.upload_buffer[u].see(x, y)

        transcript.lists.append(play_round(world, t, K, lambda_, beta, clients.decided[u], see))
        clients.decided[u] = clients.local[u].plus(Data.zero(world.dimension))  # in the update, not at a push
        clients.exchange(t, u, transcript)
    transcript.partition = [0] * world.users
    return transcript


def play_async_linucb_am(
    world: Synthetic, *, rounds: int, K: int, lambda_: float, beta: float, gamma_u: float, gamma_d: float
) -> Transcript:
    """Li and Wang 2021, for heterogeneous clients: as above, with a local part and rewards split by turns."""
    d, clients, transcript = world.dimension, AsyncClients(world, lambda_, gamma_u, gamma_d), Transcript()
    shared, upload_buffer = clients.local, clients.upload_buffer  # A_g, b_g as client i knows them
    own = [Data.zero(d) for _ in clients.users]  # A_i, b_i

    def fit(data: Data) -> np.ndarray:
        theta = np.linalg.solve(data.A + lambda_ * np.eye(d), data.b)
        return np.asarray(theta / max(1.0, float(np.linalg.norm(theta))))

    def see(u: int, x: np.ndarray, y: float) -> None:
        for data in (shared[u], own[u], upload_buffer[u]):
            data.see(x, 0.0)
        y_g, y_i = y, 0.0
        for _ in range(100):
            y_i = y - x @ fit(Data(shared[u].A, shared[u].b + x * y_g))
            y_g = y - x @ fit(Data(own[u].A, own[u].b + x * y_i))
        shared[u].b += x * y_g
        upload_buffer[u].b += x * y_g
        own[u].b += x * y_i

    for t in range(1, rounds + 1):
        u = world.arrival(t)
        X = world.items(t).astype(np.float64)
        scores = X @ (fit(clients.decided[u]) + fit(own[u]))
        for data in (clients.decided[u], own[u]):
            inverse = np.linalg.inv(data.A + lambda_ * np.eye(d))
            scores = scores + beta * np.sqrt(np.einsum("ij,jk,ik->i", X, inverse, X))
        transcript.lists.append(show_best(world, t, K, np.minimum(scores, 1.0), partial(see, u)))
        clients.decided[u] = shared[u].plus(Data.zero(d))
        clients.exchange(t, u, transcript)
    transcript.partition = [0] * world.users
    return transcript


def play_one_learner(world: Synthetic, *, rounds: int, K: int, lambda_: float, beta: Beta) -> Transcript:
    """Abbasi-Yadkori et al. 2011 and, with lists, Li et al. 2016: one learner for all users."""
    data, transcript = Data.zero(world.dimension), Transcript()
    for t in range(1, rounds + 1):
        transcript.lists.append(play_round(world, t, K, lambda_, beta, data, data.see))
    transcript.partition = [0] * world.users
    return transcript


def play_dislinucb(world: Synthetic, *, rounds: int, K: int, lambda_: float, beta: float, budget: float) -> Transcript:
    """Wang et al. 2019, for agents that are active one at a time."""
    d, users, transcript = world.dimension, range(world.users), Transcript()
    synchronised = Data.zero(d)
    fresh = [Data.zero(d) for _ in users]
    for t in range(1, rounds + 1):
        u = world.arrival(t)
        transcript.lists.append(play_round(world, t, K, lambda_, beta, synchronised.plus(fresh[u]), fresh[u].see))
        ratio = compute_det(synchronised.plus(fresh[u]), lambda_) / compute_det(synchronised, lambda_)
        if fresh[u].n * np.log(ratio) >= budget:
            transcript.exchanges += [(t, v, "synchronisation") for v in [u, *(v for v in users if v != u)]]
            transcript.exchanges += [(t, v, "synchronisation") for v in users]
            for v in users:
                synchronised = synchronised.plus(fresh[v])
                fresh[v] = Data.zero(d)
    transcript.partition = [0] * world.users
    return transcript


def play_club_cascade(
    world: Synthetic, *, rounds: int, K: int, lambda_: float, beta: float, alpha_d: float
) -> Transcript:
    """Li and Zhang 2018: serve with the component, learn, delete edges; F is that of their code."""
    d, users, transcript = world.dimension, range(world.users), Transcript()
    data = [Data.zero(d) for _ in users]
    G = nx.complete_graph(world.users)

    def theta(v: int) -> np.ndarray:
        return np.asarray(np.linalg.solve(data[v].A + lambda_ * np.eye(d), data[v].b))

    def width(v: int) -> float:
        return float(np.sqrt(1 + np.log(1 + data[v].n)) / (1 + data[v].n))

    for t in range(1, rounds + 1):
        u = world.arrival(t)
        component = Data.zero(d)
        for v in sorted(nx.node_connected_component(G, u)):
            component = component.plus(data[v])
        transcript.lists.append(play_round(world, t, K, lambda_, beta, component, data[u].see))
        transcript.exchanges.append((t, u, "forced"))
        G.remove_edges_from(
            [(u, v) for v in list(G[u]) if np.linalg.norm(theta(u) - theta(v)) > alpha_d * (width(u) + width(v))]
        )
    transcript.partition = label([frozenset(nx.node_connected_component(G, v)) for v in users])
    return transcript


def play_phase_fclub(
    world: Synthetic,
    *,
    rounds: int,
    K: int,
    lambda_: float,
    beta: float,
    alpha_d: float,
    alpha_2: float,
    local_servers: int,
    gamma_u: float,
    gamma_d: float,
) -> Transcript:
    """Liu et al. 2022: in a phase, local servers pool their users of a cluster; when one starts, split and merge."""
    d, users, transcript = world.dimension, range(world.users), Transcript()
    data, pulls = [Data.zero(d) for _ in users], [0 for _ in users]
    G = nx.Graph([(u, v) for u in users for v in users if u < v and u % local_servers == v % local_servers])
    G.add_nodes_from(users)
    cluster = [0 for _ in users]  # of each user
    V = {0: Data.zero(d)}  # the global server's, of each cluster
    S = {(s, 0): Data.zero(d) for s in range(local_servers)}  # what local server s has got of a cluster, and sent
    dS = {key: Data.zero(d) for key in S}  # what it has not sent

    def theta(total: Data) -> np.ndarray:
        return np.asarray(np.linalg.solve(total.A + lambda_ * np.eye(d), total.b))

    def is_far(one: list[int], other: list[int], alpha: float) -> bool:
        totals, widths = [], []
        for members in (one, other):
            total, T = Data.zero(d), sum(pulls[v] for v in members)
            for v in members:
                total = total.plus(data[v])
            totals.append(theta(total))
            widths.append(np.sqrt((1 + np.log(1 + T)) / (1 + T)))
        return float(np.linalg.norm(totals[0] - totals[1])) > alpha * float(sum(widths))

    def first(s: int, c: int) -> int:
        return min(v for v in users if v % local_servers == s and cluster[v] == c)

    def start_phase(t: int) -> None:
        G.remove_edges_from([(u, v) for u, v in list(G.edges) if is_far([u], [v], alpha_d)])
        local = sorted((sorted(part) for part in nx.connected_components(G)), key=lambda part: (-len(part), part[0]))
        transcript.exchanges += [(t, part[0], "synchronisation") for part in local]
        close = nx.Graph()
        close.add_nodes_from(range(len(local)))
        pairs = [(i, j) for i in range(len(local)) for j in range(i) if not is_far(local[i], local[j], alpha_2)]
        close.add_edges_from(pairs)
        merged = sorted((sorted(part) for part in nx.connected_components(close)), key=lambda p: (-len(p), p[0]))
        V.clear()
        S.clear()
        dS.clear()
        for c, parts in enumerate(merged):
            V[c] = Data.zero(d)
            for u in sorted(u for part in parts for u in local[part]):
                cluster[u] = c
                V[c] = V[c].plus(data[u])
        for c, s in sorted({(cluster[u], u % local_servers) for u in users}):
            S[s, c], dS[s, c] = V[c], Data.zero(d)
            transcript.exchanges.append((t, first(s, c), "push"))

    ends = 1
    for t in range(1, rounds + 1):
        u = world.arrival(t)
        key = u % local_servers, cluster[u]

        def see(x: np.ndarray, y: float, u: int = u, key: tuple[int, int] = key) -> None:
            data[u].see(x, y)
            dS[key].see(x, y)

        transcript.lists.append(play_round(world, t, K, lambda_, beta, S[key].plus(dS[key]), see))
        pulls[u] += 1
        if compute_det(S[key].plus(dS[key]), lambda_) / compute_det(S[key], lambda_) > gamma_u:
            transcript.exchanges.append((t, u, "determinant"))
            V[cluster[u]] = V[cluster[u]].plus(dS[key])
            S[key], dS[key] = S[key].plus(dS[key]), Data.zero(d)
            for s, c in sorted(S):
                if c == cluster[u] and compute_det(V[c], lambda_) / compute_det(S[s, c], lambda_) > gamma_d:
                    transcript.exchanges.append((t, first(s, c), "push"))
                    S[s, c] = V[c]
        if t == ends:
            start_phase(t)
            ends = 2 * ends + 1
    transcript.exchanges.sort(key=lambda line: (line[0], line[2] == "push"))  # as a ledger has those of one round
    transcript.partition = label(cluster)
    return transcript


def label(parts: list[Any]) -> list[int]:
    """Number parts in order of first appearance."""
    names: dict[Any, int] = {}
    return [names.setdefault(part, len(names)) for part in parts]
