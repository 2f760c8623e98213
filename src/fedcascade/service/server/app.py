"""The web application: each endpoint checks a request, hands a job to the writer and answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Litestar, Response, route
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler, Scope
from msgspec import Meta

from fedcascade.service.protocol import auth, openapi, wire
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.protocol.wire import JSON, MSGPACK
from fedcascade.service.server import operations
from fedcascade.service.server.connections import add_headers
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.logs import log, log_event
from fedcascade.service.server.service import HttpRequest, Service, name_caller
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.contract import OPERATOR, AgentPage, AgentState, Store, explain_failures

PROBES: list[Literal["GET", "HEAD"]] = ["GET", "HEAD"]  # some load balancers send HEAD
HEALTH = ["/healthz", "/readyz"]
OK = b"ok\n"
MOST_LISTED = 1_000  # agents in one answer
Kind = TypeVar("Kind", bound=msgspec.Struct)


def encode_reply(message: msgspec.Struct, request: HttpRequest, status: int = 200) -> Response[bytes]:
    """Encode a message in the media type of the request, by default JSON."""
    media = MSGPACK if wire.get_media_type(request.headers) == MSGPACK else JSON
    return Response(wire.ENCODERS[media](message), status_code=status, media_type=media)


async def read_message(request: HttpRequest, kind: type[Kind]) -> Kind:
    """Decode the message in a request's body."""
    return wire.decode(await request.body(), kind, wire.get_media_type(request.headers))


async def read_order(request: HttpRequest, kind: type[Kind]) -> tuple[Service, Kind]:
    """Return the service and the message of a request of the operator; refuse other callers."""
    service = get_service(request)
    await service.require_operator(request)
    return service, await read_message(request, kind)


def read_agent(request: HttpRequest) -> int:
    """Read the agent's number from the path; refuse one that no store can hold."""
    agent = int(request.path_params["agent"])
    if not 0 < agent < 2**63:
        raise Refused(404, "no-such-agent", f"there is no agent {agent}")
    return agent


class AgentQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Query of a list of agents: numbers above ``after``, at most ``most``, in one state."""

    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    most: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 100
    state: AgentState = "all"


def log_action(request: HttpRequest, message: str, **facts: object) -> None:
    """Log an action of an operator, or of an agent on itself."""
    caller, tenant = name_caller(request), request.scope.get("tenant")
    message = message if tenant is None else f"{message} at {tenant}"
    log_event(f"{message}, from {caller or 'an unknown address'}", event="action", caller=caller, **facts)


def get_service(request: HttpRequest) -> Service:
    """Return the service behind an application."""
    service: Service = request.app.state.service
    return service


ENDPOINTS: list[HTTPRouteHandler] = []
ROUTES: list[openapi.Route] = []


def endpoint(
    method: Literal["GET", "POST", "PUT", "DELETE"],
    path: str,
    status: int = 200,
    *,
    security: str | None = None,
    takes: type | None = None,
    gives: type | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an endpoint, which ``/schema`` describes by its docstring and by the messages that it takes and gives."""

    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        summary = f"{(handler.__doc__ or '').partition('. ')[0].rstrip('.')}."
        plain = path.replace(":int", "")
        ROUTES.append(openapi.Route(method.lower(), plain, summary, security, takes, status, gives))
        methods = PROBES if path in HEALTH else [method]
        ENDPOINTS.append(route(path, http_method=methods, status_code=status)(handler))
        return handler

    return declare


@endpoint("POST", wire.EXCHANGES, security=openapi.SIGNED, takes=wire.UploadMessage, gives=wire.AnswerMessage)
async def answer_upload(request: HttpRequest) -> Response[bytes]:
    """Answer an upload. ``server.http`` answers most of them without the framework."""
    media, body = wire.get_media_type(request.headers), await request.body()
    exchange = Exchange(headers=request.headers, body=body, caller=name_caller(request), media_type=media)
    status, headers, answer = await get_service(request).answer(exchange)
    return Response(answer, status_code=status, headers=headers)


@endpoint("GET", "/v1/terms", gives=wire.Terms)
async def show_terms(request: HttpRequest) -> Response[bytes]:
    """Show policy, constants and dimension of this server."""
    return encode_reply(get_service(request).get_terms(), request)


