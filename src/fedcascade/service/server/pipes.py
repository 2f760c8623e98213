"""Frames of bytes through the pipes of a process beside the server, never waiting longer than is said."""

import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import IO, TypeVar

LENGTH_BYTES = 4
PIPE_BYTES = 1 << 20  # the most that Linux grants anyone: a large batch goes through at once
READY = b"ready"  # the first frame of a process: it has compiled what it needs
START_SECONDS = 180.0  # for a process to be ready; with an empty cache it compiles
END_SECONDS = 2.0  # for a process to end at the end of its input
NO_ANSWER = "a process beside the server does not answer"
CAN_POLL = hasattr(select, "poll")  # Windows cannot poll pipes
SYSTEMS_OWN = -1  # size of a pipe
SMALL_BYTES = 1 << 12  # of a write to a pipe that cannot be polled
NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # what Windows has in place of sessions
Result = TypeVar("Result")


class PipedProcess:
    """A process that reads frames from its input and answers each with a frame, after a first one that says ready."""

    def __init__(self, command: list[str]) -> None:
        """Start it in a session of its own: an interrupt from the keyboard is for the server, which ends in peace."""
        self.process = start_process(command)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin.fileno(), self.process.stdout.fileno()
        if CAN_POLL:
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
                left = left[write_some(self._input, left, end) :]
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
            piece = read_some(self._output, size - len(body), end)
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


def start_process(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with large pipes where the system grants them."""
    try:
        return open_process(command, PIPE_BYTES)
    except PermissionError:  # this user has had its share of pages for pipes: a large batch goes through in pieces
        return open_process(command, SYSTEMS_OWN)


def open_process(command: list[str], pipe_bytes: int) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, or what its system has in place of one."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True,
                            creationflags=NEW_GROUP, pipesize=pipe_bytes)  # fmt: skip


def write_some(descriptor: int, body: memoryview, end: float) -> int:
    """Write as much as goes into a pipe, and return how much; raise TimeoutError if nothing does in time."""
    if not CAN_POLL:
        return call_in_time(lambda: os.write(descriptor, body[:SMALL_BYTES]), end)
    wait_for_pipe(descriptor, select.POLLOUT, end)
    return os.write(descriptor, body)


def read_some(descriptor: int, size: int, end: float) -> bytes:
    """Read what is in a pipe, up to a size, and nothing at its end; raise TimeoutError if nothing comes in time."""
    if not CAN_POLL:
        return call_in_time(lambda: os.read(descriptor, size), end)
    wait_for_pipe(descriptor, select.POLLIN, end)
    return os.read(descriptor, size)


def wait_for_pipe(descriptor: int, event: int, end: float) -> None:
    """Wait until a pipe can be read or written, or was closed; raise TimeoutError at the end of the time."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError(NO_ANSWER)


def call_in_time(call: Callable[[], Result], end: float) -> Result:
    """Call what may wait, in a thread of its own, where pipes cannot be polled; raise TimeoutError when time is up.

    A call that is still waiting then ends with the process at the other end of the pipe, which is replaced.
    """
    done: Future[Result] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="fedcascade-pipe", daemon=True).start()
    try:
        return done.result(max(0.0, end - time.monotonic()))
    except FutureTimeout:
        raise TimeoutError(NO_ANSWER) from None


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
