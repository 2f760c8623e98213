"""Limits of callers: connections in total and per address, requests per second, and CORS.

Connections are limited before any signature is verified. If there are too many, a new connection replaces those that
have waited longest without a complete request, so idle connections cannot lock others out.

Web pages of other origins reach the endpoints of agents: enrolment, exchanges, standings, terms, and the agent's
modules. Requests of operators carry an Authorization header, which pages of other origins may not send.
"""

import heapq
import ipaddress
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Protocol

from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.settings import is_address

DROPPED_SHARE = 16  # close one in 16 waiting connections at once, so that searches are rare


class Connection(Protocol):
    """A connection in a ``ConnectionTable``."""

    address: str
    deadline: float  # of the caller's next data, in seconds of the event loop
    write_deadline: float  # for the caller to read the send buffer
    is_waiting: bool  # no complete request is in progress, so closing loses nothing

    def expire(self) -> None:
        """Refuse an incomplete request, or close an idle connection."""

    def drop(self) -> None:
        """Close at once, in favour of another connection."""


class ConnectionTable:
    """The open connections of a server process; addresses of ``proxies`` are limited in total only."""

    def __init__(self, *, most: int, most_per_address: int, proxies: Collection[str] = ()) -> None:
        self.most = most
        self.most_per_address = min(most_per_address, max(1, most // 4))
        self._proxies = frozenset(proxies)
        self._all: set[Connection] = set()
        self._by_address: dict[str, set[Connection]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, connection: Connection) -> bool:
        """Add a connection, closing waiting ones if the table is full; return False if there is none to close."""
        neighbours = self._by_address.get(connection.address, set())
        is_crowded = len(neighbours) >= self.most_per_address and connection.address not in self._proxies
        if is_crowded and not self._drop_longest_waiting(neighbours):
            return False
        if len(self._all) >= self.most and not self._drop_longest_waiting(self._all):
            return False
        self._all.add(connection)
        self._by_address.setdefault(connection.address, set()).add(connection)
        return True

    def release(self, connection: Connection) -> None:
        self._all.discard(connection)
        neighbours = self._by_address.get(connection.address)
        if neighbours is not None:
            neighbours.discard(connection)
            if not neighbours:
                del self._by_address[connection.address]

    def expire(self, now: float) -> None:
        """End the connections whose callers are too slow."""
        for connection in [each for each in self._all if now > min(each.deadline, each.write_deadline)]:
            connection.expire()

    def _drop_longest_waiting(self, connections: Iterable[Connection]) -> bool:
        """Close the connections that have waited longest; return False if none waits."""
        waiting = [connection for connection in connections if connection.is_waiting]
        oldest = heapq.nsmallest(1 + len(waiting) // DROPPED_SHARE, waiting, key=lambda each: each.deadline)
        for connection in oldest:
            connection.drop()
        return bool(oldest)


@lru_cache(4096)
def name_network(host: str) -> str:
    """Return the network that counts as one caller: an IPv4 address or a /64 prefix of IPv6.

    >>> name_network("192.0.2.7"), name_network("2001:db8:1:2:3::4"), name_network("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8:1:2::/64', '192.0.2.7')
    """
    if not is_address(host):
        return host
    address = ipaddress.ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address if address.version == 4 else ipaddress.ip_network((int(address), 64), strict=False))


def find_proxied(peer: str, forwarded: str, proxies: Collection[str]) -> str | None:
    """Return the last untrusted address in X-Forwarded-For; None if the peer is not a trusted proxy.

    >>> find_proxied("10.0.0.1", "1.2.3.4, 192.0.2.7", ("10.0.0.1",)), find_proxied("10.0.0.1", "1.2.3.4", ())
    ('192.0.2.7', None)
    """
    if peer not in proxies:
        return None
    named = [entry.strip() for entry in forwarded.split(",")]
    return next((entry for entry in reversed(named) if entry and entry not in proxies), peer)


CALLERS_KEPT = 100_000
TRUST_SECONDS = 3600.0
Caller = str | int | tuple[str, int]


class RateLimiter:
    """A token bucket per caller: ``burst`` requests at once and ``rate`` per second in the long run."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._levels: dict[Caller, tuple[float, float]] = {}

    def take(self, caller: Caller, now: float) -> None:
        """Count a request, or refuse it with the time to wait."""
        self.require_capacity(caller, now)
        self.count(caller, now)

    def require_capacity(self, caller: Caller, now: float) -> None:
        """Refuse a request that ``take`` would refuse, without counting it."""
        level = self._read_level(caller, now)
        if level < 1.0:
            wait = (1.0 - level) / self.rate
            raise Refused(429, "too-many-requests", f"try again in {wait:.2f} s", retry_after=wait)

    def count(self, caller: Caller, now: float) -> None:
        """Count a request, even beyond the limit."""
        if len(self._levels) >= CALLERS_KEPT:
            self._drop_full(now)
        self._levels[caller] = (max(0.0, self._read_level(caller, now) - 1.0), now)

    def _read_level(self, caller: Caller, now: float) -> float:
        level, since = self._levels.get(caller, (self.burst, now))
        return min(self.burst, level + (now - since) * self.rate)

    def _drop_full(self, now: float) -> None:
        """Drop callers whose buckets are full again."""
        full = [caller for caller in self._levels if self._read_level(caller, now) >= self.burst]
        for caller in full or list(self._levels)[: CALLERS_KEPT // 10]:
            del self._levels[caller]


class ForgeryLimiter:
    """Limit of bad signatures per address; beyond it, requests are refused before verification.

    An agent whose signature was valid at that address within the last hour has a bucket of its own: only forgeries that
    name it count against it.
    """

    def __init__(self, *, rate: float, burst: float) -> None:
        self._limiter = RateLimiter(rate=rate, burst=burst)
        self._trusted: dict[tuple[str, int], float] = {}  # time of the last valid signature by address and agent

    def require_capacity(self, address: str, agent: int, now: float) -> None:
        """Refuse a request before verification if too many forgeries came from its address."""
        self._limiter.require_capacity(self._choose_caller(address, agent, now), now)

    def count_forgery(self, address: str, agent: int, now: float) -> None:
        self._limiter.count(self._choose_caller(address, agent, now), now)

    def trust(self, address: str, agent: int, now: float) -> None:
        """Record a valid signature of an agent at an address."""
        if len(self._trusted) >= CALLERS_KEPT:
            for caller in sorted(self._trusted, key=self._trusted.__getitem__)[: CALLERS_KEPT // 10]:
                del self._trusted[caller]
        self._trusted[address, agent] = now

    def _choose_caller(self, address: str, agent: int, now: float) -> Caller:
        is_trusted = now - self._trusted.get((address, agent), -TRUST_SECONDS) < TRUST_SECONDS
        return (address, agent) if is_trusted else address


OPEN_PATHS = ("/v1/agents", "/v1/terms", "/agent/", wire.EXCHANGES)
HEADERS = {
    "vary": "origin",
    "access-control-expose-headers": f"{auth.SERVER_TIME}, retry-after",
    "access-control-allow-methods": "GET, POST, DELETE",
    "access-control-allow-headers": f"content-type, content-digest, {auth.SEQUENCE}, signature, signature-input",
    "access-control-max-age": "7200",
}


def build_headers(allowed: Collection[str], path: str, origin: str | None) -> dict[str, str]:
    """Return the CORS headers that let a page of that origin read the reply; empty if it may not.

    >>> build_headers(["https://shop.example"], "/v1/overview", "https://shop.example")
    {}
    """
    if origin is None or origin not in allowed or not path.startswith(OPEN_PATHS):
        return {}
    return {"access-control-allow-origin": origin, **HEADERS}


async def add_headers(allowed: Collection[str], message: Any, scope: Any) -> None:
    """Add the CORS headers to the start of a response of the web application."""
    if not allowed or message["type"] != "http.response.start":
        return
    origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
    more = build_headers(allowed, scope["path"], origin)
    present = {name.lower() for name, _ in message["headers"]}
    added = [(name.encode(), value.encode()) for name, value in more.items() if name.encode() not in present]
    message["headers"] = [*message["headers"], *added]
