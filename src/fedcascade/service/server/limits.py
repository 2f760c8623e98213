"""How many requests a caller may make."""

from fedcascade.service.protocol.errors import Refused

CALLERS_KEPT = 100_000


class RateLimiter:
    """A token bucket per caller: each may make ``burst`` requests at once and ``rate`` per second in the long run."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._levels: dict[str | int, tuple[float, float]] = {}

    def take(self, caller: str | int, now: float) -> None:
        """Count a request, or refuse it and say when to come back."""
        level, since = self._levels.get(caller, (self.burst, now))
        level = min(self.burst, level + (now - since) * self.rate)
        if level < 1.0:
            wait = (1.0 - level) / self.rate
            raise Refused(429, "too-many-requests", f"try again in {wait:.2f} s", retry_after=wait)
        if len(self._levels) >= CALLERS_KEPT:
            self._drop_full(now)
        self._levels[caller] = (level - 1.0, now)

    def _drop_full(self, now: float) -> None:
        """A caller whose bucket is full again need not be remembered."""
        levels = self._levels.items()
        full = [caller for caller, (level, since) in levels if level + (now - since) * self.rate >= self.burst]
        for caller in full or list(self._levels)[: CALLERS_KEPT // 10]:
            del self._levels[caller]
