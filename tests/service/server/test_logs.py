"""The log of a server: what operators and refused callers did, in text or JSON, nothing secret, nothing that blocks."""

import base64
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server import logs
from fedcascade.service.server.logs import JsonFormatter, RefusalLog, StderrHandler, TextFormatter

from ..helpers import TOKEN, ServerProcess, build_unit_upload, serve_in_process


def make_record(message: str, **facts: object) -> logging.LogRecord:
    record = logging.LogRecord("fedcascade.service", logging.INFO, "", 0, "%s", (message,), None)
    record.facts = facts
    return record


def test_a_line_of_text_stays_one_line_and_json_has_the_facts() -> None:
    record = make_record("refused 'x\n2026 error: forged\x1b[2J'", event="refused", status=401)
    text = TextFormatter().format(record)
    assert text.endswith(r" info: refused 'x\n2026 error: forged\x1b[2J'")
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["status"], line["level"]) == ("refused", 401, "info")
    assert line["time"].endswith("Z")


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    handler = StderrHandler()
    done = threading.Event()

    def log_much() -> None:
        for _ in range(5_000):
            handler.emit(make_record("x" * 100))
        done.set()

    threading.Thread(target=log_much, daemon=True).start()
    assert done.wait(60)
    os.close(reading)  # the thread that writes ends at the broken pipe
    handler.close()
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_flood_of_refusals_is_counted_not_listed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedcascade")
    log = RefusalLog()
    for number in range(1_000):
        log.record(number / 100, status=401, reason="stale", detail="late", path="/", caller="10.0.0.7", agent="7")
    assert len(caplog.messages) == logs.LINES_PER_MINUTE
    assert caplog.messages[0] == "refused agent 7 at 10.0.0.7: stale, late"
    log.flush(59.0)
    assert len(caplog.messages) == logs.LINES_PER_MINUTE
    log.flush(61.0)
    log.flush(200.0)
    assert caplog.messages[logs.LINES_PER_MINUTE :] == ["refused 980 more in that minute: 980 stale"]


def test_actions_and_refusals_are_logged_and_nothing_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve_in_process(tmp_path / "store.db") as running:
        tokens = running.operator.create_tokens(3)
        first, second = running.enrol(), running.enrol()
        first.exchange(build_unit_upload(1, 0, 3))
        running.operator.revoke(first.agent)
        with pytest.raises(Refused):
            first.exchange(build_unit_upload(2, 0, 3))
        running.operator.forget(second.agent)
        stranger = OperatorClient(running.transport, "the-token-of-a-stranger")
        with pytest.raises(Refused):
            stranger.create_tokens()
        running.operator.replace_token("the-operators-next-token")
    lines = "\n".join(caplog.messages)
    assert "the operator created enrolment tokens: 3" in lines
    assert f"the operator revoked agent {first.agent}" in lines
    assert f"operator had agent {second.agent} forgotten" in lines
    assert f"refused agent {first.agent} at " in lines
    assert "refused a caller at in-process: operator" in lines
    assert "the operator replaced the operator's token" in lines
    key = bytes(first.key)
    secrets = [TOKEN, "the-token-of-a-stranger", "the-operators-next-token", *tokens, key.hex()]
    formatted = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    for secret in (*secrets, base64.b64encode(key).decode()):
        assert secret not in formatted


def test_all_that_a_server_writes_is_json_if_it_is_told_so(tmp_path: Path) -> None:
    options = ("--log-format", "json", "--log-level", "debug")
    server = ServerProcess(tmp_path, "sqlite:///store.db", *options)
    process = subprocess.Popen(server.command(), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        token, first = (json.loads(process.stderr.readline()) for _ in range(2))
        assert token["message"].startswith("the operator's token is that of ")
        assert first["message"].startswith("serving fedc3ucb-h on http")
        server.port, server.process = int(first["message"].rsplit(":", 1)[1]), process
        running = server.connect()
        agent = running.enrol()
        agent.agent += 1
        with pytest.raises(Refused):
            agent.exchange(build_unit_upload(1, 0, 3))
        running.transport.close()
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[0:2][1]
    lines = [json.loads(line) for line in rest.splitlines()]
    refused = next(line for line in lines if line.get("event") == "refused")
    assert (refused["reason"], refused["agent"], refused["path"]) == ("unrecognised", str(agent.agent), "/v1/exchanges")
    assert any(line["message"] == "the operator created enrolment tokens: 1, from 127.0.0.1" for line in lines)
