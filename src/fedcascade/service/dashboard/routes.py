"""The endpoints of the dashboard, and the extension that adds them to a server."""

from typing import Annotated

import msgspec
from litestar import Response, get, post, route
from litestar.response import Stream
from msgspec import Meta

from fedcascade.service.dashboard.access import get_dashboard, log_in, log_out, require_viewer, show_session
from fedcascade.service.dashboard.dashboard import Dashboard, DemoView
from fedcascade.service.dashboard.feed import parse_event_id
from fedcascade.service.dashboard.responses import PRIVATE_HEADERS, read_json, send_asset, send_json
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.app import Extension
from fedcascade.service.server.service import HttpRequest, Service
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """What a simulation reports: series, round, regret and reward of each; ``fresh`` drops earlier reports."""

    measures: Annotated[list[tuple[str, int, float, int]], Meta(max_length=10_000)]
    fresh: bool = False


def _read_whole_number(request: HttpRequest, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise Refused(400, "request", f"{name} must be a whole number >= 0, got '{text[:40]}'")
    return int(text)


@get("/")
async def show_page() -> Response[bytes]:
    """Send the page; it has no data in it."""
    return send_asset(__package__, "index.html")


@get("/live/assets/{name:str}")
async def show_asset(request: HttpRequest) -> Response[bytes]:
    """Send a script, a stylesheet or an image of the page."""
    return send_asset(__package__, str(request.path_params["name"]))


@get("/agent/{name:str}")
async def show_agent_module(request: HttpRequest) -> Response[bytes]:
    """Send a module of the agent in JavaScript; those for Node are not for browsers."""
    return send_asset("fedcascade.service.agent", str(request.path_params["name"]))


@get("/live/events")
async def stream_events(request: HttpRequest) -> Stream:
    """Send server-sent events, from where the page was when it lost its connection."""
    dashboard = await require_viewer(request)
    event_id = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    stream = await dashboard.feed.follow(parse_event_id(event_id))
    return Stream(stream, media_type="text/event-stream", headers={**PRIVATE_HEADERS, "x-accel-buffering": "no"})


@get("/live/view")
async def show_view(request: HttpRequest) -> Response[bytes]:
    """Send the whole view at a moment of the past, or with curves of another span."""
    dashboard = await require_viewer(request)
    position, at, span = (_read_whole_number(request, name) for name in ("position", "at", "span"))
    return send_json(await dashboard.feed.read_view(position, at, span))


@post("/live/measures", status_code=204, request_max_body_size=1 << 20)
async def save_measures(request: HttpRequest) -> None:
    """Save regret and reward of a simulated run, for the operator who simulates it."""
    service = get_dashboard(request).service
    await service.require_operator(request)
    report = await read_json(request, Report)

    def job(store: Store, _: ServerState) -> None:
        if report.fresh:
            store.delete_measures()
        store.record_measures(service.clock.read_milliseconds(), report.measures)

    await service.writer.run(job)


@route(["/shop", "/live/films", "/live/visitors", "/live/demo"], http_method=["GET", "POST", "PUT"])
async def refuse_demo() -> None:
    """Refuse requests to a demo, where there is none."""
    raise Refused(404, "request", "this server runs no demo: start one with 'fedcascade live'")


ROUTES = (
    show_page,
    show_asset,
    show_agent_module,
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
