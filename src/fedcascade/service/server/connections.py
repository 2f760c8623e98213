"""Which callers are served: connections in all and per address, requests per second, and web pages of other origins.

Connections are limited before any signature is looked at. Where there are too many, a newcomer takes the place of those
that have waited longest without a whole request: a stranger who holds connections open cannot keep others out.

Web pages of other origins (CORS) reach what agents need: enrolment, exchanges, standings, terms, and the agent's
modules. Requests of operators carry an Authorization header, which no page of another origin may send.
"""

import heapq
import ipaddress
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Protocol

from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.settings import is_address

HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its headers
BODY_SECONDS = 30.0  # from there to the end of its body
WRITE_SECONDS = 30.0  # for a caller to read what fills its buffers
IDLE_SECONDS = 5.0  # between an answer and the next request
MOST_HEAD_BYTES = 16 * 1024
MOST_HEADERS = 64
MOST_PIPELINED = 8  # requests that wait for an answer on one connection, beside the one that is answered
SHARE_DROPPED = 16  # of the connections that wait, one in so many goes at once, so that looking for them is rare
NEVER = float("inf")


class Connection(Protocol):
    """One connection of a caller, as the table sees it."""

    address: str
    deadline: float  # in seconds of the event loop; what is awaited from the caller is due then
    write_deadline: float  # the caller must have read by then
    is_waiting: bool  # no whole request is under way: whoever closes this loses nothing

    def expire(self) -> None:
        """Refuse a request that does not come, or close."""

    def drop(self) -> None:
        """Close at once, in favour of somebody else."""


class ConnectionTable:
    """All open connections of a server process.

    Args:
        most: connections in all.
        most_per_address: connections from one address.
        proxies: addresses that may have as many as there are: others speak through them.
    """

    def __init__(self, *, most: int, most_per_address: int, proxies: Collection[str] = ()) -> None:
        self.most = most
        self.most_per_address = min(most_per_address, max(1, most // 4))
        self._proxies = frozenset(proxies)
        self._all: set[Connection] = set()
        self._by_address: dict[str, set[Connection]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, connection: Connection) -> bool:
        """Take in a connection, if need be in the place of some that only wait; False if none of them does."""
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
        """Forget a connection that was closed."""
        self._all.discard(connection)
        neighbours = self._by_address.get(connection.address)
        if neighbours is not None:
            neighbours.discard(connection)
            if not neighbours:
                del self._by_address[connection.address]

    def expire(self, now: float) -> None:
        """End all connections whose callers are too slow."""
        for connection in [each for each in self._all if now > min(each.deadline, each.write_deadline)]:
            connection.expire()

    def _drop_longest_waiting(self, connections: Iterable[Connection]) -> bool:
        """Close some of the connections that wait for a request, longest first; False if none does."""
        waiting = [connection for connection in connections if connection.is_waiting]
        oldest = heapq.nsmallest(1 + len(waiting) // SHARE_DROPPED, waiting, key=lambda each: each.deadline)
        for connection in oldest:
            connection.drop()
        return bool(oldest)


@lru_cache(4096)
def name_network(host: str) -> str:
    """The network that counts as one caller: an IPv4 address, or the 64 bits of IPv6 that one customer is given.

    >>> name_network("192.0.2.7"), name_network("2001:db8:1:2:3::4"), name_network("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8:1:2::/64', '192.0.2.7')
    """
    if not is_address(host):
        return host
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def find_proxied(peer: str, forwarded: str, proxies: Collection[str]) -> str | None:
    """Return the last address in X-Forwarded-For that is no trusted proxy; None if the peer is none itself.

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
    """A token bucket per caller: each may make ``burst`` requests at once and ``rate`` per second in the long run."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._levels: dict[Caller, tuple[float, float]] = {}

    def take(self, caller: Caller, now: float) -> None:
        """Count a request, or refuse it and say when to come back."""
        self.require_room(caller, now)
        self.count(caller, now)

    def require_room(self, caller: Caller, now: float) -> None:
        """Refuse a request that ``take`` would refuse, and count nothing."""
        level = self._read_level(caller, now)
        if level < 1.0:
            wait = (1.0 - level) / self.rate
            raise Refused(429, "too-many-requests", f"try again in {wait:.2f} s", retry_after=wait)

    def count(self, caller: Caller, now: float) -> None:
        """Count a request, whether there was room for it or not."""
        if len(self._levels) >= CALLERS_KEPT:
            self._drop_full(now)
        self._levels[caller] = (max(0.0, self._read_level(caller, now) - 1.0), now)

    def _read_level(self, caller: Caller, now: float) -> float:
        level, since = self._levels.get(caller, (self.burst, now))
        return min(self.burst, level + (now - since) * self.rate)

    def _drop_full(self, now: float) -> None:
        """A caller whose bucket is full again need not be remembered."""
        full = [caller for caller in self._levels if self._read_level(caller, now) >= self.burst]
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


OPEN_PATHS = ("/v1/agents", "/v1/terms", "/agent/", wire.EXCHANGES)
HEADERS = {
    "vary": "origin",
    "access-control-expose-headers": f"{auth.SERVER_TIME}, retry-after",
    "access-control-allow-methods": "GET, POST, DELETE",
    "access-control-allow-headers": f"content-type, content-digest, {auth.SEQUENCE}, signature, signature-input",
    "access-control-max-age": "7200",
}


def build_headers(allowed: Collection[str], path: str, origin: str | None) -> dict[str, str]:
    """The headers by which a browser lets a page of that origin read the reply; none if it may not.

    >>> build_headers(["https://shop.example"], "/v1/overview", "https://shop.example")
    {}
    """
    if origin is None or origin not in allowed or not path.startswith(OPEN_PATHS):
        return {}
    return {"access-control-allow-origin": origin, **HEADERS}


def add_headers(allowed: Collection[str], message: Any, scope: Any) -> None:
    """Add them to the start of a response that the web application sends."""
    if not allowed or message["type"] != "http.response.start":
        return
    origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
    more = build_headers(allowed, scope["path"], origin)
    message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in more.items())]
