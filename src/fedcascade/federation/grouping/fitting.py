"""Fits a mixture to a sample of users: the population, births, sweeps, deletions and mergers, in this order.

The work is cut into pieces of some users each, and a fit under way outlives a process.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedcascade.federation.grouping.births import choose_means, estimate_users, find_unexplained
from fedcascade.federation.grouping.expectation import (
    Moments,
    add_moments,
    invert,
    make_moments,
    maximise,
    set_population,
    step_population,
    sweep,
)
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

POPULATION_USERS = 1000  # that the population is fitted to, and that means of the newborn are chosen from
START_SPREAD = 0.05  # of the population, before any data
START_WEIGHT = 0.2  # of the population beside the first components
UNEXPLAINED = 0.3  # a user that components explain by less than the rest may be one of a new component
USERS_PER_BIRTH = 25
WARM_SPREAD, WARM_SWEEPS = 0.008, 5  # the newborn first fit loosely, then as they are meant to
LAST_SWEEPS_AFTER_BIRTHS = 6
POPULATION, NEWBORN, FIRST, LAST, DONE = range(5)  # stages of a fit
PASSES = {POPULATION: 10, NEWBORN: 10, FIRST: 2, LAST: 2}
COST_OF_POPULATION, COST_OF_PASS, COST_OF_USER, COST_OF_COMPONENT = 0.125, 1.0, 0.2, 0.025  # in time
EVERYTHING = 1e12  # more work than there is
STATE_NAMES = "places", "unexplained", "number", "has_births", "stage", "passes", "position", "components"
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


class Fit:
    """A fit under way, which goes on for some users at a time, so that no upload waits for all of it.

    The population is fitted first, then the newborn among themselves, then all components, which are pruned and fitted
    again. Sums are those of the pass under way. ``fitted`` is the mixture as far as the fit has come. ``number`` is
    that of the fit; chance depends on it alone.
    """

    def __init__(self, fitted: FittedMixture, places: Places, number: int, has_births: bool) -> None:
        slots, d = fitted.mixture.means.shape
        self.fitted = copy_fitted(fitted)
        self.young: FittedMixture | None = None
        self.places, self.unexplained = places, places[:0]
        self.sums, self.moments = make_sums(slots, d), make_moments(d)
        self.number, self.has_births = number, has_births
        self.stage, self.passes, self.position = POPULATION, 0, 0
        self.components = fitted.components  # before births

    def to_state(self) -> dict[str, Any]:
        """What outlives a process, as values and arrays that this fit goes on changing."""
        arrays = {"fitted": _list_arrays(self.fitted), "sums": list(self.sums), "moments": list(self.moments)}
        young = [] if self.young is None else _list_arrays(self.young)
        return {name: getattr(self, name) for name in STATE_NAMES} | arrays | {"young": young}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Fit":
        """The fit whose ``to_state`` gave ``state``."""
        fit = cls(_gather_arrays(state["fitted"]), state["places"], state["number"], state["has_births"])
        for name in STATE_NAMES:
            setattr(fit, name, state[name])
        fit.sums, fit.moments = Sums(*state["sums"]), Moments(*state["moments"])
        fit.young = _gather_arrays(state["young"]) if state["young"] else None
        return fit

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.stage == DONE

    @property
    def is_grown(self) -> bool:
        """Whether components were born and one of them stayed."""
        return self.fitted.components > self.components

    def advance(self, sample: Sample, shape: Shape, work: float) -> None:
        """Go on by some work, counted in users that meet 32 components. ``sample.former`` is brought up to date."""
        while work > 0 and not self.is_done:
            places, cost = self._list_places(), self._estimate_cost()
            end = min(places.size, self.position + max(1, int(work / cost)))
            self._visit(sample, shape, places[self.position : end])
            work -= cost * (end - self.position) + COST_OF_PASS
            self.position = end
            if end == places.size:
                self._end_pass(sample, shape)

    def _estimate_cost(self) -> float:
        """What a user costs in the pass under way."""
        if self.stage == POPULATION:
            return COST_OF_POPULATION
        return COST_OF_USER + COST_OF_COMPONENT * (self.young or self.fitted).components

    def _list_places(self) -> Places:
        """The places of the sample that the pass under way visits."""
        if self.stage == POPULATION:
            return self.places[:: max(1, self.places.size // POPULATION_USERS)]
        return self.unexplained if self.stage == NEWBORN else self.places

    def _visit(self, sample: Sample, shape: Shape, places: Places) -> None:
        """Add what the users in some places tell to the sums."""
        held, (slots, d), variance = sample.holdings, self.fitted.mixture.means.shape, shape.variance
        gram, moment, room = held.gram, held.moment, make_room(slots, d)
        if self.stage == POPULATION:
            add_moments(gram, moment, sample.users[places], self.fitted.mixture, self.moments, variance, room)
            return
        mixture, _, covariances = self.young or self.fitted
        spread, former = self._get_spread(shape), sample.former
        sweep(gram, moment, sample.users, places, former, mixture, covariances, self.sums, spread, variance, room)

    def _get_spread(self, shape: Shape) -> float:
        return WARM_SPREAD if self.stage == NEWBORN and self.passes < WARM_SWEEPS else shape.spread

    def _end_pass(self, sample: Sample, shape: Shape) -> None:
        """Maximise after a pass, and go on to the next pass or stage."""
        if self.stage == POPULATION:
            step_population(self.fitted.mixture, self.fitted.covariance, self.moments, shape.variance)
        else:
            self._maximise(shape)
        self.position, self.passes = 0, self.passes + 1
        if self.passes == self._count_passes():
            self.passes = 0
            self._end_stage(sample, shape)
        for array in (*self.sums, *self.moments):
            array[:] = 0.0

    def _maximise(self, shape: Shape) -> None:
        fitted = self.young or self.fitted
        users, room = self._list_places().size, make_room(*fitted.mixture.means.shape)
        inverse, spread = invert(self.fitted.covariance), self._get_spread(shape)
        maximise(fitted.mixture, self.sums, fitted.covariances, inverse, spread, users, room)

    def _count_passes(self) -> int:
        if self.stage == LAST and self.is_grown:
            return LAST_SWEEPS_AFTER_BIRTHS
        return PASSES[self.stage]

    def _end_stage(self, sample: Sample, shape: Shape) -> None:
        if self.stage == POPULATION and self.has_births and self._bear_components(sample, shape):
            self.stage = NEWBORN
            return
        if self.stage == NEWBORN:
            self._adopt_newborn()
        if self.stage == FIRST:
            self._prune(sample, shape)
            self.stage = LAST
        elif self.stage == LAST or self.fitted.components == 0:
            self.stage = DONE
        else:
            self.stage = FIRST

    def _bear_components(self, sample: Sample, shape: Shape) -> bool:
        """Begin components of users whom the mixture explains badly; returns whether there are enough of them."""
        fitted, variance, (count, d) = self.fitted, shape.variance, self.fitted.mixture.means.shape
        unexplained = find_unexplained(sample.former, self.places, UNEXPLAINED)
        free = np.flatnonzero(fitted.mixture.levels == FREE)
        slots = free[: unexplained.size // USERS_PER_BIRTH]
        if slots.size < 2:
            return False
        some = unexplained[:: max(1, unexplained.size // POPULATION_USERS)]
        held = sample.holdings
        thetas = estimate_users(held.gram, held.moment, sample.users[some], fitted.mixture, variance)
        if thetas.shape[0] < slots.size:
            return False
        self.unexplained, self.young = unexplained, make_fitted(count, d, variance)
        young = self.young.mixture
        set_population(young, fitted.mixture.centre, fitted.covariance, variance)
        young.means[slots] = choose_means(
            thetas, slots.size, streams.uniforms(_SEED, streams.BIRTH, self.number, slots.size)
        )
        young.levels[slots] = find_level(shape.spread + 0.3 * fitted.covariance.trace() / d)
        young.log_weights[slots], young.numbers[WEIGHT] = -log(slots.size), NEVER
        sample.former[unexplained] = 0.0
        return True

    def _adopt_newborn(self) -> None:
        """Add the newborn, which were fitted among themselves, to the mixture."""
        assert self.young is not None, "the stage of the newborn has some"
        mixture, young = self.fitted.mixture, self.young.mixture
        slots = np.flatnonzero(young.levels != FREE)
        mixture.means[slots], mixture.levels[slots] = young.means[slots], young.levels[slots]
        self.fitted.covariances[slots] = self.young.covariances[slots]
        for slot in slots.tolist():
            mixture.log_weights[slot] = log((0.7 * self.sums.sizes[slot] + 0.1) / self.places.size)
        left = exp(mixture.numbers[WEIGHT]) if self.components else 1.0
        mixture.numbers[WEIGHT] = log(max(0.25 * left, 1e-3))
        self.young, self.unexplained = None, self.places[:0]

    def _prune(self, sample: Sample, shape: Shape) -> None:
        """Delete and merge components, and maximise what is left."""
        mixture, covariances, users = self.fitted.mixture, self.fitted.covariances, self.places.size
        inverse = invert(self.fitted.covariance)
        delete_components(mixture, self.sums, sample.former, inverse, shape.least_size, users)
        merge_components(mixture, self.sums, sample.former, covariances, inverse)
        self._maximise(shape)


def copy_fitted(fitted: FittedMixture) -> FittedMixture:
    """A mixture that can be changed without changing this one."""
    return _gather_arrays([array.copy() for array in _list_arrays(fitted)])


def _list_arrays(fitted: FittedMixture) -> list[Any]:
    return [*fitted.mixture, fitted.covariance, fitted.covariances]


def _gather_arrays(arrays: Sequence[Any]) -> FittedMixture:
    return FittedMixture(Mixture(*arrays[:-2]), *arrays[-2:])


def is_spread_known(spread: float) -> bool:
    """Whether a spread is within the levels of mixtures."""
    return LOWEST_SPREAD <= spread <= LOWEST_SPREAD * 2.0 ** (LEVELS - 1) and math.isfinite(spread)
