"""Fits a mixture to a sample of users: the population, births, sweeps, deletions and mergers, in this order."""

import math
from typing import NamedTuple

import numpy as np

from fedcascade.federation.grouping.births import choose_means, estimate_users, find_unexplained
from fedcascade.federation.grouping.expectation import fit_population, invert, maximise, set_population, sweep
from fedcascade.federation.grouping.mixture import (
    FREE,
    LEVELS,
    LOWEST_SPREAD,
    NEVER,
    WEIGHT,
    Cube,
    Mixture,
    Places,
    Sums,
    find_level,
    make_room,
    make_sums,
)
from fedcascade.federation.grouping.pruning import delete_components, merge_components
from fedcascade.federation.holdings import Holdings
from fedcascade.numerics import streams
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.linear import Matrix

POPULATION_USERS, POPULATION_REPETITIONS = 1000, 10
START_SPREAD = 0.05  # of the population, before any data
START_WEIGHT = 0.2  # of the population beside the first components
UNEXPLAINED = 0.3  # a user that components explain by less than the rest may be one of a new component
USERS_PER_BIRTH = 25
WARM_SPREAD, WARM_SWEEPS, BIRTH_SWEEPS = 0.008, 5, 5  # the newborn first fit loosely, then as they are meant to
FIRST_SWEEPS, LAST_SWEEPS, LAST_SWEEPS_AFTER_BIRTHS = 2, 2, 6
_SEED = np.uint64(0)  # a server has none of its own, and replays must agree


