"""What time it is, as a value: servers and agents read a clock that they are given, so that a day can take minutes."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Two ways to read the time. Whoever sets the clock of a machine changes ``now`` and not ``elapsed``.

    Attributes:
        now: seconds since 1970, for what is written down: signatures, expiries, the journal.
        elapsed: seconds since some moment, which never go back, for rates.
    """

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic

    def read_milliseconds(self) -> int:
        """Whole milliseconds since 1970, as the journal has them."""
        return int(1000 * self.now())


SYSTEM_CLOCK = Clock()
