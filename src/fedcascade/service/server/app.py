"""The server as a web application: each endpoint checks, hands a job to the writer, and answers."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar import Litestar, Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from fedcascade.federation.policies import Policy
from fedcascade.service.dashboard.pages import PAGES
from fedcascade.service.dashboard.watch import Watch
from fedcascade.service.protocol import auth, openapi, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON, MSGPACK
from fedcascade.service.server import exchanges, operations
from fedcascade.service.server.limits import Buckets
from fedcascade.service.server.metrics import Metrics
from fedcascade.service.server.verifier import Papers
from fedcascade.service.server.writer import Job, SignedJob, Writer

if TYPE_CHECKING:
    from fedcascade.demo.live import Demo

PROBE_BYTES = 64 * 1024  # with an upload's numbers on top, more than an upload takes with all pages that it splits
Kind = TypeVar("Kind", bound=msgspec.Struct)
Result = TypeVar("Result")
Asked = Request[Any, Any, State]
BYTES_PER_NUMBER = 32  # a float64 in JSON, with room to spare


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one caller may ask for."""

    rate: float = 50.0
    burst: float = 100.0
    body_bytes: int | None = None


class Service:
    """The parts of a running server that endpoints share."""

    def __init__(
        self, writer: Writer, policy: Policy, dimension: int, limits: Limits, demo: "Demo | None" = None
    ) -> None:
        self.writer = writer
        self.watch = Watch(writer, demo)
        self.dimension = dimension
        self.terms = wire.Terms(
            protocol=wire.PROTOCOLS[-1],
            policy=policy.name,
            constants=constants(policy),
            dimension=dimension,
            protocols=list(wire.PROTOCOLS),
        )
        numbers = dimension * (dimension + 3) // 2
        self.body_bytes = limits.body_bytes or 4_096 + BYTES_PER_NUMBER * numbers
        self.agents = Buckets(rate=limits.rate, burst=limits.burst)
        self.strangers = Buckets(rate=limits.rate, burst=limits.burst)
        self.nonces = auth.Nonces()
        self.keys: dict[int, bytes] = {}
        self.metrics = Metrics(
            {
                "clusters": ("Groups of agents.", lambda: self.state("clusters")),
                "agents": ("Agents that have spoken.", lambda: len(self.state("numbers") or ())),
                "log_position": ("Uploads and forgettings so far.", lambda: self.state("position")),
                "rounds": ("Rounds that the server knows of.", lambda: self.state("rounds")),
                "waiting": ("Jobs that wait for the writer.", lambda: writer.waiting),
            }
        )

    def state(self, name: str) -> Any:
        """A number of the current state; 0 while there is none."""
        return getattr(self.writer.fold, name, 0)

    async def do(self, job: Job[Result]) -> Result:
        """Hand a job to the writer and wait until it is durable."""
        return await self.writer.do(job)

    async def claimed(self, headers: Mapping[str, str]) -> auth.Claim:
        """What a request says of itself, in the name of an agent whose key is known."""
        claimed = auth.claim(headers)
        if claimed.agent not in self.keys:
            self.keys[claimed.agent] = await self._key(claimed.agent)
        return claimed

    def papers(self, claimed: auth.Claim, method: str, path: str, body: bytes, *, upload: str | None = None) -> Papers:
        """What must hold for a request to be the agent's own; ``upload`` is the media type of one."""
        return Papers(self.keys[claimed.agent], method, path, claimed, body, upload, self.dimension)

    def admit(self, claimed: auth.Claim) -> None:
        """Refuse a request that is not fresh and first; only the writer's thread decides which of two was first."""
        auth.fresh(claimed, time.time())
        self.nonces.use(claimed.agent, claimed.nonce)
        self.agents.take(claimed.agent, time.monotonic())

    async def admitted(self, papers: Papers, job: SignedJob[Result]) -> Result:
        """Do a job if the request is found to be the agent's own, fresh and first; and wait until it is durable."""
        return await self.writer.do_signed(papers, self.admit, job)

    async def _key(self, agent: int) -> bytes:
        identity = await self.do(operations.identity(agent))
        if identity is None:
            raise auth.unauthorised("unknown-agent", f"there is no agent {agent}: enrol first")
        return identity.public_key

    async def operator(self, request: Asked) -> None:
        """Refuse anyone but the operator."""
        self.stranger(request)
        kept = await self.do(operations.operator_hash())
        if not auth.is_operator(request.headers.get("authorization", ""), kept):
            raise auth.unauthorised("operator", "this needs the operator's token: Authorization: Bearer ...")

    async def self_or_operator(self, request: Asked, agent: int) -> None:
        """Refuse anyone but the agent itself and the operator."""
        if "authorization" in request.headers:
            await self.operator(request)
            return
        claimed = await self.claimed(request.headers)
        papers = self.papers(claimed, request.method, request.scope["path"], await request.body())
        await self.admitted(papers, lambda *_: None)
        if claimed.agent != agent:
            raise Refused(403, "not-yours", f"agent {claimed.agent} may not speak for agent {agent}")
        await self.do(operations.may_speak(agent))

    def stranger(self, request: Asked) -> None:
        """Count a request of somebody who is not known yet."""
        self.strangers.take(request.client.host if request.client else "", time.monotonic())

    def refusal(self, error: Exception, path: str) -> tuple[int, dict[str, str], bytes]:
        """A refusal as the caller sees it, one word and one line: status, headers, JSON."""
        match error:
            case Refused():
                status, reason, detail = error.status, error.reason, error.detail
            case HTTPException():
                status, reason, detail = error.status_code, "request", str(error.detail)
            case TimeoutError():
                status, reason, detail = 503, "store-unavailable", "the store does not answer"
            case _:
                raise error
        self.metrics.refused(reason)
        if path == exchanges.PATH:
            self.watch.refused(reason)
        headers = dict(getattr(error, "headers", None) or {})
        if isinstance(error, Refused) and error.retry_after is not None:
            headers["retry-after"] = str(max(1, round(error.retry_after)))
        if status == 401:
            headers["www-authenticate"] = 'Signature realm="fedcascade", Bearer realm="operator"'
        return status, headers, msgspec.json.encode(wire.RefusalBody(reason=reason, detail=detail))


