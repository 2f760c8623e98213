"""Responses of pages: packaged files and JSON, with headers that allow nothing from any other origin."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from litestar import Response

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON
from fedcascade.service.server.service import HttpRequest

Kind = TypeVar("Kind", bound=msgspec.Struct)
MEDIA_TYPES = {  # Litestar adds the charset to those of text
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
PRIVATE_HEADERS = {**HEADERS, "cache-control": "no-store"}


def send_asset(package: str, name: str) -> Response[bytes]:
    """Send a file of a package's ``assets`` folder."""
    media = MEDIA_TYPES.get(name.rpartition(".")[2])
    file = files(package) / "assets" / name
    if media is None or "/" in name or not file.is_file():
        raise Refused(404, "request", "there is no such file")
    return Response(file.read_bytes(), media_type=media, headers=HEADERS)


def send_json(content: Mapping[str, Any], **headers: str) -> Response[bytes]:
    """Send plain data to a page; no cache keeps it."""
    return Response(msgspec.json.encode(content), media_type=JSON, headers={**PRIVATE_HEADERS, **headers})


async def read_json(request: HttpRequest, kind: type[Kind]) -> Kind:
    """Decode a JSON body; another content type is refused, so no form of another site can send one."""
    media = wire.get_media_type(request.headers)
    if media != JSON:
        raise Refused(415, "content-type", f"content type must be {JSON}, got '{media[:80]}'")
    return wire.decode(await request.body(), kind, JSON)
