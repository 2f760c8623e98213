"""Lists chosen by chance: frequencies equal the stated chances, and both engines choose the same lists."""

from itertools import permutations

import numpy as np
import pytest

from fedcascade.learning.exploration import EpsilonMixed, PlackettLuce, lower_exploration
from fedcascade.learning.oracles import PerCategory

SCORES = np.array([0.3, 0.9, 0.6, 0.6])


def slow_chance(oracle: PlackettLuce | EpsilonMixed, chosen: tuple[int, ...]) -> float:
    """The chance of a list from the definitions."""
    if isinstance(oracle, PlackettLuce):
        chance, left = 1.0, list(range(SCORES.size))
        for item in chosen:
            strengths = np.exp(SCORES[left] / oracle.temperature)
            chance *= float(np.exp(SCORES[item] / oracle.temperature) / strengths.sum())
            left.remove(item)
        return chance
    lists = list(permutations(range(SCORES.size), len(chosen)))
    # 1 is best, 2 and 3 are equally good: each of the two orders comes half of the time.
    greedy = [(1, 2, 3), (1, 3, 2)] if len(chosen) == 3 else [(1, 2), (1, 3)]
    return oracle.epsilon / len(lists) + (1 - oracle.epsilon) * (chosen in greedy) / 2


ORACLES = [PlackettLuce(length=2, temperature=0.4), EpsilonMixed(length=3, epsilon=0.25)]


@pytest.mark.parametrize("oracle", ORACLES)
def test_propensities_are_those_of_the_definition(oracle: PlackettLuce | EpsilonMixed) -> None:
    lists = list(permutations(range(SCORES.size), oracle.length))
    chances = [float(oracle.propensities(SCORES, np.array(chosen)).prod()) for chosen in lists]
    assert np.allclose(chances, [slow_chance(oracle, chosen) for chosen in lists], atol=1e-12)
    assert sum(chances) == pytest.approx(1.0)


@pytest.mark.parametrize("oracle", ORACLES)
def test_lists_come_as_often_as_their_propensities_say(oracle: PlackettLuce | EpsilonMixed) -> None:
    draws = 20_000
    ties = np.random.default_rng(5).integers(0, 2**32, (draws, SCORES.size), np.uint32)
    counts: dict[tuple[int, ...], int] = {}
    for words in ties:
        chosen = tuple(oracle.choose(SCORES, words).tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
    for chosen in permutations(range(SCORES.size), oracle.length):
        chance = slow_chance(oracle, chosen)
        spread = 4.5 * np.sqrt(draws * chance * (1 - chance))
        assert abs(counts.get(chosen, 0) - draws * chance) <= spread + 1


def test_low_temperatures_choose_the_best() -> None:
    oracle = PlackettLuce(length=2, temperature=1e-4)
    scores = np.array([0.1, 0.5, 0.9])
    assert oracle.choose(scores, np.array([5, 2**31, 7], np.uint32)).tolist() == [2, 1]
    assert oracle.propensities(scores, np.array([2, 1])).tolist() == [1.0, 1.0]
    assert oracle.propensities(scores, np.array([0, 1])).tolist()[0] == 0.0


def test_an_oracle_of_unknown_chances_is_refused() -> None:
    with pytest.raises(ValueError, match="no known propensities"):
        lower_exploration(PerCategory())
    with pytest.raises(ValueError, match="temperature must be a finite number > 0"):
        PlackettLuce(temperature=0.0)
    with pytest.raises(ValueError, match="epsilon must be in"):
        EpsilonMixed(epsilon=2.0)
