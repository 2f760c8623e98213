"""The clock of a server or an agent, as a value: a simulated day can take minutes."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Wall-clock time and monotonic time.

    Attributes:
        now: seconds since 1970, for signatures, expiries and the journal.
        elapsed: seconds that never go back, for rates.
    """

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic

    def read_milliseconds(self) -> int:
        """Return milliseconds since 1970, as in the journal."""
        return int(1000 * self.now())


SYSTEM_CLOCK = Clock()
