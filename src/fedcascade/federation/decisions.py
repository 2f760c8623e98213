"""Decision rules: the data that an agent scores items with between two downloads."""

from dataclasses import dataclass
from typing import Protocol

from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics


class Decision(Protocol):
    """A part of a policy that chooses the data to score items with."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:
        """Return the ridge to score with, given the last download and the data since."""


@dataclass(frozen=True)
class LastDownload:
    """The last download alone, as in the paper: scores change only with an exchange."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:  # noqa: ARG002
        return download


@dataclass(frozen=True)
class ItemShares:
    """The share of clicks of each item, by all users: ``simulation.popularity``, which has no agents."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:  # noqa: ARG002
        raise ValueError("popularity ranks items by number, which agents do not see: only a simulation can play it")


@dataclass(frozen=True)
class DownloadAndBuffer:
    """The last download and the agent's own data since."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:
        has_data = buffer.count or buffer.moment.any()  # a late reward has no count
        return Ridge(download.statistics + buffer, download.lambda_) if has_data else download
