"""How long to wait before the next try, after tries that failed."""

import random
from collections.abc import Callable

PAUSES = (0.25, 300.0)  # seconds before the first retry, and the longest pause


def compute_pause(
    failures: int, pauses: tuple[float, float], retry_after: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Seconds until the next try: exponential back-off with jitter, and never sooner than the server asked for.

    >>> compute_pause(3, (0.25, 300.0), None, lambda: 1.0), compute_pause(1, (0.25, 300.0), 7.0)
    (1.0, 7.0)
    """
    first, longest = pauses
    return max(retry_after or 0.0, min(longest, first * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * draw()))
