"""Settings of a server, declared once with help and range as fields of dataclasses.

The command line and environment variables, such as ``FEDCASCADE_STORE``, are made from them.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from fedcascade.checks import NONNEGATIVE, POSITIVE, PROBABILITY, Range, read_whole, require, whole_numbers
from fedcascade.constants import Checked, constant
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import LARGEST_MINIMUM

SECONDS_PER_HOUR = 3600.0
COUNT = whole_numbers(1)
MINIMUM = whole_numbers(0, LARGEST_MINIMUM)
PORT = Range("in 0..65535", lambda value: isinstance(value, int) and 0 <= value <= 65_535, read_whole)
ORIGIN = re.compile(r"https?://[a-z0-9.\-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")


@dataclass(frozen=True, kw_only=True)
class UploadBounds(Checked):
    """Bounds of an agent's uploads; the defaults suit people, and a simulation needs more rounds.

    An agent may upload ``rounds_burst`` rounds and ``rounds_per_hour`` more for every hour since it enrolled. Bounds
    are checked once, when an upload arrives, so a replay of the log does not depend on them or on the clock.
    """

    longest_list: int = constant(50, "Most items in a list, hence observations in a round", COUNT)
    min_observations: int | None = constant(
        None, "Fewest observations in an upload, so that none can be read from it. [default: 2 d]", MINIMUM
    )
    rounds_burst: int = constant(1_000, "Rounds that an agent may play at any pace", COUNT)
    rounds_per_hour: float = constant(60.0, "Further rounds of an agent for each hour since it enrolled", NONNEGATIVE)

    def get_min_observations(self, dimension: int) -> int:
        """Return the fewest observations in an upload of that dimension."""
        return 2 * dimension if self.min_observations is None else self.min_observations

    def check(self, statistics: Statistics, *, held_rounds: int, seconds: float) -> None:
        """Refuse an upload that is too small or too heavy; ``seconds`` is the time since the agent enrolled."""
        count, rounds = statistics.count, statistics.rounds
        least = self.get_min_observations(statistics.dimension)
        if count < least:
            raise Refused(422, "too-few", f"an upload must hold at least {least} observations, got {count}")
        if count > rounds * self.longest_list:
            limit = f"at most {self.longest_list} observations per round, the longest list"
            raise Refused(422, "too-heavy", f"an upload must hold {limit}, got {count} in {rounds} rounds")
        total, seconds = held_rounds + rounds, max(0.0, seconds)
        excess = total - self.rounds_burst
        if excess <= seconds * self.rounds_per_hour / SECONDS_PER_HOUR:
            return
        allowed = f"{self.rounds_burst} rounds and {self.rounds_per_hour:g} per hour since it enrolled"
        line = f"an agent may play {allowed}, this one has {total} after {seconds / SECONDS_PER_HOUR:.2f} hours"
        if self.rounds_per_hour <= 0:
            raise Refused(429, "too-many-rounds", line)
        wait = excess / self.rounds_per_hour * SECONDS_PER_HOUR - seconds
        raise Refused(429, "too-many-rounds", f"{line}: try again in {wait:.0f} s", retry_after=wait)


DEFAULT_BOUNDS = UploadBounds()
# Simulated users play in seconds the rounds of years, and upload single observations.
FOR_SIMULATIONS = UploadBounds(longest_list=1_000, min_observations=0, rounds_burst=LARGEST_TOTAL)


@dataclass(frozen=True, kw_only=True)
class Limits(Checked):
    """Limits of callers: requests per second and at once, bytes of a body, connections.

    An upload holds some ten rounds; the burst is for agents that were offline. Bad signatures are limited to a fifth of
    an address's rate.
    """

    rate: float = constant(0.2, "Requests per second of one agent, in the long run", POSITIVE)
    burst: float = constant(100.0, "Requests of one agent at once", POSITIVE)
    address_rate: float = constant(
        50.0, "Enrolments and operator requests per second from one address, in the long run", POSITIVE
    )
    address_burst: float = constant(100.0, "Enrolments and operator requests from one address at once", POSITIVE)
    body_bytes: int | None = constant(None, "Most bytes in the body of a request. [default: by the dimension]", COUNT)
    connections: int = constant(4_096, "Most connections in total", COUNT)
    connections_per_address: int = constant(512, "Most connections from one address", COUNT)
    trusted_proxy: tuple[str, ...] = constant(
        (), "Address of a proxy whose X-Forwarded-For is trusted. Repeatable. [default: none]"
    )
    allow_origin: tuple[str, ...] = constant(
        (), "Web site whose pages may run agents, such as https://shop.example. Repeatable. [default: none]"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.burst >= 1, f"burst must be >= 1, got {self.burst:g}")
        for proxy in self.trusted_proxy:
            require(is_address(proxy), f"a trusted proxy must be an IP address, got '{proxy}'")
        for origin in self.allow_origin:  # a browser sends no path, no wildcard and no capital letters
            is_origin = ORIGIN.fullmatch(origin) is not None
            require(is_origin, f"an origin must look like https://shop.example, got '{origin}'")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Checked):
    """Options of a server: store, address, TLS, commits, retention."""

    store: str = constant(
        "sqlite:///fedcascade.db", "Database of the server: sqlite:///file.db or postgresql://user@host/database"
    )
    dimension: int = constant(20, "d, the number of features of an item", COUNT)
    features: str = constant(
        "", "Version of the features, a label or label:hash; agents and stores of another version are refused"
    )
    privacy: str = constant(
        "",
        "Noise that agents add to uploads, such as epsilon=2,delta=1e-6 (docs/explanation-privacy.md). [default: none]",
    )
    host: str = constant("127.0.0.1", "Address to listen on")
    port: int = constant(8777, "Port to listen on; 0 takes any free port", PORT)
    tls_cert: Path | None = constant(None, "Certificate chain (PEM), to serve https")
    tls_key: Path | None = constant(None, "Private key (PEM) of the certificate")
    operator_token: Path = constant(
        Path("operator.token"), "File with the operator's token; created at the first start"
    )
    tenants: Path | None = constant(
        None, "File (TOML) with a table of settings for each of several federations, served under /t/NAME"
    )
    batch: int = constant(256, "Most uploads in one commit", COUNT)
    snapshot_every: int = constant(10_000, "Uploads between two snapshots, or one per 20 agents if that is more", COUNT)
    retain: float | None = constant(
        None, "Days after which the uploads of each agent are folded into one. [default: keep all]"
    )
    guard_margin: float = constant(
        0.0, "Alarm if an A/B test's treatment is clicked less than control by more than this share", NONNEGATIVE
    )
    guard_level: float = constant(0.05, "Chance of a false alarm over the whole A/B test", PROBABILITY)
    scrub: float = constant(24.0, "Hours between two verifications of the whole store in the background", POSITIVE)
    take_over: bool = constant(
        False, "Serve a store that was served with another policy or constants; servers with the old ones end"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        days = self.retain
        require(days is None or days > 0, f"retain must be more than 0 days, got {days}")
        both_or_none = (self.tls_cert is None) == (self.tls_key is None)
        require(both_or_none, "TLS needs both a certificate and a key: give --tls-cert and --tls-key")


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
