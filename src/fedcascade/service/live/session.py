"""Who may look: the operator, by header or by a cookie that any server on the same store can check.

A session is a time and a signature over it, made with what the store keeps of the operator's token. No server has to
remember it, it survives restarts, and it ends when it is too old or when the token is replaced. It opens the page and
nothing else: what changes anything needs the token itself.
"""

import base64
import hashlib
import hmac
import time

COOKIE = "fedcascade-session"
SECONDS = 12 * 3_600
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def new_session(operator_hash: bytes, now: float | None = None) -> str:
    """A session that begins now.

    >>> good_session(new_session(b"key", now=0.0), b"key", now=9.0)
    True
    >>> good_session(new_session(b"key", now=0.0), b"other key", now=9.0)
    False
    """
    ends = str(int((time.time() if now is None else now) + SECONDS))
    return f"{ends}.{_signature(ends, operator_hash)}"


def good_session(session: str, operator_hash: bytes, now: float | None = None) -> bool:
    """Whether a session was made with this key and has not ended."""
    ends, _, signature = session.partition(".")
    signed = hmac.compare_digest(signature.encode(), _signature(ends, operator_hash).encode())
    return signed and ends.isdecimal() and int(ends) > (time.time() if now is None else now)


def _signature(ends: str, operator_hash: bytes) -> str:
    digest = hmac.new(operator_hash, f"fedcascade live session until {ends}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def set_cookie(session: str, *, secure: bool, seconds: int = SECONDS) -> str:
    """The header that keeps a session; no script can read it and no other site can use it."""
    return f"{COOKIE}={session}; Path=/live; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" * secure)


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine; a name that was made to point here does not.

    >>> is_loopback("127.0.0.1:8777"), is_loopback("[::1]:8777"), is_loopback("evil.example:8777")
    (True, True, False)
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in LOOPBACK