def constants(policy: Policy) -> dict[str, object]:
    """The constants of a policy, and which kind of beta it decides with."""
    named = {name: plain(value) for name, value in policy.constants().items()}
    return named | {"confidence": type(policy.confidence).__name__.lower()}


def plain(value: object) -> object:
    """A constant as JSON has it."""
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def reply(message: msgspec.Struct, request: Asked, status: int = 200) -> Response[bytes]:
    """A message in the form in which the request came, JSON if in doubt."""
    media = MSGPACK if wire.media_of(request.headers) == MSGPACK else JSON
    return Response(wire.encoded(message, media), status_code=status, media_type=media)


async def message_of(request: Asked, kind: type[Kind]) -> Kind:
    """The message in a request's body."""
    return wire.decoded(await request.body(), kind, wire.media_of(request.headers))


def agent_of(request: Asked) -> int:
    """The agent that a path names; a number that no store can hold is nobody's."""
    agent = int(request.path_params["agent"])
    if not 0 < agent < 2**63:
        raise Refused(404, "no-such-agent", f"there is no agent {agent}")
    return agent


def service_of(request: Asked) -> Service:
    """The service behind an application."""
    found: Service = request.app.state.service
    return found


@post(exchanges.PATH, status_code=200)
async def exchange(request: Asked) -> Response[bytes]:
    """An upload and its answer; plain ones do not come here, see ``protocol.ShortWay``."""
    answer = await exchanges.exchanged(service_of(request), request.headers, await request.body())
    return Response(answer, media_type=wire.media_of(request.headers))


@get("/v1/terms")
async def terms(request: Asked) -> Response[bytes]:
    """What this server runs."""
    return reply(service_of(request).terms, request)


@post("/v1/agents", status_code=201)
async def enrol(request: Asked) -> Response[bytes]:
    """Take in a newcomer."""
    service = service_of(request)
    service.stranger(request)
    asked = await message_of(request, wire.Enrolment)
    if not auth.is_public_key(asked.public_key):
        raise Refused(422, "impossible", "public_key is not an Ed25519 key")
    agent = await service.do(operations.enrol(asked.token, asked.public_key, time.time()))
    return reply(wire.Welcome(protocol=asked.protocol, agent=agent, terms=service.terms), request, 201)


