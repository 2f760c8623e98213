"""beta: how far an estimate is trusted. A constant in practice, a theorem's formula where asked for."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedcascade.checks import require, require_integer, require_nonnegative, require_positive
from fedcascade.learning.ridge import Estimate
from fedcascade.numerics.jit import jit_inline


@dataclass(frozen=True, kw_only=True)
class ProblemSize:
    """The sizes that theory's formulas ask for."""

    users: int
    dimension: int
    list_length: int
    rounds: int

    def __post_init__(self) -> None:
        for name in ("users", "dimension", "list_length", "rounds"):
            require_integer(name.replace("_", " "), getattr(self, name))


class BetaTerms(NamedTuple):
    """The constants of beta = base + slope sqrt(ln det(Sigma) + shift)."""

    base: float
    slope: float
    shift: float


@jit_inline
def compute_beta(terms: BetaTerms, log_det: float) -> float:
    """beta of an estimate whose Sigma has this ln det; a root that rounding made negative counts as 0."""
    return terms.base + terms.slope * math.sqrt(max(0.0, log_det + terms.shift))


class Confidence(Protocol):
    """Gives the beta of U(i) = <theta, x> + beta ||x||."""

    def radius(self, ridge: Estimate, problem: ProblemSize) -> float:
        """beta for decisions made with ``ridge``."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same beta at all times, as in the paper's experiments."""

    beta: float = 10.5

    def __post_init__(self) -> None:
        require_nonnegative("beta", self.beta)

    def radius(self, ridge: Estimate, problem: ProblemSize) -> float:  # noqa: ARG002
        """The constant."""
        return self.beta


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Lemma 1, with the noise level R and min(1, alpha_c) as in its restatement in the appendix."""

    alpha_c: float = 1.0
    noise: float = 0.5
    delta: float = 0.01

    def __post_init__(self) -> None:
        require_positive("alpha_c", self.alpha_c)
        _check_noise(self.noise, self.delta)

    def radius(self, ridge: Estimate, problem: ProblemSize) -> float:
        """sqrt(lambda) + R (sqrt(1 + U a) + U sqrt(2 a)) sqrt(d ln(..) + 2 ln(1/delta) + 4 ln(T U))."""
        users, d, a = problem.users, problem.dimension, self.alpha_c
        seen = problem.list_length * problem.rounds
        spread = math.sqrt(1 + users * a) + users * math.sqrt(2 * a)
        logs = (
            d * math.log1p(seen / (min(1.0, a) * ridge.lambda_ * d))
            + 2 * math.log(1 / self.delta)
            + 4 * math.log(problem.rounds * users)
        )
        return math.sqrt(ridge.lambda_) + self.noise * spread * math.sqrt(logs)


@dataclass(frozen=True, kw_only=True)
class Oful:
    """The self-normalised bound of one central learner (Abbasi-Yadkori et al. 2011, theorem 2)."""

    noise: float = 0.5
    delta: float = 0.01

    def __post_init__(self) -> None:
        _check_noise(self.noise, self.delta)

    def radius(self, ridge: Estimate, problem: ProblemSize) -> float:
        """sqrt(lambda) + R sqrt(ln det(Sigma) - d ln(lambda) + 2 ln(1/delta))."""
        return float(compute_beta(self.beta_terms(ridge.lambda_, problem), ridge.log_det))

    def beta_terms(self, lambda_: float, problem: ProblemSize) -> BetaTerms:
        """What of beta does not change from round to round."""
        shift = 2 * math.log(1 / self.delta) - problem.dimension * math.log(lambda_)
        return BetaTerms(math.sqrt(lambda_), float(self.noise), shift)


def _check_noise(noise: float, delta: float) -> None:
    require_positive("noise", noise)
    require(0 < delta < 1, f"delta must be in (0, 1), got {delta}")
