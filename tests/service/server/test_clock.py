"""A server lives by the clock that it is given: signatures, tokens, rates and the journal follow it."""

import asyncio
from itertools import count
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from fedcascade.service.agent import client
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.app import sleep_by_clock
from fedcascade.service.server.settings import Limits

from ..helpers import build_unit_upload, serve_in_process

NOON = 4_000_000_000.0  # in the year 2096


def test_a_day_passes_when_the_clock_says_so(tmp_path: Path) -> None:
    times = [NOON]
    clock = Clock(now=lambda: times[-1], elapsed=lambda: times[-1])
    limits = Limits(rate=0.001, burst=5)
    with serve_in_process(tmp_path / "store.db", limits=limits, clock=clock) as running:
        kept, expired = running.operator.create_tokens(2, valid_seconds=3_600)
        key = SigningKey.generate()
        agent = client.AgentClient(
            running.transport, key, client.enrol_agent(running.transport, kept, key).agent, clock=clock
        )
        agent.exchange(build_unit_upload(1, 0, 3))

        times.append(NOON + 86_400)
        with pytest.raises(Refused, match="expired"):
            client.enrol_agent(running.transport, expired, SigningKey.generate())
        for sequence in range(2, 7):
            agent.exchange(build_unit_upload(sequence, 0, 3))
        with pytest.raises(Refused, match="try again"):
            agent.exchange(build_unit_upload(7, 0, 3))
        times.append(NOON + 2 * 86_400)
        agent.exchange(build_unit_upload(7, 0, 3))

        assert running.writer is not None
        found = running.writer.submit(lambda store, _: store.sum_by_interval(9, 0, 1 << 62)).result()
        assert [(totals.first, totals.last) for totals in found] == [(1000 * NOON, 1000 * (NOON + 2 * 86_400))]


def test_whoever_folds_old_uploads_sleeps_by_the_same_clock() -> None:
    looks = count(0, 1_800)
    asyncio.run(sleep_by_clock(Clock(elapsed=lambda: next(looks)), 3_600))
    assert next(looks) == 3 * 1_800
