"""The two messages between an agent and the server."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fedcascade.checks import RATIO
from fedcascade.learning.statistics import Statistics

# Declarations of constants that cause uploads and downloads, without defaults and symbols.
UPLOAD_RATIO: dict[str, Any] = {
    "meaning": "upload when the determinant has grown by more than this ratio; 1 is always, inf is never",
    "range": RATIO,
}
PUSH_RATIO: dict[str, Any] = {
    "meaning": "the server pushes to agents whose determinant lags behind by more than this ratio",
    "range": RATIO,
}


class Cause(StrEnum):
    """The reason for an exchange."""

    DETERMINANT = "determinant"
    AUXILIARY = "auxiliary"
    FORCED = "forced"
    SYNCHRONISATION = "synchronisation"
    PUSH = "push"
    CHANGE = "change"


@dataclass(kw_only=True)  # and each field Final, as in ``Statistics``
class Upload:
    """The statistics of an agent since its last upload (Algorithm 1, line 8). ``sequence`` counts from 1.

    An upload with the cause ``CHANGE`` replaces all earlier ones: the user has changed.
    """

    agent: Final[int]
    sequence: Final[int]
    cause: Final[Cause]
    statistics: Final[Statistics]

    @property
    def bytes(self) -> int:
        return count_payload_bytes(self.statistics.dimension)


# Agents and the pooled statistics of their groups (Algorithm 1, line 10). The paper sends Sigma and theta; gram and
# moment hold the same information, and an agent can add its own data to them.
Downloads = tuple[tuple[int, Statistics], ...]
Messages = tuple[tuple[Upload, ...], Downloads]  # of one exchange


def count_payload_bytes(dimension: int) -> int:
    """Count the bytes of a message: the gram's upper triangle, the moment and five integers, 8 bytes each.

    >>> count_payload_bytes(20)
    1880
    """
    return 8 * (dimension * (dimension + 1) // 2 + dimension + 5)
