"""Prometheus metrics, agents with abnormal weight, and OpenTelemetry traces.

An exchange is a span from request to durable answer, a refusal is a span of no duration, a transaction is a span of the
writer. OpenTelemetry is imported only with a tracer, and configured by its own variables, such as
``OTEL_EXPORTER_OTLP_ENDPOINT``.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from fedcascade.federation.messages import Cause
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds
Gauge = tuple[str, Callable[[], float]]  # its help text, and a function that reads it


@dataclass(frozen=True)
class ReadCounter(Collector):
    """A counter that is read when metrics are collected."""

    name: str
    text: str
    read: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self.name, self.text, self.read())


@dataclass(frozen=True)
class TrialCollector(Collector):
    """The counters of an A/B test by arm, and its guardrail."""

    read: Callable[[], Mapping[str, Any] | None]

    def collect(self) -> Iterator[Metric]:
        trial = self.read()
        if trial is None:
            return
        for place, (name, text) in enumerate((("lists", "Lists of an arm."), ("clicks", "Clicked lists of an arm."))):
            family = CounterMetricFamily(f"fedcascade_arm_{name}", text, labels=["arm"])
            for arm, totals in trial["arms"].items():
                family.add_metric([arm], totals[place])
            yield family
        text = "1 if treatment is below control by more than the margin."
        yield GaugeMetricFamily("fedcascade_arm_alarm", text, float(trial["alarm"]))


@dataclass(frozen=True)
class PrivacyCollector(Collector):
    """A histogram of the epsilon that agents have spent, if their uploads are private."""

    read: Callable[[], Sequence[tuple[float, int]]]

    def collect(self) -> Iterator[Metric]:
        spent = self.read()
        if spent:
            sums = np.cumsum([agents for _, agents in spent]).tolist()
            buckets = [(f"{epsilon:.6g}", float(agents)) for (epsilon, _), agents in zip(spent, sums, strict=True)]
            total = sum(epsilon * agents for epsilon, agents in spent)
            text = "Epsilon that agents have spent by private uploads."
            buckets.append(("+Inf", float(sums[-1])))
            yield HistogramMetricFamily("fedcascade_privacy_epsilon", text, buckets, total)


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
        for name, (text, read) in gauges.items():
            if name.endswith("_total"):
                registry.register(ReadCounter(f"fedcascade_{name}", text, read))
            else:
                prometheus_client.Gauge(f"fedcascade_{name}", text, registry=registry).set_function(read)
        self._causes = {cause: self._exchanges.labels(cause.value) for cause in Cause}
        self._up, self._down = self._bytes.labels("up"), self._bytes.labels("down")
        self._noted = dict.fromkeys(Cause, 0)  # not yet added to the counters
        self._noted_up = self._noted_down = 0

    def add_trial(self, describe: Callable[[], Mapping[str, Any] | None]) -> None:
        """Show lists, clicks and the guardrail of an A/B test, if there is one."""
        self._registry.register(TrialCollector(describe))

    def add_privacy(self, read: Callable[[], Sequence[tuple[float, int]]]) -> None:
        """Show the spent epsilon of agents, if their uploads are private."""
        self._registry.register(PrivacyCollector(read))

    def count_exchange(self, cause: Cause, up: int, down: int, seconds: float) -> None:
        """Count an exchange. Prometheus' counters lock, so they are only updated when metrics are read."""
        self._noted[cause] += 1
        self._noted_up += up
        self._noted_down += down
        self._latency.observe(seconds)

    def count_refusal(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def collect(self) -> Iterable[Metric]:
        """Add what was noted to the counters, and return all metrics."""
        for cause, exchanges in self._noted.items():
            self._causes[cause].inc(exchanges)
        self._up.inc(self._noted_up)
        self._down.inc(self._noted_down)
        self._noted, self._noted_up, self._noted_down = dict.fromkeys(Cause, 0), 0, 0
        return self._registry.collect()

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        self.collect()
        return generate_latest(self._registry)


FEWEST_AGENTS = 5  # below this the median means little
LEAST_RATIO = 10.0  # observations of an outsized agent per median; busy users reach several times the median
DEVIATIONS = 6.0  # standard deviations above the median, of an outsized agent's log count
NORMAL = 1.4826  # standard deviation per median absolute deviation of a normal distribution


@dataclass(frozen=True)
class OutsizedAgent:
    """An agent with abnormally many observations: its share of its group, and its ratio to the median agent."""

    agent: int
    share: float
    ratio: float


def find_outsized_agents(state: ServerState | None) -> list[OutsizedAgent]:
    """Find agents that hold abnormally many observations of a group, the largest first; an agent alone harms no other.

    Counts spread over orders of magnitude, so their logarithms are compared with the median, in units of the median
    absolute deviation; a few agents hardly move either. If all agents are alike the deviation is nearly 0, hence the
    lower bound of ten times the median.
    """
    server = None if state is None else state.server
    if state is None or server is None or len(server.holdings) < FEWEST_AGENTS:
        return []
    if not state.agents.size == len(server.holdings) == server.groups.labels.size:  # an agent is just being added
        return []
    agents, labels, counts = (array.copy() for array in state.list_agents())
    logs = np.log(np.maximum(counts, 1))
    middle = float(np.median(logs))
    spread = NORMAL * float(np.median(np.abs(logs - middle)))
    is_outsized = logs - middle > max(math.log(LEAST_RATIO), DEVIATIONS * spread)
    places = np.flatnonzero(is_outsized & (np.bincount(labels)[labels] > 1))
    found = [
        OutsizedAgent(
            int(agents[place]),
            float(counts[place] / counts[labels == labels[place]].sum()),
            float(np.exp(logs[place] - middle)),
        )
        for place in places
    ]
    return sorted(found, key=lambda outsized: -outsized.ratio)


EXTRA = "--trace needs OpenTelemetry: pip install 'fedcascade[otel]'"
NANOSECONDS = 1_000_000_000


def make_tracer() -> Any:
    """Create a tracer that sends spans by OTLP over HTTP, in batches from a thread."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ValueError(EXTRA) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "fedcascade"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("fedcascade")


class TracingMetrics(Metrics):
    """Metrics that also record a span per exchange and per refusal."""

    def __init__(self, gauges: Mapping[str, Gauge], tracer: Any) -> None:
        super().__init__(gauges)
        self._tracer = tracer

    def count_exchange(self, cause: Cause, up: int, down: int, seconds: float) -> None:
        super().count_exchange(cause, up, down, seconds)
        attributes = {"fedcascade.cause": cause.value, "fedcascade.bytes_up": up, "fedcascade.bytes_down": down}
        now = time.time_ns()
        start = now - int(seconds * NANOSECONDS)
        self._tracer.start_span("exchange", attributes=attributes, start_time=start).end(now)

    def count_refusal(self, reason: str) -> None:
        super().count_refusal(reason)
        self._tracer.start_span("refusal", attributes={"fedcascade.reason": reason}).end()


class TracingStore:
    """A proxy of a store that records a span per transaction."""

    def __init__(self, store: Store, tracer: Any) -> None:
        self._store, self._tracer = store, tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self, wanted: Sequence[tuple[int, int]] = ()) -> Iterator[None]:
        with self._tracer.start_as_current_span("transaction"), self._store.transaction(wanted):
            yield


def trace_store(store: Store, tracer: Any | None) -> Store:
    """Return the store, with spans of its transactions if there is a tracer."""
    return store if tracer is None else cast(Store, TracingStore(store, tracer))
