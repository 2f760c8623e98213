"""Frames of bytes through the pipes of a child process, with time limits."""

import os
import select
import subprocess
import time
from contextlib import suppress
from typing import IO

LENGTH_BYTES = 4
PIPE_BYTES = 1 << 20  # the default limit of Linux, so that a large batch needs one write
DEFAULT_PIPE_BYTES = -1  # the size that the system chooses
READY = b"ready"  # the first frame of a process, after it has compiled its code
START_SECONDS = 180.0  # for a process to be ready; with an empty cache it compiles
END_SECONDS = 2.0  # for a process to exit at the end of its input
NO_ANSWER = "a process beside the server does not answer"
CAN_POLL = hasattr(select, "poll")  # not on Windows


class PipedProcess:
    """A child process that sends ``READY`` and then answers each frame with a frame. Needs ``CAN_POLL``."""

    def __init__(self, command: list[str]) -> None:
        self.process = start_process(command)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input = self.process.stdin.fileno()
        self._output = self.process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._ready = False

    def is_ready(self) -> bool:
        """Wait for the first frame; return False if the process ended or takes too long."""
        if not self._ready:
            with suppress(TimeoutError):
                self._ready = self.read_frame(START_SECONDS) == READY
        return self._ready

    def write_frame(self, body: bytes, seconds: float) -> bool:
        """Write a frame; return False if the process has ended or does not read it in time."""
        end = time.monotonic() + seconds
        left = memoryview(len(body).to_bytes(LENGTH_BYTES) + body)
        try:
            while left:
                wait_for_pipe(self._input, select.POLLOUT, end)
                left = left[os.write(self._input, left) :]
        except OSError:  # also a time-out
            return False
        return True

    def read_frame(self, seconds: float) -> bytes | None:
        """Read a frame; return None if the process has ended, raise TimeoutError if none comes in time."""
        end = time.monotonic() + seconds
        head = self._read_bytes(LENGTH_BYTES, end)
        return None if head is None else self._read_bytes(int.from_bytes(head), end)

    def _read_bytes(self, size: int, end: float) -> bytes | None:
        body = bytearray()
        while len(body) < size:
            wait_for_pipe(self._output, select.POLLIN, end)
            piece = os.read(self._output, size - len(body))
            if not piece:
                return None
            body += piece
        return bytes(body)

    def end(self) -> None:
        """Close its input, wait for it to exit, and kill it if it does not."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with self.process:
            pass

    def kill(self) -> None:
        self.process.kill()
        with suppress(OSError), self.process:
            pass


def start_process(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C reaches the server alone, with large pipes if granted."""

    def start(size: int) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True, pipesize=size)

    try:
        return start(PIPE_BYTES)
    except PermissionError:  # the user has used up the pages for pipes: a large batch needs several writes
        return start(DEFAULT_PIPE_BYTES)


def wait_for_pipe(descriptor: int, event: int, end: float) -> None:
    """Wait until a pipe can be read or written, or was closed; raise TimeoutError after ``end``."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError(NO_ANSWER)


def write_frame(pipe: IO[bytes], body: bytes) -> None:
    """Write a frame, in the child process."""
    pipe.write(len(body).to_bytes(LENGTH_BYTES) + body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read a frame, in the child process; return None at the end of the input."""
    head = pipe.read(LENGTH_BYTES)
    size = int.from_bytes(head)
    body = pipe.read(size) if len(head) == LENGTH_BYTES else b""
    return body if body and len(body) == size else None
