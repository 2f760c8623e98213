"""What a server can be told: each setting is declared once, with its meaning and range, as a field of a dataclass.

The command line and environment variables (``FEDCASCADE_STORE`` and so on) take the same dataclasses.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from fedcascade.checks import NONNEGATIVE, POSITIVE, Range, read_whole, require, whole_numbers
from fedcascade.constants import Checked as CheckedSettings
from fedcascade.constants import constant as setting
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol.errors import Refused

SECONDS_PER_HOUR = 3600.0
COUNT = whole_numbers(1)
PORT = Range("in 0..65535", lambda value: isinstance(value, int) and 0 <= value <= 65_535, read_whole)
ORIGIN = re.compile(r"https?://[a-z0-9.\-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")


@dataclass(frozen=True, kw_only=True)
class UploadBounds(CheckedSettings):
    """How much one agent may claim; the defaults suit people, and a simulation needs more rounds.

    An agent's rounds, all uploads together, are at most ``rounds_burst`` and ``rounds_per_hour`` for every hour since
    it enrolled. They are checked with the server's clock, when an upload comes. What is in the log is never judged
    again, so a replay does not depend on the clock or on the bounds of today.
    """

    longest_list: int = setting(50, "Most items in a list, hence observations in a round", COUNT)
    min_observations: int | None = setting(
        None, "Fewest observations in an upload; one alone would reveal itself. [default: 2 d]", whole_numbers(0)
    )
    rounds_burst: int = setting(1_000, "Rounds that one agent may play at any pace", COUNT)
    rounds_per_hour: float = setting(60.0, "Rounds beyond those, for each hour since it enrolled", NONNEGATIVE)

    def get_min_observations(self, dimension: int) -> int:
        """The fewest observations in an upload of that dimension."""
        return 2 * dimension if self.min_observations is None else self.min_observations

    def check(self, statistics: Statistics, *, held_rounds: int, seconds: float) -> None:
        """Refuse an upload that is too small or too heavy.

        Args:
            statistics: those of the upload.
            held_rounds: the agent's rounds that the server holds already.
            seconds: the time since the agent enrolled; a clock that was set back counts as none.
        """
        count, rounds = statistics.count, statistics.rounds
        least = self.get_min_observations(statistics.dimension)
        if count < least:
            raise Refused(422, "too-few", f"an upload must hold at least {least} observations, got {count}")
        if count > rounds * self.longest_list:
            limit = f"at most {self.longest_list} observations a round, the longest list"
            raise Refused(422, "too-heavy", f"an upload must hold {limit}, got {count} in {rounds} rounds")
        excess = held_rounds + rounds - self.rounds_burst
        if excess > max(0.0, seconds) * self.rounds_per_hour / SECONDS_PER_HOUR:
            self._refuse_rounds(held_rounds + rounds, excess, max(0.0, seconds))

    def _refuse_rounds(self, total: int, excess: int, seconds: float) -> None:
        allowed = f"{self.rounds_burst} rounds and {self.rounds_per_hour:g} an hour since it enrolled"
        line = f"an agent may play {allowed}, this one has {total} after {seconds / SECONDS_PER_HOUR:.2f} hours"
        if self.rounds_per_hour <= 0:
            raise Refused(429, "too-many-rounds", line)
        wait = excess / self.rounds_per_hour * SECONDS_PER_HOUR - seconds
        raise Refused(429, "too-many-rounds", f"{line}: try again in {wait:.0f} s", retry_after=wait)


DEFAULT_BOUNDS = UploadBounds()
# Simulated users play in seconds what people play in years, and upload as little as they like.
FOR_SIMULATIONS = UploadBounds(longest_list=1_000, min_observations=0, rounds_burst=LARGEST_TOTAL)


@dataclass(frozen=True, kw_only=True)
class Limits(CheckedSettings):
    """How much callers may ask for: requests per second and at once, bytes of a body, connections.

    One upload holds some ten rounds of a user, and an agent's burst is for one that was offline. A fifth of an
    address's rate holds for its bad signatures.
    """

    rate: float = setting(0.2, "Requests per second that one agent may make in the long run", POSITIVE)
    burst: float = setting(100.0, "Requests that one agent may make at once", POSITIVE)
    address_rate: float = setting(
        50.0, "Enrolments per second from one address, and requests of an operator, in the long run", POSITIVE
    )
    address_burst: float = setting(100.0, "Enrolments from one address at once", POSITIVE)
    body_bytes: int | None = setting(None, "Most bytes of a request's body. [default: by the dimension]", COUNT)
    connections: int = setting(4_096, "Most connections in all", COUNT)
    connections_per_address: int = setting(512, "Most connections from one address", COUNT)
    trusted_proxy: tuple[str, ...] = setting(
        (), "A proxy's address, whose X-Forwarded-For is believed. Repeatable. [default: none]"
    )
    allow_origin: tuple[str, ...] = setting(
        (), "A web site, as in https://shop.example, whose pages may hold agents. Repeatable. [default: none]"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.burst >= 1, f"burst must be >= 1, else nobody can make a request, got {self.burst:g}")
        for proxy in self.trusted_proxy:
            require(is_address(proxy), f"a trusted proxy must be an IP address, got '{proxy}'")
        for origin in self.allow_origin:  # a browser sends no path, no wildcard and no capital letters
            is_origin = ORIGIN.fullmatch(origin) is not None
            require(is_origin, f"an origin looks like https://shop.example, got '{origin}'")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(CheckedSettings):
    """How a server runs: store, address, TLS, commits, retention."""

    store: str = setting(
        "sqlite:///fedcascade.db",
        "Where everything is kept: sqlite:///file.db or postgresql://user@host/database",
    )
    dimension: int = setting(20, "d, how many features an item has", COUNT)
    host: str = setting("127.0.0.1", "Address to listen on")
    port: int = setting(8777, "Port to listen on; 0 takes any that is free", PORT)
    tls_cert: Path | None = setting(None, "Certificate chain (PEM), to serve https")
    tls_key: Path | None = setting(None, "Private key (PEM) of the certificate")
    operator_token: Path = setting(
        Path("operator.token"), "File with the operator's token; made at the first start if missing"
    )
    batch: int = setting(256, "Most uploads that share one commit", COUNT)
    snapshot_every: int = setting(10_000, "Uploads between two snapshots, or two per agent if that is more", COUNT)
    retain: float | None = setting(
        None, "Fold each agent's uploads that are older than so many days into one. [default: keep all]"
    )
    take_over: bool = setting(
        False, "Serve a store that was served with another policy or constants; servers with those end"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        days = self.retain
        require(days is None or days > 0, f"retain must be more than 0 days, got {days}")
        both_or_none = (self.tls_cert is None) == (self.tls_key is None)
        require(both_or_none, "TLS needs both a certificate and a key: give --tls-cert and --tls-key")


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
