"""Plays runs with known clusters and looks at both sides of the paper's lemmas in every round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.clustered import Clustered
from fedcascade.federation.agent import Agent
from fedcascade.federation.delivery import run_exchange
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.confidence import PAPERS_BETA, Oful, ProblemSize, Theory
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.learning.theory.guarantee import Settings
from fedcascade.simulation.reference import Round, make_agents, play_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation

Matrix = NDArray[np.float64]

LEMMAS = {
    "lemma_1": "Lemma 1: every estimate is within beta of the truth",
    "oful": "OFUL: so is the estimate from all that a cluster saw, with its own radius",
    "lemma_2_1_a": "Lemma 2.1, equation 12a: no buffer is larger than alpha_c times what the server holds",
    "lemma_2_1_c": "Lemma 2.1, equation 12c: all that a cluster saw is at most 1 + |V| alpha_c times a download",
    "lemma_2_2": "Lemma 2.2: the noise of no buffer is larger than its radius",
}


@dataclass(frozen=True)
class Coverage:
    """In how many runs a lemma held in all rounds, and how near it came to failing: its left side by its right one."""

    runs: int
    held: int
    largest_ratio: float


def measure_coverage(
    build_world: Callable[[int], Clustered],
    seeds: Sequence[int],
    *,
    rounds: int,
    list_length: int,
    settings: Settings,
    delta: float,
) -> dict[str, Coverage]:
    """Play one run per seed; a lemma that holds with probability 1 - delta should hold in about as many of them."""
    ratios = [
        find_largest_ratios(build_world(seed), rounds=rounds, list_length=list_length, settings=settings, delta=delta)
        for seed in seeds
    ]
    columns = ((name, [ratio[name] for ratio in ratios]) for name in LEMMAS)
    return {name: Coverage(len(own), sum(ratio <= 1.0 for ratio in own), max(own)) for name, own in columns}


def find_largest_ratios(
    world: Clustered, *, rounds: int, list_length: int, settings: Settings, delta: float
) -> dict[str, float]:
    """For each lemma, the largest ratio of its left side to its right one in a run with known clusters."""
    constants = {"alpha_c": settings.alpha_c, "lambda_": settings.lambda_, "beta": PAPERS_BETA}
    policy, oracle = POLICIES["known-clusters"].with_known_constants(constants), TopK(length=list_length)
    simulation = prepare_simulation(Scenario(world, policy, rounds, oracle, checkpoints=1))
    agents = make_agents(simulation, oracle)
    watch = _Watch(world, simulation.problem, settings, delta)
    for t in range(1, rounds + 1):
        user = world.arrival(t)
        agent = agents[user]
        played = play_round(world, oracle, t, user, agent.recommend, agent.observe)
        if played.upload is not None:
            run_exchange(simulation.server, agents, played.upload)
        watch.look(t, user, played, agent, simulation.server.groups.pooled(user))
    return watch.largest


@dataclass
class _Watch:
    """What nobody in the system knows: the noise, and all that a cluster saw."""

    world: Clustered
    problem: ProblemSize
    settings: Settings
    delta: float
    largest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LEMMAS, 0.0))

    def __post_init__(self) -> None:
        d, alpha_c = self.world.dimension, self.settings.alpha_c
        self.noise_of = np.zeros((self.world.users, d))  # g_loc: the noise in the buffer of each agent
        self.seen_by = {int(cluster): Statistics.zero(d) for cluster in np.unique(self.world.clusters)}
        self.theory = Theory(alpha_c=alpha_c, noise=self.settings.noise, delta=self.delta)
        self.oful = Oful(noise=self.settings.noise, delta=self.delta)
        seen = self.problem.list_length * self.problem.rounds
        logs = d * math.log1p(seen / (alpha_c * self.settings.lambda_ * d)) + 2 * math.log(1 / self.delta)
        logs += 2 * math.log(self.problem.rounds**2 * self.problem.users)
        self.local_radius = self.settings.noise * math.sqrt(logs)

    def look(self, t: int, user: int, played: Round, agent: Agent, pooled: Statistics) -> None:
        """Compare both sides of each lemma after a round of ``user``, whose group has ``pooled`` at the server."""
        lambda_, alpha_c, cluster = self.settings.lambda_, self.settings.alpha_c, int(self.world.clusters[user])
        theta, features = self.world.get_thetas(t)[user], played.shown.features
        self.noise_of[user] += _sum_noise(features, played, self.world.weights(t, user, features))
        self.seen_by[cluster] = self.seen_by[cluster].observe(features, played.click)
        everything = Ridge(self.seen_by[cluster], lambda_)
        self._note("oful", _distance(everything, theta) / self.oful.radius(everything, self.problem))
        buffer = agent.buffer if played.upload is None else played.upload.statistics
        local = alpha_c * lambda_ * np.eye(theta.size) + buffer.gram
        noise = self.noise_of[user]
        self._note("lemma_2_2", math.sqrt(noise @ np.linalg.solve(local, noise)) / self.local_radius)
        if played.upload is None:
            self._note("lemma_2_1_a", _find_largest_share(buffer.gram, pooled.gram, lambda_) / alpha_c)
            return
        self.noise_of[user] = 0.0
        radius = self.theory.radius(agent.download, self.problem)
        self._note("lemma_1", _distance(agent.download, theta) / radius)
        members = int(np.sum(self.world.clusters == cluster))
        whole = lambda_ * np.eye(theta.size) + self.seen_by[cluster].gram
        share = _find_largest_share(whole, agent.download.statistics.gram, lambda_)
        self._note("lemma_2_1_c", share / (1 + members * alpha_c))

    def _note(self, name: str, ratio: float) -> None:
        self.largest[name] = max(self.largest[name], ratio)


def _sum_noise(features: NDArray[np.float32], played: Round, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of (w - expected w) x over what was examined."""
    clicks = np.zeros(played.examined)
    if played.click is not None:
        clicks[played.click] = 1.0
    noise: NDArray[np.float64] = (clicks - weights[: played.examined]) @ features[: played.examined].astype(np.float64)
    return noise


def _distance(ridge: Ridge, theta: NDArray[np.float64]) -> float:
    """||estimate - theta|| in the norm of Sigma."""
    error = ridge.theta - theta
    return math.sqrt(error @ ridge.statistics.gram @ error + ridge.lambda_ * error @ error)


def _find_largest_share(part: Matrix, gram: Matrix, lambda_: float) -> float:
    """The least s with part <= s (lambda I + gram)."""
    root = np.linalg.cholesky(lambda_ * np.eye(len(gram)) + gram)
    half = np.linalg.solve(root, part)
    return float(np.linalg.eigvalsh(np.linalg.solve(root, half.T))[-1])
