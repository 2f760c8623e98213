"""Who may be connected: so many in all and from one address, and nobody who keeps the server waiting for long.

All of this holds before any signature is looked at. Where there are too many connections, a newcomer takes the place of
those that have waited longest without a whole request: a stranger who holds connections open cannot keep others out.
"""

import heapq
import ipaddress
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Protocol

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


def find_caller(peer: str, forwarded: str, proxies: Collection[str]) -> str:
    """Who speaks: the peer, or whom a trusted proxy names last in X-Forwarded-For that is not a trusted proxy itself.

    >>> find_caller("10.0.0.1", "1.2.3.4, 192.0.2.7", ("10.0.0.1",)), find_caller("10.0.0.1", "1.2.3.4", ())
    ('192.0.2.7', '10.0.0.1')
    """
    if peer not in proxies:
        return peer
    named = [entry.strip() for entry in forwarded.split(",")]
    return next((entry for entry in reversed(named) if entry and entry not in proxies), peer)
