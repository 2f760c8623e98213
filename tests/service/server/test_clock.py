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
from fedcascade.service.server.settings import Limits, UploadBounds

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


YEAR = 365 * 86_400.0
BOUNDS = UploadBounds(min_observations=0, longest_list=1_000, rounds_burst=10, rounds_per_hour=60.0)


def test_an_agent_of_a_server_whose_clock_was_a_year_ahead_waits_no_longer_than_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what is wrong, once, and the corrected time of enrolment is kept."""
    times = [NOON + YEAR]
    clock = Clock(now=lambda: times[-1], elapsed=lambda: times[-1])
    with serve_in_process(tmp_path / "store.db", bounds=BOUNDS, clock=clock) as running:
        key = SigningKey.generate()
        [token] = running.operator.create_tokens()
        number = client.enrol_agent(running.transport, token, key, clock=clock).agent
        agent = client.AgentClient(running.transport, key, number, clock=clock)
        times.append(NOON)
        for sequence in range(1, 11):
            agent.exchange(build_unit_upload(sequence, 0, 3))
        with pytest.raises(Refused, match=r"has 11 after 0\.00 hours: try again in 60 s") as refused:
            agent.exchange(build_unit_upload(11, 0, 3))
        assert refused.value.retry_after == 60
        wrong = [record.getMessage() for record in caplog.records if "wrong clock" in record.getMessage()]
        assert wrong == [f"agent {number} enrolled in the future, by a wrong clock: it counts from now"]
        times.append(NOON + 60)
        agent.exchange(build_unit_upload(11, 0, 3))
    with serve_in_process(tmp_path / "store.db", bounds=BOUNDS, clock=clock) as running:
        agent = client.AgentClient(running.transport, key, number, clock=clock)
        times.append(NOON + 120)
        agent.exchange(build_unit_upload(12, 0, 3))
        with pytest.raises(Refused, match=r"has 13 after 0\.03 hours"):
            agent.exchange(build_unit_upload(13, 0, 3))


def test_whoever_folds_old_uploads_sleeps_by_the_same_clock() -> None:
    looks = count(0, 1_800)
    asyncio.run(sleep_by_clock(Clock(elapsed=lambda: next(looks)), 3_600))
    assert next(looks) == 3 * 1_800
