"""What advice may cost: agents that follow others in most rounds, with and without a test by own data.

Lists of one item, 20 fixed items in 5 dimensions, the best one better by a gap. Advice is as bad as it can be: the
worst item, or the worst one that passes the test. ``python tools/safety_study.py`` prints the table of
docs/explanation-living-populations.md.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

ITEMS, DIMENSION, ROUNDS, SEEDS = 20, 5, 20_000, range(5)
Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]  # lower and upper, of each item
Advise = Callable[[NDArray[np.float64], Bounds], int]


def advise_worst(means: NDArray[np.float64], bounds: Bounds) -> int:  # noqa: ARG001
    """The item that is clicked least."""
    return int(means.argmin())


def advise_worst_allowed(means: NDArray[np.float64], bounds: Bounds) -> int:
    """The item that is clicked least of those that own data do not refute."""
    lower, upper = bounds
    return int(np.where(upper >= lower.max(), means, np.inf).argmin())


def advise_best(means: NDArray[np.float64], bounds: Bounds) -> int:  # noqa: ARG001
    """The item that is clicked most."""
    return int(means.argmax())


def play(share: float, advise: Advise, *, is_tested: bool, beta: float, seed: int) -> float:
    """The regret of an agent that plays by own data in a share of the rounds, and follows advice in the others."""
    random = np.random.Generator(np.random.Philox(key=seed))
    items = random.normal(size=(ITEMS, DIMENSION))
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    theta = items[0] * 0.4
    means = 0.5 + items @ theta  # of the first item 0.9
    inverse, moment, regret = np.eye(DIMENSION), np.zeros(DIMENSION), 0.0
    draws, turns = random.random(ROUNDS), random.random(ROUNDS)
    for click, turn in zip(draws, turns, strict=True):
        centre = 0.5 + items @ (inverse @ moment)
        width = beta * np.sqrt(np.einsum("id,de,ie->i", items, inverse, items))
        bounds = centre - width, centre + width
        chosen = int(bounds[1].argmax())
        if turn >= share:
            advised = advise(means, bounds)
            if not is_tested or bounds[1][advised] >= bounds[0].max():
                chosen = advised
        item = items[chosen]
        product = inverse @ item
        inverse -= np.outer(product, product) / (1.0 + item @ product)
        moment += item * (float(click < means[chosen]) - 0.5)
        regret += means.max() - means[chosen]
    return regret


def list_rows() -> Iterator[tuple[str, float, float]]:
    """Each line of the table: what is played, and the regret with beta 3 and with beta 1."""
    cases: list[tuple[str, float, Advise, bool]] = [("own data in all rounds", 1.0, advise_worst, False)]
    cases += [
        (f"own data in {share:g} of rounds, worst advice, no test", share, advise_worst, False) for share in (0.5, 0.1)
    ]
    cases += [
        (f"own data in {share:g} of rounds, worst advice that passes the test", share, advise_worst_allowed, True)
        for share in (0.5, 0.1, 0.02)
    ]
    cases += [("own data in 0.1 of rounds, the best advice", 0.1, advise_best, True)]
    for words, share, advise, is_tested in cases:
        regrets = [
            float(np.mean([play(share, advise, is_tested=is_tested, beta=beta, seed=seed) for seed in SEEDS]))
            for beta in (3.0, 1.0)
        ]
        yield words, regrets[0], regrets[1]


if __name__ == "__main__":
    print("| what | regret, beta 3 | regret, beta 1 |\n|---|---|---|")
    for words, careful, bold in list_rows():
        print(f"| {words} | {careful:,.0f} | {bold:,.0f} |", flush=True)
