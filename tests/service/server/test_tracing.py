"""Traces of a server, where OpenTelemetry is installed; and nothing of it where nobody asks for traces."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.metrics import make_tracer
from fedcascade.service.server.serve import ServerSettings, build_service, open_writer
from fedcascade.service.server.settings import FOR_SIMULATIONS

from ..helpers import build_unit_upload, run_service


def test_exchanges_refusals_and_transactions_are_spans(tmp_path: Path) -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason="OpenTelemetry is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    settings = ServerSettings(
        store=f"sqlite:///{tmp_path}/store.db",
        policy=POLICIES["fedc3ucb-h"],
        dimension=3,
        bounds=FOR_SIMULATIONS,
        tracer=provider.get_tracer("test"),
    )
    with run_service(build_service(settings, open_writer(settings))) as running:
        agent = running.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
        running.operator.revoke(agent.agent)
        with pytest.raises(Refused):
            agent.exchange(build_unit_upload(2, 0, 3))
    spans = exporter.get_finished_spans()
    [exchange] = [span for span in spans if span.name == "exchange"]
    [refusal] = [span for span in spans if span.name == "refusal"]
    assert exchange.attributes["fedcascade.cause"] == "forced"
    assert exchange.end_time > exchange.start_time
    assert refusal.attributes["fedcascade.reason"] == "revoked"
    transactions = [span for span in spans if span.name == "transaction"]
    assert any(each.start_time >= exchange.start_time and each.end_time <= exchange.end_time for each in transactions)


def test_tracing_without_opentelemetry_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"--trace needs OpenTelemetry: pip install 'fedcascade\[otel\]'"):
        make_tracer()


def test_a_server_without_traces_imports_nothing_of_them() -> None:
    lines = (
        "import sys, fedcascade.service.server.serve\nprint([each for each in sys.modules if 'opentelemetry' in each])"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
