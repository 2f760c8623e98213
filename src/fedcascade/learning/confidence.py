"""The width of exploration, beta: a constant, or the formula of a theorem."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fedcascade.checks import NONNEGATIVE, POSITIVE, PROBABILITY, require_integer
from fedcascade.constants import Part, constant
from fedcascade.learning.ridge import LinearEstimate
from fedcascade.numerics.jit import jit_inline


@dataclass(frozen=True, kw_only=True)
class ProblemSize:
    """The sizes of a problem, for the formulas of the theory."""

    users: int
    dimension: int
    list_length: int
    rounds: int

    def __post_init__(self) -> None:
        for name in ("users", "dimension", "list_length", "rounds"):
            require_integer(name.replace("_", " "), getattr(self, name))


# The declaration of alpha_c, of a trigger and of a theorem, without a default.
ALPHA_C: dict[str, Any] = {
    "meaning": "an agent uploads when its determinant has grown by this factor plus one",
    "symbol": "alpha_c",
    "range": POSITIVE,
}
PAPERS_BETA = 10.5  # found by a search for the paper's evaluation: docs/reference-results.md


class BetaTerms(NamedTuple):
    """The constants of beta = base + slope sqrt(ln det(Sigma) + shift)."""

    base: float
    slope: float
    shift: float


@jit_inline
def compute_beta(terms: BetaTerms, log_det: float) -> float:
    """Compute beta for ln det of Sigma; a radicand that rounding made negative counts as 0."""
    return terms.base + terms.slope * math.sqrt(max(0.0, log_det + terms.shift))


class Confidence(Protocol):
    """A part of a policy with the beta of U(i) = <theta, x> + beta ||x||."""

    def radius(self, ridge: LinearEstimate, problem: ProblemSize) -> float:
        """Return beta for an estimate."""


@dataclass(frozen=True, kw_only=True)
class Constant(Part):
    """A constant beta, as in the paper's experiments."""

    beta: float = constant(PAPERS_BETA, meaning="width of exploration", symbol="beta", range=NONNEGATIVE)

    def radius(self, ridge: LinearEstimate, problem: ProblemSize) -> float:  # noqa: ARG002
        return self.beta


@dataclass(frozen=True, kw_only=True)
class SelfNormalisedBound(Part):
    """The constants of a bound that holds with probability 1 - delta for R-sub-Gaussian noise."""

    noise: float = constant(0.5, meaning="R of the self-normalised bound that gives beta", symbol="R", range=POSITIVE)
    delta: float = constant(0.01, meaning="failure probability of that bound", symbol="delta", range=PROBABILITY)


@dataclass(frozen=True, kw_only=True)
class Theory(SelfNormalisedBound):
    """Lemma 1, with the noise level R and min(1, alpha_c) as in its restatement in the appendix."""

    alpha_c: float = constant(1.0, **ALPHA_C)

    def radius(self, ridge: LinearEstimate, problem: ProblemSize) -> float:
        """Compute sqrt(lambda) + R (sqrt(1 + U a) + U sqrt(2 a)) sqrt(d ln(..) + 2 ln(1/delta) + 4 ln(T U))."""
        users, d, a = problem.users, problem.dimension, self.alpha_c
        seen = problem.list_length * problem.rounds
        spread = math.sqrt(1 + users * a) + users * math.sqrt(2 * a)
        logs = d * math.log1p(seen / (min(1.0, a) * ridge.lambda_ * d)) + 2 * math.log(1 / self.delta)
        logs += 4 * math.log(problem.rounds * users)
        return math.sqrt(ridge.lambda_) + self.noise * spread * math.sqrt(logs)


@dataclass(frozen=True, kw_only=True)
class Oful(SelfNormalisedBound):
    """The self-normalised bound of one central learner (Abbasi-Yadkori et al. 2011, theorem 2)."""

    def radius(self, ridge: LinearEstimate, problem: ProblemSize) -> float:
        """Compute sqrt(lambda) + R sqrt(ln det(Sigma) - d ln(lambda) + 2 ln(1/delta))."""
        return float(compute_beta(self.beta_terms(ridge.lambda_, problem), ridge.log_det))

    def beta_terms(self, lambda_: float, problem: ProblemSize) -> BetaTerms:
        """Return the terms of beta that do not change from round to round."""
        shift = 2 * math.log(1 / self.delta) - problem.dimension * math.log(lambda_)
        return BetaTerms(math.sqrt(lambda_), float(self.noise), shift)
