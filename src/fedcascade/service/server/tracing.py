"""OpenTelemetry traces of a server, where they are asked for; else the library is not even imported.

An exchange is a span from request to durable answer, a refusal is a span without length, a transaction is a span of the
writer. Where they are sent is said by OpenTelemetry's own variables, such as ``OTEL_EXPORTER_OTLP_ENDPOINT``.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from fedcascade.federation.messages import Cause
from fedcascade.service.server.metrics import Gauge, Metrics
from fedcascade.service.store.contract import Store

EXTRA = "--trace needs OpenTelemetry: pip install 'fedcascade[otel]'"
NANOSECONDS = 1_000_000_000


def make_tracer() -> Any:
    """Make a tracer that sends spans by OTLP over HTTP, in batches from a thread of its own."""
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
    """Metrics that also make a span of each exchange and of each refusal."""

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
    """A store whose transactions are spans; all else is the store's own."""

    def __init__(self, store: Store, tracer: Any) -> None:
        self._store, self._tracer = store, tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self, wanted: Sequence[tuple[int, int]] = ()) -> Iterator[None]:
        with self._tracer.start_as_current_span("transaction"), self._store.transaction(wanted):
            yield


def trace_store(store: Store, tracer: Any | None) -> Store:
    """The store, with spans of its transactions if there is a tracer."""
    return store if tracer is None else cast(Store, TracingStore(store, tracer))
