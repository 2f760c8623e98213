"""Private uploads: noise that an agent adds to its sums before they leave it (docs/explanation-privacy.md).

Of each list only the first item is uploaded, in one upload. Noise is discrete Gaussian on the grid of the sums: an
upload has rho-zCDP for rho = (1/s_G^2 + 1/s_b^2 + 1/s_c^2) / 2 (Canonne, Kamath, Steinke 2020). Entries of the gram
beside its diagonal have half the variance, because each counts twice in ||x x^T||.
"""

import math
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, PROBABILITY, require, require_known, whole_numbers
from fedcascade.constants import Part, constant, describe_constants, enum_values
from fedcascade.federation.messages import Upload
from fedcascade.learning.statistics import Statistics, estimate_noise
from fedcascade.numerics import streams
from fedcascade.numerics.grid import GRID
from fedcascade.numerics.linear import pack_sums, unpack_sums

LARGEST_SQUARE = 1.0 + 1e-5  # squared norm of features of norm 1 after rounding to float32
GRAM_SHARE, MOMENT_SHARE, CLICK_SHARE = 0.40, 0.56, 0.04  # of rho; the first two minimise s_b^2 + s_G^2 / 2
STEP = GRID**2  # of sums of products
LEAST_RHO = 1e-9  # of an upload; with less, noise of a gram has a standard deviation above 30,000
TAIL = math.sqrt(2.0 * math.log(1e9))  # standard deviations that noise of one direction exceeds with 1e-9
ORDERS = 1.0 + np.geomspace(1e-2, 1e4, 4_000)  # of the Renyi divergence, over which delta is minimised


class Unit(StrEnum):
    """The data whose presence an upload hides: one list, or all lists of the user."""

    LIST = "list"
    USER = "user"


class Scales(NamedTuple):
    """Standard deviations of the noise of an upload."""

    gram: float  # of a diagonal entry
    moment: float
    clicks: float


@dataclass(frozen=True)
class PrivacyBudget:
    """The privacy that an agent has spent, of an ``epsilon`` for one unit; with ``is_spent`` it sends nothing more."""

    epsilon: float
    delta: float
    unit: Unit
    spent: float
    is_spent: bool


class NoiseSource(Protocol):
    """A source of independent noise for the numbers of an upload."""

    def draw(self, agent: int, sequence: int, variances: list[int]) -> NDArray[Any]:
        """Draw whole numbers with mean 0 and these variances."""


