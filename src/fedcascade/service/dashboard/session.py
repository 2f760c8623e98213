"""Who may look: the operator, by header or by a cookie that every server on the same store knows.

A session is a random secret of which the store keeps a hash, with its end and the operator's token it was opened with.
So it survives restarts and works at every server; it ends when it is old, when its owner logs out, or when the
operator's token is replaced; and nobody can make one up from a copy of the database. It opens the page and nothing
else: what changes anything needs the token itself.
"""

import hmac
import time

from fedcascade.service.protocol.auth import token_hash
from fedcascade.service.server.operations import operator_hash
from fedcascade.service.server.state import Fold
from fedcascade.service.server.writer import Job
from fedcascade.service.store.contract import Store

COOKIE = "fedcascade-session"
SECONDS = 12 * 3_600
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def open_session(session: str, seconds: int = SECONDS) -> Job[None]:
    """Keep a session for a while; with 0 seconds, end it."""

    def job(store: Store, fold: Fold) -> None:
        kept = operator_hash()(store, fold) or b""
        store.set_setting(_name(session), f"{int(time.time()) + seconds} {kept.hex()}")

    return job


def good_session(session: str) -> Job[bool]:
    """Whether a session was opened with today's operator's token and has not ended."""

    def job(store: Store, fold: Fold) -> bool:
        ends, _, opened_with = (store.get_setting(_name(session)) or "0 ").partition(" ")
        kept = operator_hash()(store, fold)
        same = kept is not None and hmac.compare_digest(opened_with, kept.hex())
        return same and int(ends) > time.time()

    return job


def _name(session: str) -> str:
    return f"session {token_hash(session).hex()}"


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
