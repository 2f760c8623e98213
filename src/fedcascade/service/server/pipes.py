"""Frames of bytes to and from a child process, with time limits."""

import os
import socket
import subprocess
from contextlib import suppress
from typing import IO

LENGTH_BYTES = 4
BUFFER_BYTES = 1 << 20  # asked of the system, so that a large batch needs one write
READY = b"ready"  # the first frame of a process, after it has compiled its code
START_SECONDS = 180.0  # for a process to be ready; with an empty cache it compiles
END_SECONDS = 2.0  # for a process to exit at the end of its input
CAN_INHERIT = hasattr(os, "fork")  # a child of a process on Windows cannot inherit a socket


class PipedProcess:
    """A child process that sends ``READY`` and then answers each frame with a frame. Needs ``CAN_INHERIT``."""

    def __init__(self, command: list[str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._answers = self._socket.makefile("rb")
        with theirs:  # a session of its own, so that Ctrl-C reaches the server alone
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
            )
        self._ready = False

    def is_ready(self) -> bool:
        """Wait for the first frame; return False if the process ended or takes too long."""
        if not self._ready:
            with suppress(TimeoutError):
                self._ready = self.read_frame(START_SECONDS) == READY
        return self._ready

    def write_frame(self, body: bytes, seconds: float) -> bool:
        """Write a frame; return False if the process has ended or does not read it in time."""
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(len(body).to_bytes(LENGTH_BYTES) + body)
        except OSError:  # also a time-out
            return False
        return True

    def read_frame(self, seconds: float) -> bytes | None:
        """Read a frame; return None if the process has ended, raise TimeoutError if it sends nothing in time."""
        self._socket.settimeout(seconds)
        with suppress(ConnectionError):  # it ended before it read all
            return read_frame(self._answers)
        return None

    def end(self) -> None:
        """Close its input, wait for it to exit, and kill it if it does not."""
        self._close_socket()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close_socket()

    def _close_socket(self) -> None:
        self._answers.close()
        self._socket.close()


def write_frame(pipe: IO[bytes], body: bytes) -> None:
    """Write a frame."""
    pipe.write(len(body).to_bytes(LENGTH_BYTES) + body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read a frame; return None at the end of the input."""
    head = pipe.read(LENGTH_BYTES)
    size = int.from_bytes(head)
    body = pipe.read(size) if len(head) == LENGTH_BYTES else b""
    return body if body and len(body) == size else None
