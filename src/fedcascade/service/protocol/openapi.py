"""The OpenAPI description, generated from the wire types."""

from typing import Any

import msgspec

from fedcascade import __version__
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.wire import AnswerMessage, UploadMessage

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

# method, path, summary, security, request, status, response
ROUTES: tuple[tuple[str, str, str, str | None, type | None, int, type | None], ...] = (
    ("get", "/v1/terms", "Get the server's policy and limits.", None, None, 200, wire.Terms),
    ("post", wire.ENROLMENTS, "Enrol an agent; query prior.", None, wire.Enrolment, 201, wire.EnrolmentAnswer),
    ("post", wire.EXCHANGES, "Upload statistics; get the group's.", SIGNED, UploadMessage, 200, AnswerMessage),
    (
        "get",
        "/v1/agents/{agent}",
        "Get the sums of an agent's uploads; agent or operator.",
        SIGNED,
        None,
        200,
        wire.Standing,
    ),
    ("delete", "/v1/agents/{agent}", "Forget an agent; agent or operator.", SIGNED, None, 204, None),
    ("post", "/v1/agents/{agent}/revocation", "Revoke an agent.", OPERATOR, None, 204, None),
    ("post", "/v1/enrolment-tokens", "Create enrolment tokens.", OPERATOR, wire.TokenRequest, 201, wire.Tokens),
    ("put", "/v1/enrolment-keys", "Set or revoke an enrolment key.", OPERATOR, wire.EnrolmentKey, 204, None),
    ("get", "/v1/agents", "List agents: query after, most, state.", OPERATOR, None, 200, wire.AgentList),
    ("put", "/v1/operator-token", "Replace the operator's token.", OPERATOR, wire.TokenReplacement, 204, None),
    ("put", "/v1/pause", "Pause or resume exchanges.", OPERATOR, wire.Switch, 204, None),
    ("post", "/v1/arms", "Count lists and clicks of an A/B test.", OPERATOR, wire.ArmCounts, 204, None),
    ("get", "/v1/overview", "Get the totals of the server.", OPERATOR, None, 200, wire.Overview),
    ("get", "/healthz", "Check that the process runs.", None, None, 200, None),
    ("get", "/readyz", "Check that the store can be written.", None, None, 200, None),
    ("get", "/metrics", "Get Prometheus metrics.", None, None, 200, None),
    ("get", "/schema", "Get this description.", None, None, 200, None),
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
