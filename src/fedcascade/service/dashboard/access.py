"""Who may look at the pages: the operator, by token or session; and where a demo runs, anyone on this machine."""

from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from msgspec import Meta

from fedcascade.service.dashboard.dashboard import Dashboard
from fedcascade.service.dashboard.responses import read_json, send_json
from fedcascade.service.dashboard.session import COOKIE, build_cookie, check_session, open_session
from fedcascade.service.protocol import auth
from fedcascade.service.server import operations
from fedcascade.service.server.service import HttpRequest

LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The operator's token."""

    token: Annotated[str, Meta(max_length=256)]


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
    if dashboard.demo is not None and _is_local(request):
        return True
    if "authorization" in request.headers:
        await dashboard.service.require_operator(request)
        return True
    session = request.cookies.get(COOKIE)
    return bool(session) and await dashboard.service.run(check_session(str(session)))


def _is_local(request: HttpRequest) -> bool:
    """Whether a request came over loopback, to a host name of loopback."""
    address = request.client.host if request.client else ""
    return address in LOOPBACK_ADDRESSES and is_loopback_host(request.headers.get("host", ""))


def is_loopback_host(host: str) -> bool:
    """Whether a Host header names this machine; a name that was made to point here does not.

    >>> is_loopback_host("127.0.0.1:8777"), is_loopback_host("[::1]:8777"), is_loopback_host("evil.example:8777")
    (True, True, False)
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in LOOPBACK_NAMES


def _is_secure(request: HttpRequest) -> bool:
    return bool(request.scope.get("scheme") == "https")


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
    operator_hash = await service.run(operations.get_operator_hash())
    if operator_hash is None or not auth.is_operator(f"Bearer {login.token}", operator_hash):
        raise auth.Unauthorised("operator", "this is not the operator's token")
    session = auth.create_token()
    await service.run(open_session(session))
    return send_json({"known": True}, **{"set-cookie": build_cookie(session, secure=_is_secure(request))})


@delete("/live/session", status_code=200)
async def log_out(request: HttpRequest) -> Response[bytes]:
    """End the session of this browser."""
    session = request.cookies.get(COOKIE)
    if session and await _is_viewer(request):
        await get_dashboard(request).service.run(open_session(session, seconds=0))
    return send_json({"known": False}, **{"set-cookie": build_cookie("", secure=_is_secure(request), seconds=0)})
