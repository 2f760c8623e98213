"""Sessions of the operator's browser: a cookie that every server on the same store knows.

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


def open_session(session: str, seconds: int = SECONDS) -> Job[None]:
    """Keep a session for a while; with 0 seconds, end it."""

    def job(store: Store, fold: Fold) -> None:
        token_digest = operator_hash()(store, fold) or b""
        store.set_setting(_setting_name(session), f"{int(time.time()) + seconds} {token_digest.hex()}")

    return job


def check_session(session: str) -> Job[bool]:
    """Check whether a session was opened with today's operator's token and has not ended."""

    def job(store: Store, fold: Fold) -> bool:
        ends, _, opened_with = (store.get_setting(_setting_name(session)) or "0 ").partition(" ")
        token_digest = operator_hash()(store, fold)
        same_token = token_digest is not None and hmac.compare_digest(opened_with, token_digest.hex())
        return same_token and int(ends) > time.time()

    return job


def _setting_name(session: str) -> str:
    return f"session {token_hash(session).hex()}"


def build_cookie(session: str, *, secure: bool, seconds: int = SECONDS) -> str:
    """Build the Set-Cookie header of a session; no script can read it and no other site can use it."""
    return f"{COOKIE}={session}; Path=/live; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" * secure)
