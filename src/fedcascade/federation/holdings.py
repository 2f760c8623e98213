"""The server's statistics of each agent: the paper's Sigma_ser, b_ser, T_ser and theta_ser."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

MAX_COUNT = 1 << 53  # of a restored counter
MAX_NUMBER = 1e18  # absolute value in a restored array: squares and sums stay finite
ARRAYS = ("gram", "moment", "theta", "length", "width", "count", "clicks", "rounds", "shortfall")


@jit_inline
def compute_confidence_width(count: int) -> float:
    """Compute F(T) = sqrt((1 + ln(1 + T)) / (1 + T))."""
    return float(np.sqrt((1.0 + log(1.0 + count)) / (1.0 + count)))


class HeldArrays(NamedTuple):
    """The ``ARRAYS`` of ``Holdings``, for compiled code."""

    gram: NDArray[np.float64]
    moment: Matrix
    theta: Matrix
    length: Vector
    width: Vector
    observations: NDArray[np.int64]  # ``count``
    clicks: NDArray[np.int64]
    rounds: NDArray[np.int64]
    shortfall: Vector


@jit_inline
def _solve_into(gram: Matrix, moment: Vector, lambda_: float, upper: Matrix, root: Matrix, theta: Vector) -> float:
    """Fill ``theta`` and return its length; NaN unless the sums are finite, symmetric and definite."""
    if not linear.is_finite_symmetric(gram, moment):
        return np.nan
    if not math.isfinite(linear.solve_ridge_into(gram, moment, lambda_, upper, root, theta)):
        return np.nan
    return math.sqrt(linear.multiply(theta, theta))


@jit
def add_upload(
    gram: Matrix, moment: Vector, theta: Vector, upload_gram: Matrix, upload_moment: Vector, lambda_: float
) -> float:
    """Add an upload to an agent's sums, solve for theta, and return the length of theta.

    If the sums are not finite, symmetric and definite, change nothing and return NaN.
    """
    # Loops, because whole-array expressions take a second to compile.
    upper, root = np.empty_like(upload_gram), np.empty_like(upload_gram)
    moments, estimate = np.empty_like(upload_moment), np.empty_like(upload_moment)
    for i in range(moments.size):
        moments[i] = moment[i] + upload_moment[i]
        for j in range(moments.size):
            upper[i, j] = gram[i, j] + upload_gram[i, j]
    length = _solve_into(upper, moments, lambda_, upper, root, estimate)
    if math.isfinite(length):
        for i in range(moments.size):
            moment[i], theta[i] = moments[i], estimate[i]
            for j in range(moments.size):
                gram[i, j] += upload_gram[i, j]
    return length


@jit
def solve_all(arrays: HeldArrays, lambda_: float) -> int:
    """Recompute estimates, lengths and widths of all agents; return the first agent with invalid sums, or -1.

    Valid sums are finite, symmetric and definite, and no larger than items of norm 1 make them.
    """
    d = arrays.moment.shape[1]
    upper, root = np.empty((d, d)), np.empty((d, d))
    for agent in range(arrays.moment.shape[0]):
        count, clicks, rounds = arrays.observations[agent], arrays.clicks[agent], arrays.rounds[agent]
        gram, moment, trace, largest = arrays.gram[agent], arrays.moment[agent], 0.0, 0.0
        for i in range(d):
            trace += gram[i, i]
            largest = max(largest, abs(moment[i]))
        is_bounded = 0 <= clicks <= count <= MAX_COUNT and 0 <= rounds <= MAX_COUNT
        if not (is_bounded and trace <= 1.01 * count + 1.0 and largest <= 1.01 * count + 1.0):
            return agent
        arrays.length[agent] = _solve_into(gram, moment, lambda_, upper, root, arrays.theta[agent])
        if not math.isfinite(arrays.length[agent]):
            return agent
        arrays.width[agent] = compute_confidence_width(count)
    return -1


def require_alike(name: str, value: Any, fresh: Any) -> None:
    """Refuse a saved value of another type, shape or range than a fresh one."""
    kind = type(fresh)
    require(type(value) is kind, f"{name} must be of type {kind.__name__}, got {type(value).__name__}")
    if isinstance(fresh, np.ndarray):
        require(value.dtype == fresh.dtype, f"{name} must hold {fresh.dtype}, got {value.dtype}")
        require(value.shape == fresh.shape, f"{name} must have the shape {fresh.shape}, got {value.shape}")
        require_numbers(name, value)
    elif isinstance(fresh, Statistics):
        value.check(fresh.dimension)
        for array in (value.gram, value.moment, np.array([value.count, value.rounds], float)):
            require_numbers(name, array)
    elif isinstance(fresh, dict | list | tuple):
        keys = fresh if isinstance(fresh, dict) else range(len(fresh))
        missing = [key for key in keys if key not in (value if isinstance(value, dict) else range(len(value)))]
        require(not missing, f"{name} has no {missing[:1]}")
        for key in keys:
            require_alike(f"{name}.{key}", value[key], fresh[key])
    elif kind in (int, float):
        most = MAX_COUNT if kind is int else MAX_NUMBER
        require(-most <= value <= most, f"{name} must be at most {most:g}, got {value}")


def require_numbers(name: str, array: NDArray[Any]) -> None:
    """Refuse an array with a number that is not finite, or so large that sums of it could overflow."""
    if array.dtype.kind in "iuf" and array.size:
        largest = max(abs(float(array.min())), abs(float(array.max())))  # NaN if there is one
        require(largest <= MAX_NUMBER, f"{name} must hold numbers up to {MAX_NUMBER:g}, got {largest:g}")


def require_places(name: str, places: NDArray[np.int64], end: int, least: int = 0) -> None:
    """Refuse indices outside of ``least`` .. ``end`` - 1, which compiled code would look up."""
    is_inside = not places.size or (int(places.min()) >= least and int(places.max()) < end)
    require(is_inside, f"{name} must be in {least}..{end - 1}")


class Restorable:
    """A part of a server's state: ``state_names`` are the attributes that outlive a process."""

    state_label: ClassVar[str]  # its key in the state of the server
    state_names: ClassVar[tuple[str, ...]] = ()
    free_names: ClassVar[tuple[str, ...]] = ()  # those of ``state_names`` whose size depends on the data

    def to_state(self) -> dict[str, Any]:
        """Return the state as values and live arrays."""
        return {name: getattr(self, name) for name in self.state_names}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes of ``to_state`` in a new object, and take over the arrays.

        Raise ValueError if an attribute has another type, or another shape where that does not depend on the data.
        """
        for name, fresh in self.to_state().items():
            label = f"{self.state_label}.{name}"
            require(name in state, f"{self.state_label} has no {name}")
            if name in self.free_names:
                require(type(state[name]) is type(fresh), f"{label} must be a {type(fresh).__name__}")
            else:
                require_alike(label, state[name], fresh)
            setattr(self, name, state[name])


class Holdings(Restorable):
    """Statistics and estimate of every agent, as arrays over agents."""

    state_label = "holdings"
    state_names = ARRAYS

    def __init__(self, agents: int, dimension: int, lambda_: float) -> None:
        self.lambda_ = lambda_
        self.gram = np.zeros((agents, dimension, dimension))
        self.moment = np.zeros((agents, dimension))
        self.theta = np.zeros((agents, dimension))
        self.length = np.zeros(agents)  # of theta
        self.width = np.ones(agents)  # F(T_ser)
        self.count, self.clicks, self.rounds = (np.zeros(agents, np.int64) for _ in range(3))
        self.shortfall = np.zeros(agents)

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        invalid = solve_all(self.arrays, float(self.lambda_))
        require(invalid < 0, f"the sums of agent {invalid} must be finite and bounded, gram positive semi-definite")

    def __len__(self) -> int:
        return self.count.size

    @property
    def arrays(self) -> HeldArrays:
        """All arrays, without copies."""
        return HeldArrays(*(getattr(self, name) for name in ARRAYS))

    @property
    def dimension(self) -> int:
        return self.moment.shape[1]

    def __getitem__(self, agent: int) -> Statistics:
        seen = self.view(agent)
        return Statistics(seen.gram.copy(), seen.moment.copy(), seen.count, seen.clicks, seen.rounds, seen.shortfall)

    def view(self, agent: int) -> Statistics:
        """Return the statistics of an agent without a copy; the next upload changes them."""
        counts = int(self.count[agent]), int(self.clicks[agent]), int(self.rounds[agent])
        return Statistics(self.gram[agent], self.moment[agent], *counts, float(self.shortfall[agent]))

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload and update theta_ser (Algorithm 3, lines 3 and 4)."""
        gram, moment, theta = self.gram[agent], self.moment[agent], self.theta[agent]
        length = add_upload(gram, moment, theta, statistics.gram, statistics.moment, self.lambda_)
        require(not math.isnan(length), "gram and moment must be finite, and gram symmetric and positive semi-definite")
        self.length[agent] = length
        self.count[agent] += statistics.count
        self.clicks[agent] += statistics.clicks
        self.rounds[agent] += statistics.rounds
        self.shortfall[agent] += statistics.shortfall
        self.width[agent] = compute_confidence_width(self.count[agent])

    def clear(self, agent: int) -> None:
        """Drop the data of an agent."""
        for array in self.arrays:
            array[agent] = 0
        self.width[agent] = 1.0

    def join(self) -> int:
        """Add an agent without data, and return its number."""
        newcomer = len(self)
        for name in ARRAYS:
            setattr(self, name, append_zeros(getattr(self, name)))
        self.width[newcomer] = 1.0
        return newcomer

    def forget(self, agent: int) -> None:
        """Remove an agent; the last one takes its place."""
        for name in ARRAYS:
            setattr(self, name, drop_row(getattr(self, name), agent))

    def total(self, members: NDArray[np.intp]) -> Statistics:
        count, clicks, rounds = (int(each[members].sum()) for each in (self.count, self.clicks, self.rounds))
        gram, moment = self.gram[members].sum(axis=0), self.moment[members].sum(axis=0)
        return Statistics(gram, moment, count, clicks, rounds, float(self.shortfall[members].sum()))


def append_zeros(rows: NDArray[Any], axes: int = 1) -> NDArray[Any]:
    """Append a row of zeros, and with two ``axes`` a column as well. Memory grows by doubling."""
    agents = len(rows)
    memory = rows.base if isinstance(rows.base, np.ndarray) else rows
    if len(memory) == agents:
        memory = np.zeros((max(8, 2 * agents),) * axes + rows.shape[axes:], rows.dtype)
        memory[(slice(agents),) * axes] = rows
    return memory[(slice(agents + 1),) * axes]


def drop_row(rows: NDArray[Any], place: int, axes: int = 1) -> NDArray[Any]:
    """Remove a row, and with two ``axes`` that column as well: the last one takes its place.

    The memory behind the end is kept, with zeros, for later rows.

    >>> drop_row(np.array([5, 6, 7, 8]), 1)
    array([5, 8, 7])
    """
    last = len(rows) - 1
    for axis in range(axes):
        lines = rows.swapaxes(0, axis)
        lines[place] = lines[last]
        lines[last] = 0
    return rows[(slice(last),) * axes]
