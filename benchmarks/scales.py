"""What an agent that learns alone gains from other scales: ``python benchmarks/scales.py``.

``population`` takes one variance c (1 - c) for all clicks of a user, with c its click rate, and a prior N(0, I / d) of
theta. Printed is the regret of other choices as a share of that one's, with a 95% interval over paired users: a weight
1 / (p (1 - p)) for each observation, with p the agent's estimate when it showed the item, and longer or shorter thetas.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.intervals import estimate_ratio
from fedcascade.learning.statistics import estimate_noise

Array = NDArray[np.float64]
BETA = 1.5  # standard deviations, as in ``population``


@dataclass(frozen=True)
class Variant:
    """Scales of an agent: the least variance of an observation as a share of all clicks', and the length of theta."""

    name: str
    floor: float | None = None  # None: one variance for all observations
    length: float = 1.0


PRESENT = Variant("as it is")
VARIANTS = (
    PRESENT,
    Variant("weights, floor 0.5", floor=0.5),
    Variant("weights, floor 0.25", floor=0.25),
    Variant("weights, floor 0.1", floor=0.1),
    Variant("theta of length 0.5", length=0.5),
    Variant("theta of length 2", length=2.0),
    Variant("theta of length 4", length=4.0),
)


@dataclass(frozen=True)
class Place:
    """An environment for one user: ``draw`` returns a function from rounds to features and click probabilities."""

    name: str
    length: int
    rounds: int
    draw: Callable[[np.random.Generator], Callable[[], tuple[Array, Array]]]


def lift(directions: Array) -> Array:
    """Return unit vectors (z, 1) / sqrt(2)."""
    unit = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    return np.concatenate([unit, np.ones((*unit.shape[:-1], 1))], axis=-1) / np.sqrt(2)


def draw_lifted(scale: float, items: int, *, is_logistic: bool = False) -> Place:
    """Make a place with fresh items in each round, as in ``Synthetic``."""

    def draw(random: np.random.Generator) -> Callable[[], tuple[Array, Array]]:
        theta = scale * lift(random.normal(size=19))

        def offer() -> tuple[Array, Array]:
            features = lift(random.normal(size=(items, 19)))
            chances = features @ theta
            return features, 1 / (1 + np.exp(11.3 - 12 * chances)) if is_logistic else chances

        return offer

    name = "logistic" if is_logistic else f"scale {scale:g}"
    return Place(name, 12 if is_logistic else 4, 150 if is_logistic else 500, draw)


def draw_carousel(random: np.random.Generator) -> Callable[[], tuple[Array, Array]]:
    """Draw 862 items of dimension 97 that stay the same, with a median click probability of 0.005."""
    spectrum = (1.0 + np.arange(96)) ** -0.5
    directions = random.normal(size=(862, 96)) * spectrum
    features = np.hstack([directions, np.full((862, 1), np.linalg.norm(directions, axis=1).mean())])
    features /= np.linalg.norm(features, axis=1).max()
    logits = directions @ (random.normal(size=96) * spectrum)
    chances = np.minimum(0.4, 1 / (1 + np.exp(5.3 - 1.5 * logits / logits.std())))
    return lambda: (features, chances)


PLACES = (
    *(draw_lifted(scale, 50) for scale in (1.0, 0.2, 0.05, 0.02)),
    draw_lifted(1.0, 500, is_logistic=True),
    Place("carousel", 12, 100, draw_carousel),
)


def play(place: Place, variant: Variant, seed: int) -> float:
    """Return the regret of one user's agent."""
    offer, clicks = place.draw(np.random.default_rng(seed)), np.random.default_rng([seed, 1])
    regret = count = clicked = 0.0
    gram = moment = np.zeros(0)
    for number in range(place.rounds):
        features, chances = offer()
        if number == 0:
            gram, moment = np.zeros((features.shape[1],) * 2), np.zeros(features.shape[1])
        noise = estimate_noise(count, clicked)
        unit = noise if variant.floor is None else 1.0  # weighted sums have variance 1
        precision = gram / unit + np.eye(len(gram)) * len(gram) / variant.length**2
        inverse = np.linalg.inv(precision)
        means = features @ (inverse @ (moment / unit))
        widths = np.sqrt(np.einsum("ij,ij->i", features @ inverse, features))
        scores = np.minimum(means + BETA * widths, 1.0) + 1e-9 * clicks.random(len(features))
        shown = np.argsort(-scores)[: place.length]
        best = np.sort(chances)[-place.length :]
        regret += np.prod(1 - chances[shown]) - np.prod(1 - best)
        for item, draw in zip(shown, clicks.random(place.length), strict=True):
            guess = min(max(means[item], 0.0), 1.0)
            weight = 1.0 if variant.floor is None else 1 / max(guess * (1 - guess), variant.floor * noise)
            has_click = draw < chances[item]
            gram += weight * np.outer(features[item], features[item])
            moment += weight * has_click * features[item]
            count, clicked = count + 1, clicked + has_click
            if has_click:
                break
    return float(regret)


def main() -> None:
    """Print a table of each place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1_000)
    options = parser.parse_args()
    for place in PLACES:
        seeds = range(options.seed, options.seed + options.users)
        regrets = {each: [play(place, each, seed) for seed in seeds] for each in VARIANTS}
        present = regrets[PRESENT]
        print(f"{place.name}: regret {np.mean(present):.1f} after {place.rounds} lists of {place.length}", flush=True)
        for variant in VARIANTS[1:]:
            share = estimate_ratio(regrets[variant], present)
            print(f"  {variant.name:20} {share.mean:.2f} ({share.low:.2f} to {share.high:.2f})", flush=True)


if __name__ == "__main__":
    main()
