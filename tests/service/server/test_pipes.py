"""Frames travel to a process and back, and no wait is without end."""

import sys
import time
from collections.abc import Iterator

import pytest

from fedcascade.service.server import pipes
from fedcascade.service.server.pipes import PipedProcess

ECHO = """
import sys
from fedcascade.service.server.pipes import READY, read_frame, write_frame
write_frame(sys.stdout.buffer, READY)
while (body := read_frame(sys.stdin.buffer)) is not None:
    write_frame(sys.stdout.buffer, body)
"""
SLEEP = "import time; time.sleep(60)"


pytestmark = pytest.mark.skipif(not pipes.CAN_INHERIT, reason="a child cannot inherit a socket")


@pytest.fixture
def echo() -> Iterator[PipedProcess]:
    process = PipedProcess([sys.executable, "-c", ECHO])
    yield process
    process.end()


def test_small_and_large_frames_come_back(echo: PipedProcess) -> None:
    assert echo.is_ready()
    for body in (b"x", bytes(range(256)) * 2_000):  # half a buffer: the other side writes while nobody reads
        assert echo.write_frame(body, 20.0)
        assert echo.read_frame(20.0) == body


def test_a_process_that_has_ended_takes_and_gives_nothing(echo: PipedProcess) -> None:
    assert echo.is_ready()
    echo.process.kill()
    echo.process.wait()
    assert echo.read_frame(20.0) is None
    assert not echo.write_frame(b"x" * 100_000, 20.0)


def test_a_process_that_neither_reads_nor_writes_costs_no_more_than_the_time_that_is_given() -> None:
    process = PipedProcess([sys.executable, "-c", SLEEP])
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        process.read_frame(0.2)
    assert not process.write_frame(b"x" * (3 * pipes.BUFFER_BYTES), 0.2)
    process.kill()
    assert time.monotonic() - started < 20.0
    assert process.process.returncode is not None
