"""What an agent decides with between two downloads."""

from dataclasses import dataclass
from typing import Protocol

from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics


class Decision(Protocol):
    """A part of a policy that says which data an agent's scores come from."""

    def ridge(self, download: Ridge, buffer: Statistics) -> Ridge:
        """Return the ridge to score with, given the last download and what was learned since."""


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
