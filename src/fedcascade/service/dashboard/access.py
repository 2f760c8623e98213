"""Who may look at the pages: the operator, by token or session; and where a demo runs, anyone on this machine.

A session is a random secret of which the store keeps a hash, with its end and the operator's token it was opened with.
So it survives restarts and works at every server; it ends when it is old, when its owner logs out, or when the
operator's token is replaced; and nobody can make one up from a copy of the database. It opens the page and nothing
else: what changes anything needs the token itself.
"""

import hmac
from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from msgspec import Meta

from fedcascade.service.dashboard.dashboard import Dashboard
from fedcascade.service.dashboard.responses import read_json, send_json
from fedcascade.service.protocol import auth
from fedcascade.service.server.app import log_action
from fedcascade.service.server.jobs import Job
from fedcascade.service.server.operations import get_operator_hash
from fedcascade.service.server.service import HttpRequest
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store

COOKIE = "fedcascade-session"
SESSION_SECONDS = 12 * 3_600
LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The operator's token."""

    token: Annotated[str, Meta(max_length=256)]


def open_session(session: str, now: float, seconds: int = SESSION_SECONDS) -> Job[None]:
    """Keep a session for a while from now on; with 0 seconds, end it."""

    def job(store: Store, state: ServerState) -> None:
        token_digest = get_operator_hash()(store, state) or b""
        store.set_setting(_name_setting(session), f"{int(now) + seconds} {token_digest.hex()}")

    return job


def check_session(session: str, now: float) -> Job[bool]:
    """Check whether a session was opened with today's operator's token and has not ended."""

    def job(store: Store, state: ServerState) -> bool:
        ends, _, opened_with = (store.get_setting(_name_setting(session)) or "0 ").partition(" ")
        token_digest = get_operator_hash()(store, state)
        same_token = token_digest is not None and hmac.compare_digest(opened_with, token_digest.hex())
        return same_token and int(ends) > now

    return job


def _name_setting(session: str) -> str:
    return f"session {auth.hash_token(session).hex()}"


def _build_cookie(request: HttpRequest, session: str, seconds: int = SESSION_SECONDS) -> dict[str, str]:
    """Build the Set-Cookie header of a session; no script can read it and no other site can use it."""
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    cookie = f"{COOKIE}={session}; Path=/live; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return {"set-cookie": cookie}


def get_dashboard(request: HttpRequest) -> Dashboard:
    """The dashboard of the application that a request came to."""
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


async def require_viewer(request: HttpRequest) -> Dashboard:
    """Refuse those who may not look; return the dashboard to those who may."""
    if not await _is_viewer(request):
        raise auth.Unauthorised("operator", "this page needs the operator's token: log in at /")
    return get_dashboard(request)


async def _is_viewer(request: HttpRequest) -> bool:
    dashboard = get_dashboard(request)
    address = request.client.host if request.client else ""
    is_local = address in LOOPBACK_ADDRESSES and is_loopback_host(request.headers.get("host", ""))
    if dashboard.demo is not None and is_local:
        return True
    if "authorization" in request.headers:
        await dashboard.service.require_operator(request)
        return True
    session, service = request.cookies.get(COOKIE), dashboard.service
    return bool(session) and await service.writer.run(check_session(str(session), service.clock.now()))


def is_loopback_host(host: str) -> bool:
    """Whether a Host header names this machine; a name that was made to point here does not.

    >>> is_loopback_host("127.0.0.1:8777"), is_loopback_host("[::1]:8777"), is_loopback_host("evil.example:8777")
    (True, True, False)
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in LOOPBACK_NAMES


@get("/live/session")
async def show_session(request: HttpRequest) -> Response[bytes]:
    """Say whether this caller may look; to those who may, what the server runs, and whether a demo runs beside it."""
    dashboard, allowed = get_dashboard(request), await _is_viewer(request)
    terms = msgspec.to_builtins(dashboard.service.terms) if allowed else {}
    demo = dashboard.demo.introduce() if allowed and dashboard.demo else None
    return send_json({"known": allowed, "terms": terms, "demo": demo})


@post("/live/session", status_code=200)
async def log_in(request: HttpRequest) -> Response[bytes]:
    """Open a session for the operator."""
    service = get_dashboard(request).service
    service.limit_address(request)
    login = await read_json(request, Login)
    if not auth.is_operator(f"Bearer {login.token}", await service.writer.run(get_operator_hash())):
        raise auth.Unauthorised("operator", "this is not the operator's token")
    session = auth.create_token()
    await service.writer.run(open_session(session, service.clock.now()))
    log_action(request, "the operator opened a session")
    return send_json({"known": True}, **_build_cookie(request, session))


@delete("/live/session", status_code=200)
async def log_out(request: HttpRequest) -> Response[bytes]:
    """End the session of this browser."""
    session, service = request.cookies.get(COOKIE), get_dashboard(request).service
    if session and await _is_viewer(request):
        await service.writer.run(open_session(session, service.clock.now(), seconds=0))
    return send_json({"known": False}, **_build_cookie(request, "", seconds=0))
