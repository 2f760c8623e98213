"""Which web pages of other origins may let their visitors' agents speak to this server (CORS).

Only what agents need is open to them: enrolment, exchanges, standings, terms, and the agent's modules. Requests of
operators carry an Authorization header, which no page of another origin may send.
"""

from collections.abc import Collection
from typing import Any

from fedcascade.service.protocol import auth, wire

OPEN_PATHS = ("/v1/agents", "/v1/terms", "/agent/", wire.EXCHANGES)
HEADERS = {
    "vary": "origin",
    "access-control-expose-headers": f"{auth.SERVER_TIME}, retry-after",
    "access-control-allow-methods": "GET, POST, DELETE",
    "access-control-allow-headers": f"content-type, content-digest, {auth.SEQUENCE}, signature, signature-input",
    "access-control-max-age": "7200",
}


def build_headers(allowed: Collection[str], path: str, origin: str | None) -> dict[str, str]:
    """The headers by which a browser lets a page of that origin read the reply; none if it may not.

    >>> build_headers(["https://shop.example"], "/v1/overview", "https://shop.example")
    {}
    """
    if origin is None or origin not in allowed or not path.startswith(OPEN_PATHS):
        return {}
    return {"access-control-allow-origin": origin, **HEADERS}


def add_headers(allowed: Collection[str], message: Any, scope: Any) -> None:
    """Add them to the start of a response that the web application sends."""
    if not allowed or message["type"] != "http.response.start":
        return
    origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
    more = build_headers(allowed, scope["path"], origin)
    message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in more.items())]
