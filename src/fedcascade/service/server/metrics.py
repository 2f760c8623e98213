"""What an operator watches: Prometheus metrics of one server process."""

from collections.abc import Callable, Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from fedcascade.federation.messages import Cause

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5)


Gauge = tuple[str, Callable[[], float]]  # what it is, and how to read it


class Metrics:
    """Counters, gauges and one histogram, in a registry of their own."""

    def __init__(self, gauges: Mapping[str, Gauge]) -> None:
        registry = self._registry = CollectorRegistry()
        self._exchanges = Counter("fedcascade_exchanges", "Answered uploads.", ["cause"], registry=registry)
        self._refused = Counter("fedcascade_refused", "Refused requests.", ["reason"], registry=registry)
        self._bytes = Counter("fedcascade_bytes", "Bytes of exchanges.", ["direction"], registry=registry)
        self._latency = Histogram(
            "fedcascade_exchange_seconds", "From request to durable answer.", buckets=BUCKETS, registry=registry
        )
        self._shares = prometheus_client.Gauge(
            "fedcascade_outsized_share",
            "Share of its group's observations that an agent holds, of agents with abnormally many.",
            ["agent"],
            registry=registry,
        )
        for name, (text, read) in gauges.items():
            prometheus_client.Gauge(f"fedcascade_{name}", text, registry=registry).set_function(read)
        self._causes = {cause: self._exchanges.labels(cause.value) for cause in Cause}
        self._up, self._down = self._bytes.labels("up"), self._bytes.labels("down")
        self._noted = dict.fromkeys(Cause, 0)  # exchanges that the counters do not hold yet, and their bytes
        self._noted_up = self._noted_down = 0

    def count_exchange(self, cause: Cause, up: int, down: int, seconds: float) -> None:
        """Count an exchange. Counters lock for each sum, so they are told when somebody reads them."""
        self._noted[cause] += 1
        self._noted_up += up
        self._noted_down += down
        self._latency.observe(seconds)

    def count_refusal(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def show_shares(self, shares: Mapping[int, float]) -> None:
        """Replace the agents that are named for their share of a group."""
        self._shares.clear()
        for agent, share in shares.items():
            self._shares.labels(str(agent)).set(share)

    def render(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        for cause, exchanges in self._noted.items():
            self._causes[cause].inc(exchanges)
        self._up.inc(self._noted_up)
        self._down.inc(self._noted_down)
        self._noted, self._noted_up, self._noted_down = dict.fromkeys(Cause, 0), 0, 0
        return generate_latest(self._registry)
