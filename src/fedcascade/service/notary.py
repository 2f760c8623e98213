"""Signatures are verified by a process beside the server, many at a time, while the server counts those before.

To verify one takes longer than to read, check and count an upload. It needs nothing that the server knows, and threads
would hand the interpreter to each other for every single one.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import BinaryIO

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Signed = tuple[bytes, bytes, bytes]  # a public key, a signature, what was signed
LENGTH_BYTES = 4
_public_key = lru_cache(100_000)(Ed25519PublicKey.from_public_bytes)
_decoder = msgspec.msgpack.Decoder(list[Signed])


def holds(signed: Signed) -> bool:
    """Whether a signature is that of this key over these bytes."""
    key, signature, message = signed
    try:
        _public_key(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


class Notary:
    """Ask for the signatures of a batch, do something else, and take the verdicts. This one looks at them last."""

    def __init__(self) -> None:
        self._asked: Sequence[Signed] = ()

    def ask(self, signed: Sequence[Signed]) -> None:
        """Have these verified."""
        self._asked = signed

    def verdicts(self) -> list[bool]:
        """Which of those asked for hold."""
        return [holds(signed) for signed in self._asked]

    def close(self) -> None:
        """Nobody will ask any more."""


class Beside(Notary):
    """A process of its own. If it dies, its signatures are verified here, and the next ones in a new process."""

    def __init__(self) -> None:
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = _started()

    def ask(self, signed: Sequence[Signed]) -> None:
        """Have these verified there."""
        super().ask(signed)
        if not signed:
            return
        self._process = self._process or _started()
        assert self._process.stdin is not None
        body = msgspec.msgpack.encode(signed)
        try:
            self._process.stdin.write(len(body).to_bytes(LENGTH_BYTES) + body)
            self._process.stdin.flush()
        except OSError:
            self.close()

    def verdicts(self) -> list[bool]:
        """Which of those asked for hold."""
        if self._asked and self._process is not None:
            assert self._process.stdout is not None
            said = self._process.stdout.read(len(self._asked))
            if len(said) == len(self._asked):
                return [verdict == 1 for verdict in said]
            self.close()
        return super().verdicts()

    def close(self) -> None:
        """Let the process go; it ends when it cannot be asked any more."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:
                pass


def _started() -> "subprocess.Popen[bytes]":
    """A process in a session of its own: an interrupt from the keyboard is for the server, which ends in peace."""
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def answer(asked: BinaryIO, said: BinaryIO) -> None:
    """Verify batch after batch until nobody asks any more."""
    while len(head := asked.read(LENGTH_BYTES)) == LENGTH_BYTES:
        batch = _decoder.decode(asked.read(int.from_bytes(head)))
        said.write(bytes(map(holds, batch)))
        said.flush()


if __name__ == "__main__":
    answer(sys.stdin.buffer, sys.stdout.buffer)
