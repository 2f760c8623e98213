"""Comparable models of other libraries, in the same environment: a linear model per user that scores items.

mabwiser and river score optimistically (mean plus spread); Vowpal Wabbit ranks by optimistic regression. None
of them has cascades or exchanges, so the loop shows the K best items and learns from the examined ones, as ``fedind``
does. Every loop is endless and pauses after every ``pause`` rounds.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from typing import Protocol

import numpy as np

from fedcascade import Synthetic
from fedcascade.learning.cascade import find_first_click, follow_cascade

K, LAMBDA, BETA = 4, 4.0, 10.5


class Learner(Protocol):
    """One user's model."""

    def score(self, items: np.ndarray) -> np.ndarray:
        """Return a score per row."""

    def learn(self, items: np.ndarray, rewards: np.ndarray) -> None:
        """Learn from examined rows and their rewards."""


class Mabwiser:
    """LinUCB with a single arm, the user's theta; the items are its contexts."""

    def __init__(self, dimension: int) -> None:
        from mabwiser.mab import MAB, LearningPolicy

        self.bandit = MAB([0], LearningPolicy.LinUCB(alpha=BETA, l2_lambda=LAMBDA))
        self.bandit.fit([0], [0.0], np.zeros((1, dimension)))

    def score(self, items: np.ndarray) -> np.ndarray:
        """Return the arm's upper bound in every context."""
        return np.array([expected[0] for expected in self.bandit.predict_expectations(items)])

    def learn(self, items: np.ndarray, rewards: np.ndarray) -> None:
        """Learn from all examined items at once."""
        self.bandit.partial_fit([0] * len(items), rewards, items)


class River:
    """BayesianLinearRegression, the model inside river's LinUCBDisjoint, called item by item."""

    def __init__(self, dimension: int) -> None:  # noqa: ARG002 (river finds it out)
        from river.linear_model import BayesianLinearRegression

        self.model = BayesianLinearRegression(alpha=LAMBDA, beta=1.0)

    def score(self, items: np.ndarray) -> np.ndarray:
        """Return mean plus spread."""
        bounds = (self.model.predict_one(dict(enumerate(row)), with_dist=True) for row in items.tolist())
        return np.array([bound.mu + BETA * bound.sigma for bound in bounds])

    def learn(self, items: np.ndarray, rewards: np.ndarray) -> None:
        """Learn from one item after another."""
        for row, reward in zip(items.tolist(), rewards.tolist(), strict=True):
            self.model.learn_one(dict(enumerate(row)), reward)


class VowpalWabbit:
    """cb_explore_adf with optimistic regression (RegCB): the items are actions with features."""

    def __init__(self, dimension: int) -> None:  # noqa: ARG002 (features are hashed)
        from vowpalwabbit import Workspace

        self.workspace = Workspace("--cb_explore_adf --regcbopt --noconstant -b 10 --quiet")

    def score(self, items: np.ndarray) -> np.ndarray:
        """Return the probability of each item."""
        return np.array(self.workspace.predict([_format_row(row) for row in items.tolist()]))

    def learn(self, items: np.ndarray, rewards: np.ndarray) -> None:
        """Learn from one labelled action after another; actions that were not shown are left out, which is faster."""
        for row, reward in zip(items.tolist(), rewards.tolist(), strict=True):
            self.workspace.learn([f"0:{-reward}:1.0 {_format_row(row)}"])


def _format_row(row: list[float]) -> str:
    return "|f " + " ".join(f"{k}:{value:.6f}" for k, value in enumerate(row))


PEERS: dict[str, tuple[str, Callable[[int], Learner]]] = {
    "mabwiser": ("LinUCB", Mabwiser),
    "river": ("BayesianLinearRegression of LinUCBDisjoint", River),
    "vowpalwabbit": ("cb_explore_adf --regcbopt", VowpalWabbit),
}


def list_installed() -> list[str]:
    """Return the peers that can be imported."""
    return [name for name in PEERS if find_spec(name) is not None]


def run_peer(name: str, environment: Synthetic, pause: int) -> Iterator[int]:
    """Let every user learn alone with a learner of that peer; yield the rounds after every ``pause``."""
    learners = [PEERS[name][1](environment.dimension) for _ in range(environment.users)]
    ties = np.random.default_rng(0)
    for t in count(1):
        user, items = environment.arrival(t), environment.items(t)
        scores = learners[user].score(items)
        chosen = np.lexsort((ties.random(len(items)), -scores))[:K]
        click = find_first_click(environment.attracted(t, chosen, environment.weights(t, user, items)[chosen]))
        seen = chosen[: follow_cascade(K, click).examined]
        rewards = np.zeros(len(seen))
        if click is not None:
            rewards[-1] = 1.0
        learners[user].learn(items[seen].astype(np.float64), rewards)
        if t % pause == 0:
            yield t