@dataclass(frozen=True, kw_only=True)
class PrivateUploads(Part):
    """The mechanism: an agent's uploads are (epsilon, delta)-differentially private in the presence of one ``unit``."""

    epsilon: float = constant(meaning="bound on the log-odds that an upload gives of one unit", range=POSITIVE)
    delta: float = constant(1e-6, meaning="probability with which epsilon may not hold", range=PROBABILITY)
    unit: Unit = constant(Unit.LIST, meaning="data that an upload hides", range=enum_values(Unit))
    uploads: int = constant(16, meaning="most uploads of an agent whose unit is the user", range=whole_numbers(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        got = f"epsilon {self.epsilon:g}, delta {self.delta:g}, unit {self.unit} and uploads {self.uploads}"
        require(self.rho >= LEAST_RHO, f"private uploads of {got} would be noise alone: give a larger epsilon")

    @property
    def rho(self) -> float:
        """The budget of one upload, in zCDP."""
        return find_rho(self.epsilon, self.delta) / (1 if self.unit == Unit.LIST else self.uploads)

    def compute_scales(self, lists: int) -> Scales:
        """Return the noise of an upload of that many lists."""
        reach = 1.0 if self.unit == Unit.LIST else float(lists)
        gram, moment, clicks = (
            1.0 / math.sqrt(2.0 * self.rho * share) for share in (GRAM_SHARE, MOMENT_SHARE, CLICK_SHARE)
        )
        return Scales(reach * LARGEST_SQUARE * gram, reach * math.sqrt(LARGEST_SQUARE) * moment, reach * clicks)

    def release(self, upload: Upload, source: NoiseSource) -> Upload | None:
        """Return an upload of first items with noise, or None once the user's budget is spent."""
        if self.unit == Unit.USER and upload.sequence > self.uploads:
            return None
        sums, scales = upload.statistics, self.compute_scales(upload.statistics.rounds)
        d = sums.dimension
        row = np.empty(d * (d + 3) // 2)
        pack_sums(sums.gram, sums.moment, row)
        steps = row / STEP
        require(np.array_equal(np.floor(steps), steps), "private uploads need features on the grid")
        sigmas = np.full(row.size, scales.gram / math.sqrt(2.0))
        sigmas[np.cumsum([0, *range(d, 1, -1)])] = scales.gram
        sigmas[-d:] = scales.moment
        variances = [math.ceil(value) for value in (*(sigmas / STEP) ** 2, scales.clicks**2)]
        noise = source.draw(upload.agent, upload.sequence, variances)
        gram, moment = np.empty((d, d)), np.empty(d)
        noisy = (steps.astype(np.int64) + noise[:-1]).astype(np.float64)  # rounded once, after the exact sum
        unpack_sums(STEP * noisy, gram, moment)
        clicks = min(max(sums.clicks + int(noise[-1]), 0), sums.rounds)
        return replace(upload, statistics=Statistics(gram, moment, sums.rounds, clicks, sums.rounds))

    def measure_budget(self, uploads: int) -> PrivacyBudget:
        """Return the budget of an agent after so many uploads.

        If the unit is a list, uploads do not add up: no list is in two of them.
        """
        is_spent = self.unit == Unit.USER and uploads >= self.uploads
        total = min(uploads, self.uploads) * self.rho
        spent = self.epsilon if self.unit == Unit.LIST else compute_epsilon(total, self.delta)
        return PrivacyBudget(self.epsilon, self.delta, Unit(self.unit), spent if uploads else 0.0, is_spent)

    def weakens(self, other: "PrivateUploads | None") -> bool:
        """Return whether ``other`` promises less than this mechanism does."""
        if other is None or other.epsilon > self.epsilon or other.delta > self.delta:
            return True
        # More uploads of a user, with less noise each, would come on top of those that are spent.
        return self.unit == Unit.USER and (other.unit == Unit.LIST or other.uploads > self.uploads)

    def check(self, upload: Statistics, dimension: int, uploads: int = 1) -> None:
        """Raise ValueError if noise explains these statistics, of one upload or the sum of several, only with 1e-9."""
        upload.check(dimension)
        require(0 < upload.rounds == upload.count, "a private upload must count one item for each of its lists")
        growth = math.sqrt(uploads) if self.unit == Unit.LIST else 1.0  # a user's lists bound the noise of all uploads
        scales = Scales(*(growth * scale for scale in self.compute_scales(upload.rounds)))
        eigenvalues = np.linalg.eigvalsh(upload.gram)
        slack = scales.gram * (math.sqrt(2.0 * dimension) + TAIL)
        most = upload.rounds * LARGEST_SQUARE + slack
        is_explained = -slack <= eigenvalues[0] and eigenvalues[-1] <= most
        require(bool(is_explained), f"eigenvalues of gram must be in {-slack:.6g}..{most:.6g} with this noise")
        most = upload.rounds + scales.moment * (math.sqrt(dimension) + TAIL)
        length = float(np.linalg.norm(upload.moment))
        require(length <= most, f"moment must have length <= {most:.6g} with this noise, got {length:.6g}")

    def discount(self, upload: Statistics) -> Statistics:
        """Return the evidence of a noisy upload, as statistics without noise.

        With gram G + E and moment b + e, the moment is (G + E) theta plus noise of covariance v G + t I, where t covers
        e and E theta for ||theta|| <= 1. If G is known, theta gets the precision G (v G + t I)^-1 G and the matching
        mean. Eigenvalues of G + E within the range of noise are replaced by their mean.
        """
        d, scales = upload.dimension, self.compute_scales(upload.rounds)
        values, vectors = np.linalg.eigh(upload.gram)
        is_clear = values > scales.gram * math.sqrt(2.0 * d)
        rest = max(0.0, values[~is_clear].sum()) / max(1, d - np.count_nonzero(is_clear))
        values = np.where(is_clear, values, rest)
        values *= min(1.0, upload.rounds / max(values.sum(), 1e-12))  # items have norm <= 1
        noise = estimate_noise(upload.count, upload.clicks)
        share = noise * values / (noise * values + scales.moment**2 + scales.gram**2 / 2.0)
        gram = (vectors * (share * values)) @ vectors.T
        moment = vectors @ (share * (vectors.T @ upload.moment))
        moment *= min(1.0, upload.rounds / max(float(np.linalg.norm(moment)), 1e-12))
        return replace(upload, gram=(gram + gram.T) / 2.0, moment=moment)


def parse_privacy(text: str) -> PrivateUploads:
    """Parse constants of ``PrivateUploads``, as on a command line.

    >>> parse_privacy("epsilon=2,delta=1e-6").epsilon
    2.0
    """
    known = {each.name: each for each in describe_constants(PrivateUploads(epsilon=1.0))}
    parts = text.replace(" ", "").split(",")
    given = dict(part.partition("=")[::2] for part in parts)
    require("epsilon" in given, f"privacy must look like 'epsilon=2,delta=1e-6', got '{text}'")
    require(len(given) == len(parts), f"privacy must give each constant once, got '{text}'")
    for name in given:
        require_known("constant of private uploads", name, known)
    return PrivateUploads(**{name: known[name].parse(value) for name, value in given.items()})


@lru_cache(maxsize=64)
def find_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho whose zCDP gives (epsilon, delta)-differential privacy, to one part in 10^9.

    >>> round(find_rho(1.0, 1e-6), 4)
    0.0244
    """
    low, high = 0.0, epsilon
    while high - low > 1e-9 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if compute_epsilon(middle, delta) <= epsilon else (low, middle)
    return low


def compute_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon of rho-zCDP at a delta (Canonne, Kamath, Steinke 2020, corollary 13).

    >>> round(compute_epsilon(find_rho(1.0, 1e-6), 1e-6), 4)
    1.0
    """
    above = ORDERS - 1.0
    rest = np.log(above) - ORDERS * np.log1p(-1.0 / ORDERS) + math.log(delta)
    return float((ORDERS * rho - rest / above).min())


class SystemNoise:
    """Discrete Gaussian noise from the operating system's random numbers, in integer arithmetic."""

    def draw(self, agent: int, sequence: int, variances: list[int]) -> NDArray[Any]:  # noqa: ARG002
        """Draw whole numbers with mean 0 and these variances, as integers of any size."""
        return np.array([sample_discrete_gaussian(variance) for variance in variances], object)


@dataclass(frozen=True)
class SimulatedNoise:
    """Normal noise of a simulation, rounded to whole numbers: a function of seed, agent and sequence."""

    seed: int

    def draw(self, agent: int, sequence: int, variances: list[int]) -> NDArray[np.float64]:
        """Draw whole numbers with mean 0 and these variances."""
        address = (agent << 20) + sequence
        normals = streams.draw_normals(self.seed, streams.PRIVACY, address, (len(variances), 1))[:, 0]
        return np.rint(normals * np.sqrt(np.array(variances, np.float64)))


def sample_discrete_gaussian(variance: int) -> int:
    """Sample k with a probability proportional to exp(-k^2 / (2 variance)), exactly (algorithm 3 of the same)."""
    scale = math.isqrt(variance) + 1
    while True:
        candidate = _sample_discrete_laplace(scale)
        if _flip_exponential((abs(candidate) * scale - variance) ** 2, 2 * variance * scale * scale):
            return candidate


def _sample_discrete_laplace(scale: int) -> int:
    """Sample k with a probability proportional to exp(-|k| / scale)."""
    while True:
        offset, sign = secrets.randbelow(scale), secrets.randbelow(2)
        if _flip_exponential(offset, scale):
            steps = 0
            while _flip_exponential(1, 1):
                steps += 1
            size = offset + scale * steps
            if size or sign:  # zero once, not as +0 and -0
                return size if sign else -size


def _flip_exponential(numerator: int, denominator: int) -> bool:
    """Return true with probability exp(-numerator / denominator), from whole random numbers alone."""
    while numerator > denominator:
        if not _flip_exponential(1, 1):
            return False
        numerator -= denominator
    count = 1
    while secrets.randbelow(denominator * count) < numerator:
        count += 1
    return count % 2 == 1
