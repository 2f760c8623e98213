from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcascade import POLICIES, Budget, PerCategory, Synthetic, TopK
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings
from fedcascade.learning.oracles import NO_ATTRIBUTES, ItemAttributes, Oracle
from fedcascade.learning.statistics import Statistics
from fedcascade.testing import check_environment, check_oracle, check_policy


@pytest.mark.parametrize("name", POLICIES)
def test_our_policies_keep_the_contract(name: str) -> None:
    check_policy(POLICIES[name])


@pytest.mark.parametrize(
    "world",
    [Synthetic(), Synthetic(users=3, clusters=3, dimension=4, items=(2, 7), features="gaussian", arrivals=[1, 2, 9])],
)
def test_our_environments_keep_the_contract(world: Synthetic) -> None:
    check_environment(world)


class Sequential(Synthetic):
    """Draws from a sequence instead of an address."""

    calls = 0

    def draw(self, round_: int) -> float:
        self.calls += 1
        return self.calls / 1e6


def test_an_environment_that_remembers_what_was_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="draw of round 1 must not depend on earlier calls"):
        check_environment(Sequential())


class Improbable(Synthetic):
    """Weights that are no probabilities."""

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return super().weights(round_, user, features) + 1.0


def test_weights_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="weights"):
        check_environment(Improbable())


class Forgetful(Partition):
    """Loses what it was given."""

    def add(self, agent: int, statistics: Statistics) -> None:
        self.holdings.gram[agent] *= 0.5


@dataclass(frozen=True)
class Lossy:
    """A grouping that loses data."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        return Forgetful(holdings, np.zeros(len(holdings), np.int64))


def test_a_policy_that_loses_data_is_refused() -> None:
    with pytest.raises(ValueError, match="sums of server and buffer must equal"):
        check_policy(replace(POLICIES["fedlinucb"], grouping=Lossy()))


@pytest.mark.parametrize("oracle", [TopK(length=1), TopK(), PerCategory(limit=2), Budget(length=3), Budget(budget=2.0)])
def test_our_oracles_keep_the_contract(oracle: Oracle) -> None:
    check_oracle(oracle)


class WorstFirst(TopK):
    """Chooses the items of the lowest scores, and calls itself exact."""

    def choose(
        self, scores: NDArray[np.float64], ties: NDArray[np.uint32], attributes: ItemAttributes = NO_ATTRIBUTES
    ) -> NDArray[np.intp]:
        return super().choose(-scores, ties)


class Repeating(TopK):
    """Names the best item again and again."""

    def choose(
        self, scores: NDArray[np.float64], ties: NDArray[np.uint32], attributes: ItemAttributes = NO_ATTRIBUTES
    ) -> NDArray[np.intp]:
        return np.zeros(2, np.intp)


class Careless(TopK):
    """Takes the worst list for the best."""

    def best(self, weights: NDArray[np.float64], attributes: ItemAttributes = NO_ATTRIBUTES) -> NDArray[np.intp]:
        return super().best(-weights)


@pytest.mark.parametrize(
    ("oracle", "words"),
    [(WorstFirst(), "alpha times the best"), (Repeating(), "distinct"), (Careless(), "best must be optimal")],
)
def test_an_oracle_that_breaks_a_promise_is_refused(oracle: TopK, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_oracle(oracle)
