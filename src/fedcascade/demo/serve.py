"""The server of a demo: the service, with endpoints for the pace and the shop window."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Annotated

import msgspec
from litestar import Response, get, post, put
from msgspec import Meta

from fedcascade.demo.catalogue import ATTRIBUTES, draw_films
from fedcascade.demo.live import Demo
from fedcascade.service.dashboard.routes import build_dashboard, read_json, require_viewer, send_json
from fedcascade.service.dashboard.static_files import StaticFile, build_script, name_agent, read_asset
from fedcascade.service.server.app import Extension, get_service
from fedcascade.service.server.serve import ServerSettings, run_server
from fedcascade.service.server.service import HttpRequest

DASHBOARD = "fedcascade.service.dashboard"
RESTART_SECONDS = 0.2  # after the answer to a request for it


class Pace(msgspec.Struct, forbid_unknown_fields=True):
    """Rounds per second; 0 pauses."""

    pace: Annotated[float, Meta(ge=0, le=100_000)]


class Visitor(msgspec.Struct, forbid_unknown_fields=True):
    """An empty body; its content type rejects forms of other sites."""


async def _get_demo(request: HttpRequest) -> Demo:
    await require_viewer(request)
    demo: Demo = request.app.state.demo
    return demo


@get("/shop")
async def show_shop_page(request: HttpRequest) -> Response[bytes]:
    """Send the page of the shop window."""
    return _name_agent(read_asset(__package__, "shop.html")).send(request)


@get("/live/assets/shop.js")
async def show_shop_script(request: HttpRequest) -> Response[bytes]:
    """Send the script of the shop window."""
    return _name_agent(build_script("shop", __package__, DASHBOARD)).send(request)


@cache
def _name_agent(file: StaticFile) -> StaticFile:
    """Replace the address of the agent by one that a browser may cache for good."""
    return replace(file, body=file.body.replace(b"/agent/index.js", f"/agent/{name_agent()}".encode()))


@put("/live/demo")
async def set_pace(request: HttpRequest) -> Response[bytes]:
    """Set the pace of the demo."""
    demo = await _get_demo(request)
    demo.set_pace((await read_json(request, Pace)).pace)
    return send_json(demo.describe_progress())


class Restart(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of the next demo, by name; others stay as they are."""

    settings: dict[str, str | int | float | bool | None]


@post("/live/restart", status_code=202)
async def restart_demo(request: HttpRequest) -> Response[bytes]:
    """Start another demo, with other settings: stop this server, whose command starts the next one."""
    demo = await _get_demo(request)
    await asyncio.to_thread(demo.restart, (await read_json(request, Restart)).settings)
    asyncio.get_running_loop().call_later(RESTART_SECONDS, signal.raise_signal, signal.SIGINT)
    return send_json({"run": demo.describe_progress()["run"]})


@post("/live/changes", status_code=202)
async def change_minds(request: HttpRequest) -> Response[bytes]:
    """Let half of the users drift."""
    demo = await _get_demo(request)
    await read_json(request, Visitor)
    demo.change_minds()
    return send_json(demo.describe_progress())


@get("/live/films")
async def show_films(request: HttpRequest) -> Response[bytes]:
    """Send the catalogue of the shop window: titles, words and features."""
    demo: Demo = request.app.state.demo
    films, features = draw_films(demo.settings.seed)
    rows = zip(films, features.tolist(), strict=True)
    catalogue = [{"title": film.title, "words": film.describe(), "features": row} for film, row in rows]
    epoch = get_service(request).get_terms().epoch
    return send_json({"films": catalogue, "attributes": [names[:2] for names in ATTRIBUTES], "epoch": epoch})


@post("/live/visitors", status_code=201)
async def admit_visitor(request: HttpRequest) -> Response[bytes]:
    """Send an enrolment token to a new visitor of the shop window."""
    get_service(request).limit_address(request)
    demo: Demo = request.app.state.demo
    await read_json(request, Visitor)
    return send_json({"token": await asyncio.to_thread(demo.create_visitor_token)})


ROUTES = (show_shop_page, show_shop_script, set_pace, restart_demo, change_minds, show_films, admit_visitor)


def serve_demo(settings: ServerSettings, announce: Callable[[str], None], demo: Demo) -> None:
    """Run a server, its dashboard and a demo until stopped; ``announce`` prints a line."""
    stop = partial(asyncio.to_thread, demo.stop)
    extension = Extension(routes=ROUTES, state={"demo": demo}, on_listening=demo.start, on_shutdown=stop)
    run_server(settings, announce, lambda service: [extension, build_dashboard(service, demo)])