class FittedMixture(NamedTuple):
    """A mixture, the covariance of its population, and what is not known of the means of its components."""

    mixture: Mixture
    covariance: Matrix
    covariances: Cube

    @property
    def components(self) -> int:
        """How many components there are."""
        return int(np.count_nonzero(self.mixture.levels != FREE))

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are."""
        return all(np.isfinite(array).all() for array in (*self.mixture, self.covariance, self.covariances))


class Sample(NamedTuple):
    """The users that a mixture is fitted to, and their responsibilities in the fit before."""

    holdings: Holdings
    users: Places
    former: Matrix

    @property
    def data(self) -> tuple[Cube, Matrix, Places]:
        """Grams and moments of everybody, and who is in the sample."""
        return self.holdings.gram, self.holdings.moment, self.users


class Shape(NamedTuple):
    """What a fit assumes: the noise sigma^2 of a click, the spread within a component, its fewest members."""

    variance: float
    spread: float
    least_size: float


def make_fitted(slots: int, d: int, variance: float) -> FittedMixture:
    """A mixture without components, and a population of which nothing is known."""
    mixture = Mixture(
        np.zeros((slots, d)), np.full(slots, FREE), np.zeros(slots), np.zeros(d), np.zeros((d, d)), np.zeros(d),
        np.zeros(3),
    )  # fmt: skip
    covariance = START_SPREAD * np.eye(d)
    set_population(mixture, np.zeros(d), covariance, variance)
    mixture.numbers[WEIGHT] = log(START_WEIGHT)
    return FittedMixture(mixture, covariance, np.zeros((slots, d, d)))


def fit_mixture(fitted: FittedMixture, sample: Sample, shape: Shape, number: int, has_births: bool) -> bool:
    """Fit a mixture anew, from where it is; returns whether components were born and one of them stayed.

    ``number`` is that of the fit; chance depends on it alone. ``sample.former`` is brought up to date.
    """
    step = max(1, sample.users.size // POPULATION_USERS)
    gram, moment, users = sample.data
    parts = fitted.mixture, fitted.covariance
    fit_population(gram, moment, users[::step].copy(), *parts, shape.variance, POPULATION_REPETITIONS)
    inverse, before = invert(fitted.covariance), fitted.components
    if has_births:
        bear_components(fitted, sample, shape, number, inverse)
    if fitted.components == 0:
        return False
    slots, d = fitted.mixture.means.shape
    sums = make_sums(slots, d)
    _sweep(fitted, sample, shape, sums, inverse, FIRST_SWEEPS)
    delete_components(fitted.mixture, sums, sample.former, inverse, shape.least_size, users.size)
    merge_components(fitted.mixture, sums, sample.former, fitted.covariances, inverse)
    maximise(fitted.mixture, sums, fitted.covariances, inverse, shape.spread, users.size, make_room(slots, d))
    is_grown = fitted.components > before
    _sweep(fitted, sample, shape, sums, inverse, LAST_SWEEPS_AFTER_BIRTHS if is_grown else LAST_SWEEPS)
    return is_grown


def _sweep(fitted: FittedMixture, sample: Sample, shape: Shape, sums: Sums, inverse: Matrix, times: int) -> None:
    mixture, covariances = fitted.mixture, fitted.covariances
    room = make_room(*mixture.means.shape)
    for _ in range(times):
        sweep(*sample.data, sample.former, mixture, covariances, sums, shape.spread, shape.variance, room)
        maximise(mixture, sums, covariances, inverse, shape.spread, sample.users.size, room)


def bear_components(fitted: FittedMixture, sample: Sample, shape: Shape, number: int, inverse: Matrix) -> None:
    """Fit components to users whom the mixture explains badly, among themselves, and add them to the mixture."""
    mixture, before = fitted.mixture, fitted.components
    places, free = find_unexplained(sample.former, UNEXPLAINED), np.flatnonzero(mixture.levels == FREE)
    slots = free[: places.size // USERS_PER_BIRTH]
    if slots.size < 2:
        return
    young, former, sums = _fit_newborn(fitted, sample, places, slots, shape, number, inverse)
    mixture.means[slots], mixture.levels[slots] = young.mixture.means[slots], young.mixture.levels[slots]
    fitted.covariances[slots] = young.covariances[slots]
    for slot in slots.tolist():
        mixture.log_weights[slot] = log((0.7 * sums.sizes[slot] + 0.1) / sample.users.size)
    left = exp(mixture.numbers[WEIGHT]) if before else 1.0
    mixture.numbers[WEIGHT] = log(max(0.25 * left, 1e-3))
    sample.former[places] = former


def _fit_newborn(
    fitted: FittedMixture,
    sample: Sample,
    places: Places,
    slots: Places,
    shape: Shape,
    number: int,
    inverse: Matrix,
) -> tuple[FittedMixture, Matrix, Sums]:
    """Components in ``slots`` for the users in some places of a sample, with their responsibilities and sums."""
    variance, (count, d) = shape.variance, fitted.mixture.means.shape
    gram, moment, users = sample.holdings.gram, sample.holdings.moment, sample.users[places]
    young = make_fitted(count, d, variance)
    set_population(young.mixture, fitted.mixture.centre, fitted.covariance, variance)
    thetas = estimate_users(gram, moment, users, young.mixture, variance)
    draws = streams.uniforms(_SEED, streams.BIRTH, number, slots.size)
    young.mixture.means[slots] = choose_means(thetas, slots.size, draws)
    young.mixture.levels[slots] = find_level(shape.spread + 0.3 * fitted.covariance.trace() / d)
    young.mixture.log_weights[slots], young.mixture.numbers[WEIGHT] = -log(slots.size), NEVER
    former, sums, room = np.zeros((users.size, count)), make_sums(count, d), make_room(count, d)
    for spread in [WARM_SPREAD] * WARM_SWEEPS + [shape.spread] * BIRTH_SWEEPS:
        sweep(gram, moment, users, former, young.mixture, young.covariances, sums, spread, variance, room)
        maximise(young.mixture, sums, young.covariances, inverse, spread, users.size, room)
    return young, former, sums


def is_spread_known(spread: float) -> bool:
    """Whether a spread is within the levels of mixtures."""
    return LOWEST_SPREAD <= spread <= LOWEST_SPREAD * 2.0 ** (LEVELS - 1) and math.isfinite(spread)
