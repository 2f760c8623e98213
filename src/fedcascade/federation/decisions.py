"""What an agent decides with between two downloads."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.oracles import Ties
from fedcascade.learning.ridge import Estimate, Ridge, to_columns
from fedcascade.learning.statistics import Statistics
from fedcascade.learning.thompson import sample_scores


class Decision(Protocol):
    """A part of a policy that says which data an agent's scores come from."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:
        """The ridge to score with, given the last download and what was learned since."""


@dataclass(frozen=True)
class LastDownload:
    """The last download alone, as in the paper: an agent is frozen between exchanges."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:  # noqa: ARG002
        return download


@dataclass(frozen=True)
class DownloadAndBuffer:
    """The last download and the agent's own data since; an agent that never downloads has its own data."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:
        return Ridge(download.statistics + buffer, download.lambda_) if buffer.count else download


@dataclass(frozen=True)
class ThompsonSampling(DownloadAndBuffer):
    """The same data, but scores by a theta that is drawn anew for each list, from N(theta, beta^2 Sigma^-1).

    Lists of such an agent have no known propensities: their chances have no closed form.
    """

    def sample_scores(
        self, estimate: Estimate, features: NDArray[np.float32], beta: float, ties: Ties
    ) -> NDArray[np.float64]:
        """Score the items on offer; the words that break ties are all the randomness."""
        return sample_scores(estimate.theta, estimate.root, beta, to_columns(features), ties)
