"""Results come back to whoever waits: once, in time, and whatever the neighbours do."""

import asyncio
from typing import Any

import pytest

from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.server import exchange
from fedcascade.service.server.exchange import Deliver, PendingJob, WaitingJobs, report


def test_who_waits_too_long_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_SECONDS", 0.01)

    async def wait() -> list[Any]:
        waiting, got = WaitingJobs(asyncio.get_running_loop()), asyncio.Queue[Any]()
        late = [PendingJob(lambda *_: None, got.put_nowait, waiting) for _ in range(3)]
        for pending in late:
            waiting.add(pending)
        results = [await asyncio.wait_for(got.get(), 10) for _ in late]
        report(late, ["too late"] * 3)
        in_time = PendingJob(lambda *_: None, got.put_nowait, waiting)
        waiting.add(in_time)
        report([in_time], ["in time"])
        return [*results, await asyncio.wait_for(got.get(), 10)]

    *refusals, last = asyncio.run(wait())
    assert [type(refusal) for refusal in refusals] == [Unavailable] * 3
    assert last == "in time"


def test_a_caller_that_cannot_take_its_result_does_not_keep_others_from_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[Any] = []

    def fail(_: Any) -> None:
        raise RuntimeError("the connection is gone")

    async def settle() -> None:
        waiting = WaitingJobs(asyncio.get_running_loop())
        takers: list[Deliver] = [fail, got.append]
        batch = [PendingJob(lambda *_: None, taker, waiting) for taker in takers]
        for pending in batch:
            waiting.add(pending)
        waiting.settle(zip(batch, ["one", "two"], strict=True))

    asyncio.run(settle())
    assert got == ["two"]
    assert "a result cannot be delivered" in caplog.text
