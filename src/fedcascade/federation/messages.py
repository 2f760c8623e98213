"""The only two things that cross between an agent and the server."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fedcascade.checks import RATIO
from fedcascade.constants import constant
from fedcascade.learning.statistics import Statistics


class Cause(StrEnum):
    """Why an exchange took place."""

    DETERMINANT = "determinant"
    AUXILIARY = "auxiliary"
    FORCED = "forced"
    SYNCHRONISATION = "synchronisation"
    PUSH = "push"
    CHANGE = "change"


@dataclass(kw_only=True)  # and each field Final, as in ``Statistics``
class Upload:
    """What an agent learned since its last upload (Algorithm 1, line 8); its ``sequence``-th one, from 1 on.

    An upload whose cause is ``CHANGE`` replaces everything that the agent uploaded before: its user has changed.
    """

    agent: Final[int]
    sequence: Final[int]
    cause: Final[Cause]
    statistics: Final[Statistics]

    @property
    def bytes(self) -> int:
        return count_payload_bytes(self.statistics.dimension)


@dataclass(kw_only=True)
class Download:
    """The pooled statistics of an agent's group (Algorithm 1, line 10), and how far the system is.

    The paper sends Sigma and theta; gram and moment are the same information and also let an agent add data
    of its own. ``rounds`` and ``agents`` are what the server knows of: an agent without a global clock
    extrapolates the round from them.
    """

    agent: Final[int]
    statistics: Final[Statistics]
    rounds: Final[int]
    agents: Final[int]

    @property
    def bytes(self) -> int:
        return count_payload_bytes(self.statistics.dimension)


Messages = tuple[tuple[Upload, ...], tuple[Download, ...]]  # of one exchange


def count_payload_bytes(dimension: int) -> int:
    """The bytes of one message: half of the symmetric gram, the moment and five whole numbers, 8 bytes each.

    >>> count_payload_bytes(20)
    1880
    """
    return 8 * (dimension * (dimension + 1) // 2 + dimension + 5)


def describe_upload_ratio(default: float, symbol: str) -> Any:
    """Describe a field by which uploads are due."""
    meaning = "an upload is due when the determinant has grown beyond this ratio; 1 is always, inf is never"
    return constant(default, meaning=meaning, symbol=symbol, range=RATIO)


def describe_push_ratio(default: float, symbol: str) -> Any:
    """Describe a field by which downloads are due."""
    meaning = "the server pushes to whose determinant is behind by more than this ratio"
    return constant(default, meaning=meaning, symbol=symbol, range=RATIO)
