"""A process beside the server verifies signatures; the verdicts are those of the library, also if it dies."""

import os
import signal

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcascade.service.notary import Beside, Notary, Signed

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in range(1, 4)]


def signed(number: int, *, by: int | None = None, said: bytes = b"") -> Signed:
    """A message of one key, signed by it or by another, and perhaps changed since."""
    key, message = KEYS[number % 3], b"message %d" % number
    signature = KEYS[(number if by is None else by) % 3].sign(message)
    return key.public_key().public_bytes_raw(), signature, said or message


BATCH = [signed(0), signed(1, by=2), signed(2), signed(3, said=b"another"), signed(4)]
VERDICTS = [True, False, True, False, True]


@pytest.mark.parametrize("kind", [Notary, Beside])
def test_what_holds_holds_and_nothing_else(kind: type[Notary]) -> None:
    notary = kind()
    try:
        for batch, verdicts in ((BATCH, VERDICTS), ([], []), (BATCH[::-1] * 100, VERDICTS[::-1] * 100)):
            notary.ask(batch)
            assert notary.verdicts() == verdicts
    finally:
        notary.close()


@pytest.mark.parametrize("after", ["before it is asked", "before it answers"])
def test_if_the_process_dies_nobody_notices(after: str) -> None:
    notary = Beside()
    try:
        notary.ask(BATCH)
        assert notary.verdicts() == VERDICTS
        for _ in range(2):
            assert notary._process is not None
            process = notary._process
            if after == "before it answers":
                os.kill(process.pid, signal.SIGSTOP)
                notary.ask(BATCH)
            process.kill()
            process.wait()
            if after == "before it is asked":
                notary.ask(BATCH)
            assert notary.verdicts() == VERDICTS
            notary.ask(BATCH)
            assert notary.verdicts() == VERDICTS
    finally:
        notary.close()


def test_the_process_ends_with_its_server() -> None:
    notary = Beside()
    assert notary._process is not None
    process = notary._process
    notary.close()
    assert process.wait(5) == 0
