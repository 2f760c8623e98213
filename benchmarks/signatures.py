"""Microseconds to sign and to verify a request, with PyNaCl and, where it is installed, with cryptography."""

import os
import time
from collections.abc import Callable

from nacl.bindings import crypto_sign_open
from nacl.signing import SigningKey

TRIES, CALLS = 7, 3_000
REQUEST = os.urandom(300)  # about as long as a signature base


def measure(call: Callable[[], object]) -> float:
    """The best of some tries, in microseconds per call."""
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def main() -> None:
    """Print a line per library."""
    key = SigningKey.generate()
    signature, public = key.sign(REQUEST).signature, bytes(key.verify_key)
    sign = measure(lambda: key.sign(REQUEST).signature)
    verify = measure(lambda: crypto_sign_open(signature + REQUEST, public))
    print(f"PyNaCl        sign {sign:6.1f} us  verify {verify:6.1f} us")
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        return
    other = Ed25519PrivateKey.from_private_bytes(bytes(key))
    other_public = other.public_key()
    sign = measure(lambda: other.sign(REQUEST))
    verify = measure(lambda: other_public.verify(signature, REQUEST))
    print(f"cryptography  sign {sign:6.1f} us  verify {verify:6.1f} us")


if __name__ == "__main__":
    main()
