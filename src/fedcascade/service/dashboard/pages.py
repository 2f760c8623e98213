"""The endpoints of the dashboard. Assets are files of this package; nothing is asked of any other origin."""

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.response import Stream
from msgspec import Meta

from fedcascade.service.dashboard.feed import mark_of, milliseconds
from fedcascade.service.dashboard.session import COOKIE, good_session, is_loopback, open_session, set_cookie
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON
from fedcascade.service.server import operations

if TYPE_CHECKING:
    from fedcascade.demo.live import Demo
    from fedcascade.service.dashboard.watch import Watch
    from fedcascade.service.server.app import Service

Asked = Request[Any, Any, State]
MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
PRIVATE = {**HEADERS, "cache-control": "no-store"}


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The operator's token."""

    token: Annotated[str, Meta(max_length=256)]


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """What a simulation reports: series, round, regret and reward of each; ``fresh`` forgets earlier ones."""

    measures: Annotated[list[tuple[str, int, float, int]], Meta(max_length=10_000)]
    fresh: bool = False


class Pace(msgspec.Struct, forbid_unknown_fields=True):
    """Rounds per second; 0 pauses."""

    pace: Annotated[float, Meta(ge=0, le=100_000)]


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """What the visitor of the shop did with a list: clicked a position, or passed."""

    impression: int
    clicked: int | None = None


def service_of(request: Asked) -> "Service":
    """The service behind the page."""
    found: Service = request.app.state.service
    return found


def watch_of(request: Asked) -> "Watch":
    """What pages share."""
    return service_of(request).watch


def demo_of(request: Asked) -> "Demo":
    """The demo; a server that runs none has no such page."""
    demo: Demo | None = watch_of(request).demo
    if demo is None:
        raise Refused(404, "request", "this server runs no demo: start one with 'fedcascade live'")
    return demo


def asset(name: str) -> Response[bytes]:
    """A file of this package."""
    kind = MEDIA.get(name.rpartition(".")[2])
    found = files(__package__) / "assets" / name
    if kind is None or "/" in name or not found.is_file():
        raise Refused(404, "request", "there is no such file")
    return Response(found.read_bytes(), media_type=kind, headers=HEADERS)


async def may_look(request: Asked) -> bool:
    """The operator, or anyone on this machine where a demo runs."""
    watch, service = watch_of(request), service_of(request)
    if watch.demo is not None and from_here(request):
        return True
    if "authorization" in request.headers:
        await service.operator(request)
        return True
    session = request.cookies.get(COOKIE)
    return bool(session) and await service.do(good_session(str(session)))


def from_here(request: Asked) -> bool:
    """Whether a request came over loopback, and meant to."""
    host = request.client.host if request.client else ""
    return host in ("127.0.0.1", "::1") and is_loopback(request.headers.get("host", ""))


def is_secure(request: Asked) -> bool:
    """Whether a request came over TLS."""
    return bool(request.scope.get("scheme") == "https")


async def looking(request: Asked) -> "Watch":
    """What pages share, for those who may look."""
    if not await may_look(request):
        raise auth.unauthorised("operator", "this page needs the operator's token: log in at /")
    return watch_of(request)


async def playing(request: Asked) -> "Demo":
    """The demo, for those who may look."""
    await looking(request)
    return demo_of(request)


def told(content: Mapping[str, Any], **headers: str) -> Response[bytes]:
    """Plain data for a page."""
    return Response(msgspec.json.encode(content), media_type=JSON, headers={**PRIVATE, **headers})


async def body_of(request: Asked, kind: type[Any]) -> Any:
    """A JSON body; another content type is refused, so no form of another site can send one."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise Refused(415, "content-type", f"content type must be {JSON}, got '{media[:80]}'")
    return wire.decoded(await request.body(), kind, JSON)


def whole_number(request: Asked, name: str) -> int | None:
    """A number of the query, or None."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise Refused(400, "request", f"{name} must be a whole number >= 0, got '{text[:40]}'")
    return int(text)


@get("/")
async def index() -> Response[bytes]:
    """The page; it has no data in it."""
    return asset("index.html")


@get("/shop")
async def shop_page(request: Asked) -> Response[bytes]:
    """The shop window of a demo."""
    demo_of(request)
    return asset("shop.html")


@get("/live/assets/{name:str}")
async def assets(request: Asked) -> Response[bytes]:
    """A file that the page needs."""
    return asset(str(request.path_params["name"]))


@get("/live/session")
async def session(request: Asked) -> Response[bytes]:
    """Whether this caller may look, and what the server runs."""
    known = await may_look(request)
    about = msgspec.to_builtins(service_of(request).terms) if known else {}
    demo = watch_of(request).demo
    return told({"known": known, "terms": about, "demo": demo.introduced() if known and demo else None})


@post("/live/session", status_code=200)
async def log_in(request: Asked) -> Response[bytes]:
    """Give the operator a session."""
    service = service_of(request)
    service.stranger(request)
    given = await body_of(request, Login)
    kept = await service.do(operations.operator_hash())
    if kept is None or not auth.is_operator(f"Bearer {given.token}", kept):
        raise auth.unauthorised("operator", "this is not the operator's token")
    opened = auth.new_token()
    await service.do(open_session(opened))
    return told({"known": True}, **{"set-cookie": set_cookie(opened, secure=is_secure(request))})


@delete("/live/session", status_code=200)
async def log_out(request: Asked) -> Response[bytes]:
    """End the session of this browser."""
    session = request.cookies.get(COOKIE)
    if session and await may_look(request):
        await service_of(request).do(open_session(session, seconds=0))
    return told({"known": False}, **{"set-cookie": set_cookie("", secure=is_secure(request), seconds=0)})


@get("/live/events")
async def events(request: Asked) -> Stream:
    """Server-sent events, from where the page was when it lost its connection."""
    watch = await looking(request)
    mark = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    stream = await watch.feed.follow(mark_of(mark))
    return Stream(stream, media_type="text/event-stream", headers={**PRIVATE, "x-accel-buffering": "no"})


@get("/live/picture")
async def whole_picture(request: Asked) -> Response[bytes]:
    """The whole picture at a moment of the past, or with curves of another span."""
    watch = await looking(request)
    position, at, span = (whole_number(request, name) for name in ("position", "at", "span"))
    return told(await watch.feed.picture(position, at, span))


@post("/live/measures", status_code=204, request_max_body_size=1 << 20)
async def measures(request: Asked) -> None:
    """Regret and reward of a simulated run, for the operator who simulates it."""
    service = service_of(request)
    await service.operator(request)
    given = await body_of(request, Report)

    def job(store: Any, _: Any) -> None:
        if given.fresh:
            store.delete_measures()
        store.record_measures(milliseconds(), given.measures)

    await service.do(job)


@put("/live/demo")
async def set_pace(request: Asked) -> Response[bytes]:
    """Set the pace of the demo."""
    demo = await playing(request)
    demo.set_pace((await body_of(request, Pace)).pace)
    return told(demo.told())


@get("/live/shop")
async def shop(request: Asked) -> Response[bytes]:
    """The visitor's list."""
    demo = await playing(request)
    return told(await demo.shop.look())


@post("/live/shop", status_code=200)
async def shop_choice(request: Asked) -> Response[bytes]:
    """Click or pass, and see the next list."""
    demo = await playing(request)
    choice = await body_of(request, Choice)
    return told(await demo.shop.choose(choice.impression, choice.clicked))


PAGES = (
    index, shop_page, assets, session, log_in, log_out, events, whole_picture, measures, set_pace, shop, shop_choice,
)  # fmt: skip
