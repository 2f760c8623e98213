"""Results come back to whoever waits: once, in time, and whatever the neighbours do."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.server import writer
from fedcascade.service.server.exchange import Deliver, PendingJob, deliver_all

from ..helpers import serve_in_process


def test_who_waits_too_long_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ANSWER_SECONDS", 0.01)
    go_on = threading.Event()

    async def wait(running: writer.Writer) -> None:
        with pytest.raises(Unavailable, match="did not answer"):
            await running.run(lambda *_: go_on.wait(10))
        go_on.set()
        assert await asyncio.wrap_future(running.submit(lambda *_: "in time")) == "in time"

    with serve_in_process(tmp_path / "store.db") as running:
        assert running.writer is not None
        asyncio.run(wait(running.writer))


def test_a_caller_that_cannot_take_its_result_does_not_keep_others_from_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[Any] = []

    def fail(_: Any) -> None:
        raise RuntimeError("the connection is gone")

    takers: list[Deliver] = [fail, got.append]
    deliver_all([PendingJob(lambda *_: None, taker, result=result) for taker, result in zip(takers, "ab", strict=True)])
    assert got == ["b"]
    assert "a result cannot be delivered" in caplog.text