@get("/v1/agents/{agent:int}")
async def standing(request: Asked) -> Response[bytes]:
    """How an agent stands."""
    service, agent = service_of(request), agent_of(request)
    await service.self_or_operator(request, agent)

    def job(store: Any, _: Any) -> wire.Standing:
        identity = store.find_identity(agent)
        if identity is None:
            raise Refused(404, "no-such-agent", f"there is no agent {agent}")
        uploads, rounds = store.count_uploads(agent)
        return wire.Standing(
            protocol=wire.PROTOCOLS[-1], agent=agent, uploads=uploads, rounds=rounds, revoked=identity.revoked
        )

    return reply(await service.do(job), request)


@delete("/v1/agents/{agent:int}", status_code=204)
async def forget(request: Asked) -> None:
    """Forget an agent: its statistics are subtracted, its uploads erased."""
    service, agent = service_of(request), agent_of(request)
    await service.self_or_operator(request, agent)
    await service.do(operations.forget(agent))
    service.keys.pop(agent, None)


@post("/v1/agents/{agent:int}/revocation", status_code=204)
async def revoke(request: Asked) -> None:
    """Let an agent speak no more."""
    service, agent = service_of(request), agent_of(request)
    await service.operator(request)
    await service.do(operations.revoke(agent, time.time()))


@post("/v1/enrolment-tokens", status_code=201)
async def enrolment_tokens(request: Asked) -> Response[bytes]:
    """Make one-time tokens."""
    service = service_of(request)
    await service.operator(request)
    asked = await message_of(request, wire.TokenRequest)
    tokens = [auth.new_token() for _ in range(asked.count)]
    await service.do(operations.add_tokens(tokens, time.time() + asked.valid_seconds))
    return reply(wire.Tokens(protocol=asked.protocol, tokens=tokens), request, 201)


@get("/v1/overview")
async def overview(request: Asked) -> Response[bytes]:
    """What the server holds."""
    service = service_of(request)
    await service.operator(request)
    return reply(await service.do(operations.overview), request)


@get("/healthz", media_type="text/plain")
async def healthz() -> str:
    """The process lives."""
    return "ok\n"


@get("/readyz", media_type="text/plain")
async def readyz(request: Asked) -> str:
    """The store can be written: there is room for an upload, not only for a few bytes.

    The mark is random, because a store does not write again what it holds already.
    """
    service = service_of(request)
    mark = secrets.token_hex((PROBE_BYTES + service.body_bytes) // 2)
    await asyncio.wait_for(service.do(lambda store, _: store.set_setting("ready", mark)), 10.0)
    return "ok\n"


@get("/metrics")
async def metrics(request: Asked) -> Response[bytes]:
    """Prometheus metrics."""
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@get("/schema")
async def schema() -> Response[bytes]:
    """The OpenAPI document."""
    return Response(msgspec.json.encode(openapi.description()), media_type=JSON)


def refusal(request: Asked, error: Exception) -> Response[bytes]:
    """A refusal as the framework sends it."""
    status, headers, body = service_of(request).refusal(error, request.scope["path"])
    return Response(body, status_code=status, media_type=JSON, headers=headers)


ENDPOINTS = (
    exchange, terms, enrol, standing, forget, revoke, enrolment_tokens, overview, healthz, readyz, metrics, schema,
)  # fmt: skip


def application(
    writer: Writer, policy: Policy, dimension: int, *, limits: Limits | None = None, demo: "Demo | None" = None
) -> Litestar:
    """The web application. It closes the writer when it ends."""
    service = Service(writer, policy, dimension, limits or Limits(), demo)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        beside = asyncio.create_task(service.watch.run())
        yield
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside
        await service.watch.flush()
        await service.watch.feed.end()
        await asyncio.to_thread(writer.close)

    return Litestar(
        route_handlers=[*ENDPOINTS, *PAGES],
        openapi_config=None,
        lifespan=[lifespan],
        state=State({"service": service}),
        request_max_body_size=service.body_bytes,
        exception_handlers={Refused: refusal, HTTPException: refusal, TimeoutError: refusal},
    )
