"""Prometheus metrics, agents with abnormal weight, and OpenTelemetry traces.

An exchange is a span from request to durable answer, a refusal is a span of no duration, a transaction is a span of the
writer. OpenTelemetry is imported only with a tracer, and configured by its own variables, such as
``OTEL_EXPORTER_OTLP_ENDPOINT``.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from fedcascade.federation.messages import Cause
from fedcascade.service.server.state import ServerState

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds
NANOSECONDS = 1_000_000_000


def build_metric(name: str, text: str, value: float) -> Metric:
    """Build a counter if the name ends with ``_total``, else a gauge."""
    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return family(f"fedcascade_{name}", text, float(value))


def build_counters(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    """Build a counter for each value of a label."""
    family = CounterMetricFamily(f"fedcascade_{name}", text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def list_trial_metrics(trial: Mapping[str, Any] | None) -> Iterator[Metric]:
    """Yield the counters of an A/B test by arm, and its guardrail, if there is a test."""
    if trial is not None:
        lists, clicks = ({arm: totals[place] for arm, totals in trial["arms"].items()} for place in (0, 1))
        yield build_counters("arm_lists", "Lists of an arm.", "arm", lists)
        yield build_counters("arm_clicks", "Clicked lists of an arm.", "arm", clicks)
        yield build_metric("arm_alarm", "1 if treatment is below control by more than the margin.", trial["alarm"])


def list_privacy_metrics(spent: Sequence[tuple[float, int]]) -> Iterator[Metric]:
    """Yield a histogram of the epsilon that agents have spent, if their uploads are private."""
    if spent:
        sums = np.cumsum([agents for _, agents in spent]).tolist()
        buckets = [(f"{epsilon:.6g}", float(agents)) for (epsilon, _), agents in zip(spent, sums, strict=True)]
        total = sum(epsilon * agents for epsilon, agents in spent)
        text = "Epsilon that agents have spent by private uploads."
        yield HistogramMetricFamily("fedcascade_privacy_epsilon", text, [*buckets, ("+Inf", float(sums[-1]))], total)


class Metrics:
    """Counts of requests, and what ``read`` yields; a ``tracer`` gets a span per exchange and per refusal."""

    def __init__(self, read: Callable[[], Iterable[Metric]], tracer: Any | None = None) -> None:
        self._read, self._tracer = read, tracer
        self._exchanges = dict.fromkeys(Cause, 0)
        self._refused: Counter[str] = Counter()
        self._bytes = {"up": 0, "down": 0}
        self._latency = Histogram(
            "fedcascade_exchange_seconds", "From request to durable answer.", buckets=BUCKETS, registry=None
        )

    def count_exchange(self, cause: Cause, up: int, down: int, seconds: float) -> None:
        """Count an exchange: its bytes in both directions, and the time from request to durable answer."""
        self._exchanges[cause] += 1
        self._bytes["up"] += up
        self._bytes["down"] += down
        self._latency.observe(seconds)
        if self._tracer is not None:
            attributes = {"fedcascade.cause": cause.value, "fedcascade.bytes_up": up, "fedcascade.bytes_down": down}
            now = time.time_ns()
            start = now - int(seconds * NANOSECONDS)
            self._tracer.start_span("exchange", attributes=attributes, start_time=start).end(now)

    def count_refusal(self, reason: str) -> None:
        self._refused[reason] += 1
        if self._tracer is not None:
            self._tracer.start_span("refusal", attributes={"fedcascade.reason": reason}).end()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        exchanges = {cause.value: count for cause, count in self._exchanges.items()}
        yield build_counters("exchanges", "Answered uploads.", "cause", exchanges)
        yield build_counters("refused", "Refused requests.", "reason", self._refused)
        yield build_counters("bytes", "Bytes of exchanges.", "direction", self._bytes)
        yield from self._latency.collect()
        yield from self._read()

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self)


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


def find_outsized_agents(state: ServerState) -> list[OutsizedAgent]:
    """Find agents that hold abnormally many observations of a group, the largest first; an agent alone harms no other.

    Counts spread over orders of magnitude, so their logarithms are compared with the median, in units of the median
    absolute deviation; a few agents hardly move either. If all agents are alike the deviation is nearly 0, hence the
    lower bound of ten times the median.
    """
    server = state.server
    if len(server.holdings) < FEWEST_AGENTS:
        return []
    if not state.agents.size == len(server.holdings) == server.groups.labels.size:  # an agent is just being added
        return []
    agents, labels, counts = (array.copy() for array in (state.agents, server.groups.labels, server.holdings.count))
    logs = np.log(np.maximum(counts, 1))
    middle = float(np.median(logs))
    spread = NORMAL * float(np.median(np.abs(logs - middle)))
    is_outsized = logs - middle > max(math.log(LEAST_RATIO), DEVIATIONS * spread)
    places = np.flatnonzero(is_outsized & (np.bincount(labels)[labels] > 1))
    places = places[np.argsort(-logs[places], kind="stable")]
    shares, ratios = counts[places] / np.bincount(labels, counts)[labels[places]], np.exp(logs[places] - middle)
    return list(map(OutsizedAgent, agents[places].tolist(), shares.tolist(), ratios.tolist()))


def make_tracer() -> Any:
    """Create a tracer that sends spans by OTLP over HTTP, in batches from a thread."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ValueError("--trace needs OpenTelemetry: pip install 'fedcascade[otel]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "fedcascade"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("fedcascade")