@endpoint("POST", wire.ENROLMENTS, 201, takes=wire.Enrolment, gives=wire.EnrolmentAnswer)
async def enrol_agent(request: HttpRequest) -> Response[bytes]:
    """Enrol an agent by its public key and a one-time token or an earlier credential; query prior."""
    service = get_service(request)
    service.limit_address(request)
    service.require_running()
    message = await read_message(request, wire.Enrolment)
    claim = wire.encode_enrolment_claim(message.token, message.credential)
    auth.verify_enrolment(message.public_key, message.proof, message.created, claim)
    auth.require_fresh(message.created, service.clock.now())
    credential, prior = await service.writer.run(
        operations.enrol(message, service.clock.now(), with_prior=wire.WITH_PRIOR in request.query_params)
    )
    agent, terms = credential.agent, service.get_terms()
    log.debug("agent %d enrolled", agent)
    service.joined += 1
    service.writer.identities.pop(agent, None)
    answer = wire.EnrolmentAnswer(protocol=message.protocol, agent=agent, terms=terms, credential=credential)
    if prior is not None:
        answer = msgspec.structs.replace(answer, prior=prior)
    return encode_reply(answer, request, 201)


@endpoint("GET", "/v1/agents/{agent:int}", security=openapi.SIGNED, gives=wire.Standing)
async def show_standing(request: HttpRequest) -> Response[bytes]:
    """Show the data that the server holds of an agent, to it or to the operator."""
    service, agent = get_service(request), read_agent(request)
    await service.require_agent_or_operator(request, agent)
    return encode_reply(await service.writer.run(operations.read_standing(agent)), request)


@endpoint("DELETE", "/v1/agents/{agent:int}", 204, security=openapi.SIGNED)
async def forget_agent(request: HttpRequest) -> None:
    """Forget an agent, for it or for the operator: subtract its statistics and erase its uploads."""
    service, agent = get_service(request), read_agent(request)
    await service.require_agent_or_operator(request, agent)
    actor = OPERATOR if "authorization" in request.headers else f"agent {agent}"
    await service.writer.run(operations.forget(agent, actor, service.clock.now()))
    service.left += 1
    service.writer.identities.pop(agent, None)
    log_action(request, f"{actor} had agent {agent} forgotten", agent=agent)


@endpoint("POST", "/v1/agents/{agent:int}/revocation", 204, security=openapi.OPERATOR)
async def revoke_agent(request: HttpRequest) -> None:
    """Revoke an agent: refuse its requests from now on and keep its uploads."""
    service, agent = get_service(request), read_agent(request)
    await service.require_operator(request)
    await service.writer.run(operations.revoke(agent, service.clock.now()))
    log_action(request, f"the operator revoked agent {agent}", agent=agent)


@endpoint("POST", "/v1/enrolment-tokens", 201, security=openapi.OPERATOR, takes=wire.TokenRequest, gives=wire.Tokens)
async def create_tokens(request: HttpRequest) -> Response[bytes]:
    """Create one-time enrolment tokens."""
    service, bearer = get_service(request), request.headers.get("authorization", "").removeprefix("Bearer ")
    message, who = await read_message(request, wire.TokenRequest), "the operator"
    if "." in bearer:
        service.limit_address(request)
        name = await service.writer.run(operations.use_enrolment_key(bearer, message.count, service.clock.now()))
        who = f"enrolment key '{name}'"
    else:
        await service.require_operator(request)
    tokens = [auth.create_token() for _ in range(message.count)]
    await service.writer.run(operations.add_tokens(tokens, service.clock.now() + message.valid_seconds))
    log_action(request, f"{who} created enrolment tokens: {message.count}", count=message.count)
    return encode_reply(wire.Tokens(protocol=message.protocol, tokens=tokens), request, 201)


@endpoint("PUT", "/v1/enrolment-keys", 204, security=openapi.OPERATOR, takes=wire.EnrolmentKey)
async def set_enrolment_key(request: HttpRequest) -> None:
    """Set the hash of an enrolment key, with which a back end creates tokens, or revoke it."""
    service, message = await read_order(request, wire.EnrolmentKey)
    await service.writer.run(operations.put_enrolment_key(message))
    log_action(request, f"the operator {'set' if message.key_hash else 'revoked'} enrolment key '{message.name}'")


