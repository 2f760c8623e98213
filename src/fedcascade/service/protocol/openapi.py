"""The OpenAPI description, from the same types that decode the messages."""

from typing import Any

import msgspec

from fedcascade import __version__
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.wire import AnswerMessage, UploadMessage

SIGNED, OPERATOR = "signature", "operator"
REFUSALS = {
    400: "The body or the protocol is not understood.",
    401: "The request is not signed, or its signature is stale, replayed, altered or borrowed.",
    403: "The caller may not do this.",
    404: "There is no such thing.",
    409: "The same sequence number came with another content.",
    413: "The body is too large.",
    415: "The content type is neither JSON nor MessagePack.",
    422: "The message is well-formed but no data can look like this.",
    429: "Too many requests.",
    503: "The store is not available just now.",
}
SIGNATURES = "RFC 9421 with Ed25519; see docs/reference-wire.md."
SECURITY = {
    SIGNED: {"type": "apiKey", "in": "header", "name": "Signature", "description": SIGNATURES},
    OPERATOR: {"type": "http", "scheme": "bearer"},
}
AGENT = {"name": "agent", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}

# method, path, summary, security, request, status, response
ROUTES: tuple[tuple[str, str, str, str | None, type | None, int, type | None], ...] = (
    ("get", "/v1/terms", "What this server runs.", None, None, 200, wire.Terms),
    ("post", wire.ENROLMENTS, "Enrol an agent; query download.", None, wire.Enrolment, 201, wire.Welcome),
    ("post", wire.EXCHANGES, "Upload a buffer; get a group's statistics.", SIGNED, UploadMessage, 200, AnswerMessage),
    ("get", "/v1/agents/{agent}", "How an agent stands; itself or an operator.", SIGNED, None, 200, wire.Standing),
    ("delete", "/v1/agents/{agent}", "Forget an agent; itself or an operator.", SIGNED, None, 204, None),
    ("post", "/v1/agents/{agent}/revocation", "Let an agent speak no more.", OPERATOR, None, 204, None),
    ("post", "/v1/enrolment-tokens", "Make enrolment tokens.", OPERATOR, wire.TokenRequest, 201, wire.Tokens),
    ("get", "/v1/agents", "List agents: query after, most, state.", OPERATOR, None, 200, wire.AgentList),
    ("put", "/v1/operator-token", "Replace the operator's token.", OPERATOR, wire.TokenReplacement, 204, None),
    ("get", "/v1/overview", "What the server holds.", OPERATOR, None, 200, wire.Overview),
    ("get", "/healthz", "Whether the process lives.", None, None, 200, None),
    ("get", "/readyz", "Whether the store can be written.", None, None, 200, None),
    ("get", "/metrics", "Prometheus metrics.", None, None, 200, None),
    ("get", "/schema", "This description.", None, None, 200, None),
)


def describe_api() -> dict[str, Any]:
    """Build the OpenAPI document."""
    kinds = [kind for route in ROUTES for kind in (route[4], route[6]) if kind is not None]
    _, schemas = msgspec.json.schema_components([*kinds, wire.RefusalBody], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route[1], {})[route[0]] = _describe_operation(*route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedcascade", "version": __version__, "description": "Exchanges of agents with a server."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": SECURITY},
    }


def _describe_operation(
    method: str, path: str, summary: str, security: str | None, request: type | None, status: int, response: type | None
) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done."}
    if response is not None:
        good["content"] = _describe_content(response, wire.JSON, wire.MSGPACK)
    elif status == 200:
        good["content"] = {"application/json" if path == "/schema" else "text/plain": {"schema": {}}}
    problem = _describe_content(wire.RefusalBody, wire.JSON)
    refusals = {str(code): {"description": text, "content": problem} for code, text in REFUSALS.items()}
    operation: dict[str, Any] = {
        "summary": summary,
        "operationId": f"{method}-{path.strip('/').replace('/', '-').replace('{', '').replace('}', '')}",
        "responses": {str(status): good, **refusals},
    }
    if "{agent}" in path:
        operation["parameters"] = [AGENT]
    if security is not None:
        operation["security"] = [{security: []}]
    if request is not None:
        operation["requestBody"] = {"required": True, "content": _describe_content(request, wire.JSON, wire.MSGPACK)}
    return operation


def _describe_content(kind: type, *media_types: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {media_type: {"schema": schema} for media_type in media_types}
