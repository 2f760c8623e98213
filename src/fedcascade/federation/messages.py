"""The only two things that cross between an agent and the server."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

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

    An upload with ``kept`` is a *reset*: the user has become another one. Of all that the agent ever uploaded, this
    upload included, ``kept`` belongs to who the user is now, and the rest to who it was.
    """

    agent: Final[int]
    sequence: Final[int]
    cause: Final[Cause]
    statistics: Final[Statistics]
    kept: Final[Statistics | None] = None

    @property
    def bytes(self) -> int:
        return count_payload_bytes(self.statistics.dimension) * (1 if self.kept is None else 2)


@dataclass(kw_only=True)
class Download:
    """The pooled statistics of an agent's group (Algorithm 1, line 10), and how far the system is.

    The paper sends Sigma and theta; gram and moment are the same information and also let an agent add data
    of its own. ``rounds`` and ``agents`` are what the server knows of: an agent without a global clock
    extrapolates the round from them. ``components`` are the groups of a system whose agents find out by themselves to
    which they belong (``grouping.components``).
    """

    agent: Final[int]
    statistics: Final[Statistics]
    rounds: Final[int]
    agents: Final[int]
    components: Final[NDArray[np.float64] | None] = None

    @property
    def bytes(self) -> int:
        told = 0 if self.components is None else len(self.components)
        return count_payload_bytes(self.statistics.dimension, told)


def count_payload_bytes(dimension: int, groups: int = 0) -> int:
    """The bytes of one message: half of the symmetric gram, the moment and five whole numbers, 8 bytes each.

    Each of the ``groups`` that a download tells of has ``dimension`` + 2 numbers more.

    >>> count_payload_bytes(20)
    1880
    """
    return 8 * (dimension * (dimension + 1) // 2 + dimension + 5 + groups * (dimension + 2))
