"""How many requests a caller may make."""

from fedcascade.service.protocol.errors import Refused

CALLERS_KEPT = 100_000
TRUST_SECONDS = 3600.0
Caller = str | int | tuple[str, int]


class RateLimiter:
    """A token bucket per caller: each may make ``burst`` requests at once and ``rate`` per second in the long run."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._levels: dict[Caller, tuple[float, float]] = {}

    def take(self, caller: Caller, now: float) -> None:
        """Count a request, or refuse it and say when to come back."""
        self._note(caller, self._require_level(caller, now), now)

    def require_room(self, caller: Caller, now: float) -> None:
        """Refuse a request that ``take`` would refuse, and count nothing."""
        self._require_level(caller, now)

    def count(self, caller: Caller, now: float) -> None:
        """Count a request, whether there was room for it or not."""
        self._note(caller, self._read_level(caller, now), now)

    def _require_level(self, caller: Caller, now: float) -> float:
        level = self._read_level(caller, now)
        if level < 1.0:
            wait = (1.0 - level) / self.rate
            raise Refused(429, "too-many-requests", f"try again in {wait:.2f} s", retry_after=wait)
        return level

    def _note(self, caller: Caller, level: float, now: float) -> None:
        if len(self._levels) >= CALLERS_KEPT:
            self._drop_full(now)
        self._levels[caller] = (max(0.0, level - 1.0), now)

    def _read_level(self, caller: Caller, now: float) -> float:
        level, since = self._levels.get(caller, (self.burst, now))
        return min(self.burst, level + (now - since) * self.rate)

    def _drop_full(self, now: float) -> None:
        """A caller whose bucket is full again need not be remembered."""
        levels = self._levels.items()
        full = [caller for caller, (level, since) in levels if level + (now - since) * self.rate >= self.burst]
        for caller in full or list(self._levels)[: CALLERS_KEPT // 10]:
            del self._levels[caller]


class ForgeryLimiter:
    """How many bad signatures an address may send before requests from it are refused unread.

    An agent whose signature held at that address within the last hour is not refused for what strangers beside it send:
    forgeries in its own name there count for it, and no others. So a flood must name an agent to touch it.
    """

    def __init__(self, *, rate: float, burst: float) -> None:
        self._limiter = RateLimiter(rate=rate, burst=burst)
        self._trusted: dict[tuple[str, int], float] = {}  # when the signature of an agent at an address last held

    def require_room(self, address: str, agent: int, now: float) -> None:
        """Refuse a request before its signature is looked at, if too many forgeries came from there."""
        self._limiter.require_room(self._choose_caller(address, agent, now), now)

    def count_forgery(self, address: str, agent: int, now: float) -> None:
        self._limiter.count(self._choose_caller(address, agent, now), now)

    def trust(self, address: str, agent: int, now: float) -> None:
        """Remember that an agent's signature held at an address."""
        if len(self._trusted) >= CALLERS_KEPT:
            for caller in sorted(self._trusted, key=self._trusted.__getitem__)[: CALLERS_KEPT // 10]:
                del self._trusted[caller]
        self._trusted[address, agent] = now

    def _choose_caller(self, address: str, agent: int, now: float) -> Caller:
        is_trusted = now - self._trusted.get((address, agent), -TRUST_SECONDS) < TRUST_SECONDS
        return (address, agent) if is_trusted else address