@endpoint("PUT", "/v1/operator-token", 204, security=openapi.OPERATOR, takes=wire.TokenReplacement)
async def replace_operator_token(request: HttpRequest) -> None:
    """Replace the operator's token at all servers of the store."""
    service, message = await read_order(request, wire.TokenReplacement)
    await service.writer.run(operations.replace_operator(message.token_hash))
    log_action(request, "the operator replaced the operator's token")


@endpoint("PUT", "/v1/pause", 204, security=openapi.OPERATOR, takes=wire.Switch)
async def pause(request: HttpRequest) -> None:
    """Pause or resume exchanges: agents go on alone meanwhile, and send later."""
    service, message = await read_order(request, wire.Switch)
    await service.writer.run(operations.pause(message.paused))
    service.paused = message.paused
    log_action(request, f"the operator {'paused' if message.paused else 'resumed'} exchanges")


@endpoint("POST", "/v1/arms", 204, security=openapi.OPERATOR, takes=wire.ArmCounts)
async def count_arms(request: HttpRequest) -> None:
    """Count lists and clicks of an A/B test."""
    service, message = await read_order(request, wire.ArmCounts)
    trial = await service.writer.run(operations.count_arms(message.counts, service.guard_level))
    service.note_switches(service.paused, trial)


@endpoint("GET", "/v1/agents", security=openapi.OPERATOR, gives=wire.AgentList)
async def list_agents(request: HttpRequest) -> Response[bytes]:
    """List agents: query after, most, state. A connection of its own keeps a long list from delaying uploads."""
    service = get_service(request)
    await service.require_operator(request)
    try:
        query = msgspec.convert(dict(request.query_params), AgentQuery, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, "request", str(error)) from None

    def read() -> AgentPage:
        with closing(service.writer.open_store()) as store, explain_failures(store):
            return store.list_agents(query.after, query.most + 1, query.state)

    page = await asyncio.to_thread(read)
    return encode_reply(await service.writer.run(operations.describe_agents(page, query.most)), request)


@endpoint("GET", "/v1/overview", security=openapi.OPERATOR, gives=wire.Overview)
async def show_overview(request: HttpRequest) -> Response[bytes]:
    """Show the position of the log and the group of each agent."""
    service = get_service(request)
    await service.require_operator(request)
    return encode_reply(await service.writer.run(operations.read_overview), request)


@endpoint("GET", "/healthz")
@endpoint("GET", "/readyz")
async def check_service(request: HttpRequest) -> Response[bytes]:
    """Check that writers make progress; at ``/readyz`` also that stores accept writes of the size of an upload."""
    state = request.app.state
    for service in state.get("tenants", {"": state.service}).values():
        service.writer.require_progress()
        if request.scope["path"] == "/readyz":
            await service.readiness.check()
    return Response(OK, media_type="text/plain")


@endpoint("GET", "/metrics")
async def show_metrics(request: HttpRequest) -> Response[bytes]:
    """Show the metrics in the text format of Prometheus."""
    return Response(get_service(request).metrics.render(), media_type="text/plain; version=0.0.4")


@endpoint("GET", "/schema")
async def show_schema() -> Response[bytes]:
    """Show the OpenAPI document."""
    return Response(msgspec.json.encode(openapi.describe_api(ROUTES)), media_type=JSON)


def build_refusal(request: HttpRequest, error: Exception) -> Response[bytes]:
    """Turn an exception into the response that refuses the request."""
    status, headers, body = get_service(request).refuse(
        error, request.scope["path"], request.headers, name_caller(request)
    )
    return Response(body, status_code=status, headers=headers)


