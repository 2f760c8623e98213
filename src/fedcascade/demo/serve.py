"""A demo's server: the whole service, with the demo's endpoints for its pace and its shop window."""

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
from litestar import Response, get, post, put
from msgspec import Meta

from fedcascade.demo.live import Demo
from fedcascade.service.dashboard.access import require_viewer
from fedcascade.service.dashboard.responses import read_json, send_asset, send_json
from fedcascade.service.serve import serve
from fedcascade.service.server.app import Extension
from fedcascade.service.server.serve import ServerSettings
from fedcascade.service.server.service import HttpRequest, Service


class Pace(msgspec.Struct, forbid_unknown_fields=True):
    """Rounds per second; 0 pauses."""

    pace: Annotated[float, Meta(ge=0, le=100_000)]


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """What the visitor of the shop did with a list: clicked a position, or passed."""

    impression: int
    clicked: int | None = None


async def _get_demo(request: HttpRequest) -> Demo:
    await require_viewer(request)
    demo: Demo = request.app.state.demo
    return demo


@get("/shop")
async def show_shop_page() -> Response[bytes]:
    """Send the page of the shop window."""
    return send_asset(__package__, "shop.html")


@get("/live/assets/shop.js")
async def show_shop_script() -> Response[bytes]:
    """Send the script of the shop window."""
    return send_asset(__package__, "shop.js")


@put("/live/demo")
async def set_pace(request: HttpRequest) -> Response[bytes]:
    """Set the pace of the demo."""
    demo = await _get_demo(request)
    demo.set_pace((await read_json(request, Pace)).pace)
    return send_json(demo.describe_progress())


@get("/live/shop")
async def show_list(request: HttpRequest) -> Response[bytes]:
    """Send the visitor's list."""
    demo = await _get_demo(request)
    return send_json(await asyncio.to_thread(demo.shop.get_list))


@post("/live/shop", status_code=200)
async def choose_film(request: HttpRequest) -> Response[bytes]:
    """Take the visitor's click, or that there was none, and send the next list."""
    demo = await _get_demo(request)
    choice = await read_json(request, Choice)
    return send_json(await asyncio.to_thread(demo.shop.choose, choice.impression, choice.clicked))


ROUTES = (show_shop_page, show_shop_script, set_pace, show_list, choose_film)


def serve_demo(settings: ServerSettings, announce: Callable[[str], None], demo: Demo) -> None:
    """Run a server, its dashboard and a demo until it is told to stop; ``announce`` gets each line to print."""

    def extend(service: Service) -> list[Extension]:
        def read_clusters() -> dict[int, int]:
            return service.writer.submit(lambda store, _: store.read_clusters(store.find_head())).result()

        demo_extension = Extension(
            routes=ROUTES,
            state={"demo": demo},
            on_listening=lambda url: demo.start(url, read_clusters),
            on_shutdown=lambda: asyncio.to_thread(demo.stop),
        )
        return [demo_extension]

    serve(settings, announce, demo=demo, extend=extend)
