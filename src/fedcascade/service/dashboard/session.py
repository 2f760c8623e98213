"""Sessions of the operator's browser: a cookie that every server on the same store knows.

A session is a random secret of which the store keeps a hash, with its end and the operator's token it was opened with.
So it survives restarts and works at every server; it ends when it is old, when its owner logs out, or when the
operator's token is replaced; and nobody can make one up from a copy of the database. It opens the page and nothing
else: what changes anything needs the token itself.
"""

import hmac
import time

from fedcascade.service.protocol.auth import hash_token
from fedcascade.service.server.operations import get_operator_hash
from fedcascade.service.server.state import ServerState
from fedcascade.service.server.writer import Job
from fedcascade.service.store.contract import Store

COOKIE = "fedcascade-session"
SECONDS = 12 * 3_600


def open_session(session: str, seconds: int = SECONDS) -> Job[None]:
    """Keep a session for a while; with 0 seconds, end it."""

    def job(store: Store, state: ServerState) -> None:
        token_digest = get_operator_hash()(store, state) or b""
        store.set_setting(_setting_name(session), f"{int(time.time()) + seconds} {token_digest.hex()}")

    return job


def check_session(session: str) -> Job[bool]:
    """Check whether a session was opened with today's operator's token and has not ended."""

    def job(store: Store, state: ServerState) -> bool:
        ends, _, opened_with = (store.get_setting(_setting_name(session)) or "0 ").partition(" ")
        token_digest = get_operator_hash()(store, state)
        same_token = token_digest is not None and hmac.compare_digest(opened_with, token_digest.hex())
        return same_token and int(ends) > time.time()

    return job


def _setting_name(session: str) -> str:
    return f"session {hash_token(session).hex()}"


def build_cookie(session: str, *, secure: bool, seconds: int = SECONDS) -> str:
    """Build the Set-Cookie header of a session; no script can read it and no other site can use it."""
    return f"{COOKIE}={session}; Path=/live; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" * secure)
