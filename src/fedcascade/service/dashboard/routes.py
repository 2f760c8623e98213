"""The endpoints of the dashboard, their access control, and the extension that adds them to a server.

The dashboard needs the operator's token or a session. A session is a cookie signed with the store's secret, so it
survives restarts and works at every server. It ends when it expires, when the operator logs out, which ends all
sessions, or when the operator's token is replaced. It is read-only: changes need the token. A demo has a key in the
link that its command prints, and the key is its session: a proxy on the same machine has no key, whatever it hides.
"""

import hmac
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Response, delete, get, post, route
from litestar.response import Stream
from msgspec import Meta

from fedcascade.service.dashboard.feed import Dashboard, DemoView
from fedcascade.service.dashboard.static_files import HEADERS, build_script, read_asset, send_agent_file
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON
from fedcascade.service.server.app import Extension, log_action
from fedcascade.service.server.operations import get_operator_hash
from fedcascade.service.server.service import HttpRequest, Service
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store
from fedcascade.service.store.epoch import end_sessions, load_epoch

Kind = TypeVar("Kind", bound=msgspec.Struct)
PRIVATE_HEADERS = {**HEADERS, "cache-control": "no-store"}
COOKIE = "fedcascade-session"
SESSION_SECONDS = 12 * 3_600


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The operator's token, or the key of a demo."""

    token: str


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """Measures of a simulation: series, round, regret and reward; ``fresh`` drops earlier reports."""

    measures: Annotated[list[tuple[str, int, float, int]], Meta(max_length=10_000)]
    fresh: bool = False


def send_json(content: Mapping[str, Any], **headers: str) -> Response[bytes]:
    """Send data to a page, without caching."""
    return Response(msgspec.json.encode(content), media_type=JSON, headers={**PRIVATE_HEADERS, **headers})


async def read_json(request: HttpRequest, kind: type[Kind]) -> Kind:
    """Decode a JSON body; refuse other content types, which forms of other sites could send."""
    media = wire.get_media_type(request.headers)
    if media != JSON:
        raise Refused(415, "content-type", f"content type must be {JSON}, got '{media[:80]}'")
    return wire.decode(await request.body(), kind, JSON)


def _build_cookie(request: HttpRequest, session: str, seconds: int = SESSION_SECONDS) -> dict[str, str]:
    """Build the Set-Cookie header of a session, closed to scripts and other sites."""
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    path = f"{request.scope.get('tenant', '')}/live"
    cookie = f"{COOKIE}={session}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return {"set-cookie": cookie}


def get_dashboard(request: HttpRequest) -> Dashboard:
    """Return the dashboard of a request's application."""
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


async def require_viewer(request: HttpRequest) -> Dashboard:
    """Return the dashboard; refuse a caller without access."""
    if not await _is_viewer(request):
        raise auth.Unauthorised("operator", "this page needs the operator's token: log in at /")
    return get_dashboard(request)


async def _is_viewer(request: HttpRequest) -> bool:
    dashboard = get_dashboard(request)
    if "authorization" in request.headers:
        await dashboard.service.require_operator(request)
        return True
    session = request.cookies.get(COOKIE, "")
    if is_demo_key(dashboard, session):
        return True
    epoch = await dashboard.feed.run_on_store(load_epoch) if session else None
    return epoch is not None and epoch.is_session(session, dashboard.service.clock.now())


def is_demo_key(dashboard: Dashboard, given: str) -> bool:
    """Return whether a text is the key of the demo."""
    return dashboard.demo is not None and hmac.compare_digest(given.encode(), dashboard.demo.key.encode())


@get("/live/session")
async def show_session(request: HttpRequest) -> Response[bytes]:
    """Send whether the caller has access, and if so the server's terms and the demo."""
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
    if is_demo_key(get_dashboard(request), login.token):
        return send_json({"known": True}, **_build_cookie(request, login.token))
    if not auth.is_operator(f"Bearer {login.token}", await service.writer.run(get_operator_hash())):
        raise auth.Unauthorised("operator", "this is not the operator's token")
    epoch = await get_dashboard(request).feed.run_on_store(load_epoch)
    session = epoch.give_session(int(service.clock.now()) + SESSION_SECONDS)
    log_action(request, "the operator opened a session")
    return send_json({"known": True}, **_build_cookie(request, session))


@delete("/live/session", status_code=200)
async def log_out(request: HttpRequest) -> Response[bytes]:
    """End the operator's sessions, in this browser and elsewhere."""

    def end(store: Store, state: ServerState) -> None:
        state.epoch = end_sessions(store)

    if request.cookies.get(COOKIE) and await _is_viewer(request):
        await get_dashboard(request).service.writer.run(end)
    return send_json({"known": False}, **_build_cookie(request, "", seconds=0))


def _read_whole_number(request: HttpRequest, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise Refused(400, "request", f"{name} must be a whole number >= 0, got '{text[:40]}'")
    return int(text)


@get("/")
async def show_page(request: HttpRequest) -> Response[bytes]:
    """Send the page, which holds no data."""
    return read_asset(__package__, "index.html").send(request)


@get("/live/assets/{name:str}")
async def show_asset(request: HttpRequest) -> Response[bytes]:
    """Send a script, a stylesheet or an image of the page."""
    name = str(request.path_params["name"])
    script = build_script("main", __package__) if name == "main.js" else read_asset(__package__, name)
    return script.send(request)


@get("/agent/{name:str}")
async def show_agent_file(request: HttpRequest) -> Response[bytes]:
    """Send a file of the JavaScript agent."""
    return send_agent_file(request, str(request.path_params["name"]))


@get("/live/events")
async def stream_events(request: HttpRequest) -> Stream:
    """Send server-sent events: the whole view, then updates."""
    dashboard = await require_viewer(request)
    stream = await dashboard.feed.follow()
    return Stream(stream, media_type="text/event-stream", headers={**PRIVATE_HEADERS, "x-accel-buffering": "no"})


@get("/live/view")
async def show_view(request: HttpRequest) -> Response[bytes]:
    """Send the whole view now, or at a past position or time."""
    dashboard = await require_viewer(request)
    position, at = (_read_whole_number(request, name) for name in ("position", "at"))
    return send_json(await dashboard.feed.read_view(position, at))


@post("/live/measures", status_code=204, request_max_body_size=1 << 20)
async def save_measures(request: HttpRequest) -> None:
    """Add regret and reward of a simulated run, reported by the operator."""
    dashboard = get_dashboard(request)
    await dashboard.service.require_operator(request)
    report = await read_json(request, Report)
    dashboard.feed.add_measures(report.measures, fresh=report.fresh)


@route(["/shop", "/live/films", "/live/visitors", "/live/demo"], http_method=["GET", "POST", "PUT"])
async def refuse_demo() -> None:
    """Refuse requests to a demo at a server without one."""
    raise Refused(404, "request", "this server runs no demo: start one with 'fedcascade live'")


ROUTES = (
    show_page,
    show_asset,
    show_agent_file,
    show_session,
    log_in,
    log_out,
    stream_events,
    show_view,
    save_measures,
)


def build_dashboard(service: Service, demo: DemoView | None = None) -> Extension:
    """Build the extension that gives a server its dashboard."""
    dashboard = Dashboard(service, demo)
    routes = (*ROUTES, refuse_demo) if demo is None else ROUTES
    stop = dashboard.feed.close_streams
    return Extension(routes=routes, state={"dashboard": dashboard}, lifespan=dashboard.run, on_shutdown=stop)
