"""Frames of bytes through the pipes of a process beside the server, never waiting longer than is said."""

import os
import select
import subprocess
import time
from contextlib import suppress
from typing import IO

LENGTH_BYTES = 4
PIPE_BYTES = 1 << 20  # the most that Linux grants anyone: a large batch goes through at once
READY = b"ready"  # the first frame of a process: it has compiled what it needs
START_SECONDS = 180.0  # for a process to be ready; with an empty cache it compiles
END_SECONDS = 2.0  # for a process to end at the end of its input


class PipedProcess:
    """A process that reads frames from its input and answers each with a frame, after a first one that says ready."""

    def __init__(self, command: list[str]) -> None:
        """Start it in a session of its own: an interrupt from the keyboard is for the server, which ends in peace."""
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True, pipesize=PIPE_BYTES
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._ready = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_ready(self) -> bool:
        """Wait until it says so, the first time; False if it ended or takes too long."""
        if not self._ready:
            with suppress(TimeoutError):
                self._ready = self.read_frame(START_SECONDS) == READY
        return self._ready

    def write_frame(self, body: bytes, seconds: float) -> bool:
        """Write a frame; False if the process has ended or does not read it in time."""
        left, end = memoryview(len(body).to_bytes(LENGTH_BYTES) + body), time.monotonic() + seconds
        try:
            while left:
                wait_for_pipe(self._input, select.POLLOUT, end)
                left = left[os.write(self._input, left) :]
        except OSError:  # also a time-out
            return False
        return True

    def read_frame(self, seconds: float) -> bytes | None:
        """Read a frame; None if the process has ended. Raise TimeoutError if it does not come in time."""
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
        """Let it end at the end of its input; kill it if it does not."""
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
        """End it at once."""
        self.process.kill()
        with suppress(OSError), self.process:
            pass


def wait_for_pipe(descriptor: int, event: int, end: float) -> None:
    """Wait until a pipe can be read or written, or was closed; raise TimeoutError at the end of the time."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError("a process beside the server does not answer")


def write_frame(pipe: IO[bytes], body: bytes) -> None:
    """Write a frame, as the process does it."""
    pipe.write(len(body).to_bytes(LENGTH_BYTES) + body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read a frame, as the process does it; None where the other side has ended."""
    head = pipe.read(LENGTH_BYTES)
    size = int.from_bytes(head)
    body = pipe.read(size) if len(head) == LENGTH_BYTES else b""
    return body if body and len(body) == size else None