async def log_failure(error: Exception, scope: Scope) -> None:
    """Log an exception that is not a refusal; the caller gets status 500."""
    if not isinstance(error, Refused | HTTPException | TimeoutError):
        log.error("%s %s failed", scope.get("method"), scope.get("path"), exc_info=error)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Routes that a package above the server adds to its application, with their ``request.app.state``.

    ``lifespan`` runs around the application's life; the writer closes after it. ``on_listening`` gets the server's
    address before the first request. ``on_shutdown`` is awaited before the server waits for open connections.
    """

    routes: Sequence[ControllerRouterHandler] = ()
    state: Mapping[str, object] = field(default_factory=dict)
    lifespan: Callable[[Litestar], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
    on_listening: Callable[[str], None] = lambda _: None
    on_shutdown: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)


def build_application(service: Service, extensions: Sequence[Extension] = ()) -> Litestar:
    """Build the web application. It closes the service's writer when it ends."""

    @asynccontextmanager
    async def close_writer(_: Litestar) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.writer.close)

    state = State({"service": service})
    for extension in extensions:
        state.update(extension.state)
    return Litestar(
        route_handlers=[*ENDPOINTS, *(route for extension in extensions for route in extension.routes)],
        openapi_config=None,
        logging_config=None,  # the framework would take the log over
        after_exception=[log_failure],
        lifespan=[close_writer, *(extension.lifespan for extension in extensions)],
        state=state,
        before_send=[partial(add_headers, service.origins)],
        request_max_body_size=service.body_bytes,
        exception_handlers={Refused: build_refusal, HTTPException: build_refusal, TimeoutError: build_refusal},
    )


RETENTION_SECONDS = 3_600.0  # between two searches for old uploads
PAUSE_SECONDS = 0.5  # between two transactions of a search, so that uploads can go ahead
SWITCH_SECONDS = 1.0  # between two looks at pauses and A/B tests
TICK_SECONDS = 0.5  # between two readings of the clock
FIRST_SCRUB_SECONDS, SCRUBS = 60.0, 3  # after the start; tries while the store changes


async def retain_forever(service: Service, days: float) -> None:
    """Fold uploads that are older than ``days``, now and every hour; retry soon if the store is not available."""
    while True:
        has_more = True
        with suppress(Refused):
            has_more = await service.writer.run(operations.retain(days, service.clock.now()))
        await sleep_by_clock(service.clock, PAUSE_SECONDS if has_more else RETENTION_SECONDS)


async def scrub_forever(service: Service, hours: float) -> None:
    """Verify the whole store soon after the start and every ``hours``, on a connection and a thread of its own."""
    pause = min(FIRST_SCRUB_SECONDS, 3_600 * hours)
    while True:
        await sleep_by_clock(service.clock, pause)
        pause = 3_600 * hours
        try:
            await asyncio.to_thread(scrub, service.writer.open_store)
            service.scrubbed = service.clock.now()
        except Exception as error:
            log.error("the store cannot be verified: %s", error)


def scrub(open_store: Callable[[], Store]) -> None:
    """Verify a store that is in use: again, if a rewrite or a new snapshot may have misled the first try."""
    with closing(open_store()) as store, explain_failures(store):
        for attempt in range(1, SCRUBS + 1):
            before = store.find_head().rewritten
            try:
                store.verify()
                return
            except DamagedStore:
                if attempt == SCRUBS:
                    if store.find_head().rewritten != before:
                        raise Unavailable(f"it was rewritten during {SCRUBS} tries") from None
                    raise


async def sleep_by_clock(clock: Clock, seconds: float) -> None:
    """Sleep for ``seconds`` of a clock, which may run faster than this machine's."""
    end = clock.elapsed() + seconds
    while (left := end - clock.elapsed()) > 0:
        await asyncio.sleep(min(left, TICK_SECONDS))


async def watch_switches(service: Service, seconds: float) -> None:
    """Read now and then whether another server was told to pause, and the counts of an A/B test."""
    while True:
        if service.writer.healthy:  # else exchanges try the store
            with suppress(Refused):
                service.note_switches(*await service.writer.run(operations.read_switches))
        await asyncio.sleep(seconds)


@asynccontextmanager
async def run_meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a task until the block ends."""
    task = asyncio.create_task(work)
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def keep_running(
    forever: Callable[[Service, float], Coroutine[Any, Any, None]], service: Service, every: float
) -> Extension:
    """Return an extension that runs a task while the application runs."""
    return Extension(lifespan=lambda _: run_meanwhile(forever(service, every)))
