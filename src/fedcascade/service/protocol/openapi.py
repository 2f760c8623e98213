"""The OpenAPI description, generated from the endpoints and the wire types."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from fedcascade import __version__
from fedcascade.service.protocol import wire

SIGNED, OPERATOR = "signature", "operator"
REFUSALS = {
    400: "The body cannot be decoded, or the protocol version is unknown.",
    401: "The request is unsigned, or its signature is stale, replayed or invalid.",
    403: "The caller is not allowed to do this.",
    404: "Not found.",
    409: "The sequence number was used for other content.",
    413: "The body is too large.",
    415: "The content type is neither JSON nor MessagePack.",
    422: "The message is well-formed, but no data can produce it.",
    429: "Too many requests.",
    503: "The store is unavailable.",
}
SIGNATURES = "RFC 9421 with Ed25519; see docs/reference-wire.md."
SECURITY = {
    SIGNED: {"type": "apiKey", "in": "header", "name": "Signature", "description": SIGNATURES},
    OPERATOR: {"type": "http", "scheme": "bearer"},
}
AGENT = {"name": "agent", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}


class Route(NamedTuple):
    """An endpoint: method, path, summary, security, and the types of request and response, if it has messages."""

    method: str
    path: str
    summary: str
    security: str | None
    request: type | None
    status: int
    response: type | None


def describe_api(routes: Sequence[Route]) -> dict[str, Any]:
    """Build the OpenAPI document."""
    kinds = [kind for route in routes for kind in (route.request, route.response) if kind is not None]
    _, schemas = msgspec.json.schema_components([*kinds, wire.RefusalBody], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _describe_operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedcascade", "version": __version__, "description": "Exchanges of agents with a server."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": SECURITY},
    }


def _describe_operation(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done."}
    if route.response is not None:
        good["content"] = _describe_content(route.response, wire.JSON, wire.MSGPACK)
    elif route.status == 200:
        good["content"] = {"application/json" if route.path == "/schema" else "text/plain": {"schema": {}}}
    problem = _describe_content(wire.RefusalBody, wire.JSON)
    refusals = {str(code): {"description": text, "content": problem} for code, text in REFUSALS.items()}
    name = route.path.strip("/").replace("/", "-").replace("{", "").replace("}", "")
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method}-{name}",
        "responses": {str(route.status): good, **refusals},
    }
    if "{agent}" in route.path:
        operation["parameters"] = [AGENT]
    if route.security is not None:
        operation["security"] = [{route.security: []}]
    if route.request is not None:
        content = _describe_content(route.request, wire.JSON, wire.MSGPACK)
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _describe_content(kind: type, *media_types: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {media_type: {"schema": schema} for media_type in media_types}
