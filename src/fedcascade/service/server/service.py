"""State shared by the endpoints of a server process: writer, limits, nonces, metrics."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from prometheus_client import Metric

from fedcascade.federation.policies import Policy
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.arms import Trial
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server import operations
from fedcascade.service.server.connections import ConnectionTable, ForgeryLimiter, RateLimiter, name_network
from fedcascade.service.server.exchange import Exchange, settle_future
from fedcascade.service.server.logs import RefusalLog, log
from fedcascade.service.server.metrics import (
    Metrics,
    OutsizedAgent,
    build_metric,
    find_outsized_agents,
    list_privacy_metrics,
    list_trial_metrics,
)
from fedcascade.service.server.settings import DEFAULT_BOUNDS, Limits, ServerOptions, UploadBounds
from fedcascade.service.server.writer import Writer, wait_for

HttpRequest = Request[Any, Any, State]
Reply = tuple[int, dict[str, str], bytes]  # status, headers, body
FORGED = ("unrecognised", "altered")  # reasons of refusals that count as forgeries
PAUSE_SECONDS = 30.0  # between two attempts of an agent while exchanges are paused
BYTES_PER_NUMBER = 32  # upper bound of a float64 in JSON


def build_terms(policy: Policy, dimension: int, bounds: UploadBounds, features: str = "") -> wire.Terms:
    """Build the terms that agents get, with the policy's constants and kind of confidence bound ready for JSON."""
    constants: dict[str, object] = {
        name: value if isinstance(value, int | float | str | bool) or value is None else str(value)
        for name, value in policy.constants().items()
    }
    return wire.Terms(
        protocol=wire.PROTOCOLS[-1],
        policy=policy.name,
        constants=constants | {"confidence": type(policy.confidence).__name__.lower()},
        dimension=dimension,
        protocols=list(wire.PROTOCOLS),
        longest_list=bounds.longest_list,
        min_observations=bounds.get_min_observations(dimension),
        rounds_burst=bounds.rounds_burst,
        rounds_per_hour=bounds.rounds_per_hour,
        features=features or msgspec.UNSET,
    ).with_id()


class Service:
    """The parts of a running server that its endpoints share."""

    def __init__(
        self,
        writer: Writer,
        limits: Limits,
        bounds: UploadBounds = DEFAULT_BOUNDS,
        features: str = "",
        tracer: Any | None = None,
    ) -> None:
        self.writer = writer
        self.clock = writer.clock
        self.terms = build_terms(writer.policy, writer.dimension, bounds, features)
        self.body_bytes = limits.body_bytes or 4_096 + BYTES_PER_NUMBER * wire.count_numbers(writer.dimension)
        self.readiness = ReadinessProbe(writer, self.body_bytes)
        self.refusals = RefusalLog()
        self.refused_uploads: Counter[str] = Counter()  # by reason, since the dashboard last stored them
        self.bounds = bounds
        self.origins = frozenset(limits.allow_origin)
        self.proxies = frozenset(limits.trusted_proxy)
        self.connections = ConnectionTable(
            most=limits.connections,
            most_per_address=limits.connections_per_address,
            proxies=[name_network(proxy) for proxy in limits.trusted_proxy],
        )
        self.joined = self.left = 0  # agents enrolled and forgotten by this process
        self.scrubbed = 0.0  # when the whole store was last found intact, in seconds since 1970
        self._agent_limiter = RateLimiter(rate=limits.rate, burst=limits.burst)
        self._address_limiter = RateLimiter(rate=limits.address_rate, burst=limits.address_burst)
        self._forgeries = ForgeryLimiter(rate=limits.address_rate / 5, burst=limits.address_burst)
        writer.checks = [
            lambda signed: auth.require_fresh(signed.created, self.clock.now()),
            lambda signed: self._agent_limiter.take(signed.agent, self.clock.elapsed()),
        ]
        self.guard_margin, self.guard_level = ServerOptions.guard_margin, ServerOptions.guard_level
        self.paused = False
        self.trial: Trial | None = None  # of an A/B test
        self._outsized: tuple[float, list[OutsizedAgent]] = (-math.inf, [])
        self.metrics = Metrics(self._list_metrics, tracer)

    def _list_metrics(self) -> Iterator[Metric]:
        """Yield the present metrics. They are open, so none shows a single upload or names an agent."""
        state = self.writer.last_state
        clicks, rewards = state.reward_rates
        outsized = max((outsized.share for outsized in self.find_outsized_agents()), default=0.0)
        for name, text, value in (
            ("clusters", "Groups of two agents or more.", state.groups),
            ("agents", "Agents that have uploaded.", len(state.places)),
            ("log_position", "Entries of the log so far.", state.position),
            ("rounds", "Rounds in the uploads of all agents, to 4 bits.", wire.coarsen(state.rounds)),
            (
                "outsized_share",
                "Largest share of a group's observations held by an agent with abnormally many; 0 if none has.",
                outsized,
            ),
            ("click_rate", "Clicks per list, to 2 digits.", clicks),
            ("reward", "Rewards of clicks per list, to 2 digits.", rewards),
            ("fullest", "Share of the observations that an agent may upload.", state.fullest),
            ("resets_total", "Uploads that replaced earlier ones.", state.resets),
            ("joined_total", "Agents enrolled by this server since it started.", self.joined),
            ("left_total", "Agents forgotten by this server since it started.", self.left),
            ("scrubbed", "When the whole store was last verified, in seconds since 1970.", self.scrubbed),
            ("waiting", "Jobs that wait for the writer.", self.writer.waiting),
            ("paused", "1 while exchanges are paused.", self.paused),
            ("connections", "Open connections.", len(self.connections)),
        ):
            yield build_metric(name, text, value)
        yield from list_trial_metrics(self.describe_trial())
        yield from list_privacy_metrics(state.count_spent())

    def find_outsized_agents(self) -> list[OutsizedAgent]:
        """Find agents with abnormally many observations; the result is cached for a second."""
        now = self.clock.elapsed()
        if now >= self._outsized[0]:
            self._outsized = now + 1.0, find_outsized_agents(self.writer.last_state)
        return self._outsized[1]

    def note_switches(self, paused: bool, trial: Trial | None) -> None:
        """Note what the store says of pauses and of an A/B test; log an alarm once."""
        was_worse = self.trial is not None and self.trial.is_worse(self.guard_margin)
        self.paused, self.trial = paused, trial
        if trial is not None and trial.is_worse(self.guard_margin) and not was_worse:
            words = "guardrail: treatment minus control is at most %+.2f points of clicked lists, at level %g"
            log.warning(words, 100 * trial.upper, self.guard_level)

    def describe_trial(self) -> Mapping[str, Any] | None:
        """Describe the A/B test for pages and metrics; None if there is none."""
        return None if self.trial is None else self.trial.describe(self.guard_margin)

    def require_running(self) -> None:
        """Refuse a request while exchanges are paused."""
        if self.paused:
            raise Refused(503, "paused", "the operator has paused exchanges: go on alone", retry_after=PAUSE_SECONDS)

    def get_terms(self) -> wire.Terms:
        """Return the current terms, with the epoch of the store."""
        state = self.writer.state
        return self.terms if state is None else msgspec.structs.replace(self.terms, epoch=state.epoch.name)

    def start(self, exchange: Exchange) -> None:
        """Put an exchange into the writer's queue; refuse one without a signature, or after too many forgeries."""
        self.require_running()
        exchange.signature = auth.parse_signature(exchange.headers)
        self._forgeries.require_capacity(exchange.caller, exchange.signature.agent, self.clock.elapsed())
        exchange.at, exchange.started = self.clock.now(), time.perf_counter()
        exchange.bounds, exchange.terms_id = self.bounds, self.terms.terms_id
        self.writer.require_progress()
        self.writer.queue.put(exchange)

    async def answer(self, exchange: Exchange) -> Reply:
        """Answer an exchange once it is durable, or raise its refusal."""
        future: Future[bytes] = Future()
        exchange.deliver = partial(settle_future, future)
        self.start(exchange)
        return self.finish(exchange, await wait_for(future))

    def finish(self, exchange: Exchange, result: Any) -> Reply:
        """Count an exchange and return its reply, from the writer's answer or exception."""
        if isinstance(result, bytes):
            self._forgeries.trust(exchange.caller, exchange.signature.agent, self.clock.elapsed())
            if exchange.upload is not None:
                seconds = time.perf_counter() - exchange.started
                self.metrics.count_exchange(exchange.upload.cause, len(exchange.body), len(result), seconds)
            return 200, {"content-type": exchange.media_type or wire.JSON}, result
        if isinstance(result, Refused | TimeoutError):
            return self.refuse(result, exchange.path, exchange.headers, exchange.caller)
        log.error("an exchange failed", exc_info=result)
        return 500, {"content-type": "text/plain"}, b"Internal Server Error"

    async def require_operator(self, request: HttpRequest) -> None:
        self.limit_address(request)
        operator_hash = await self.writer.run(operations.get_operator_hash())
        if not auth.is_operator(request.headers.get("authorization", ""), operator_hash):
            raise auth.Unauthorised("operator", "this needs the operator's token: Authorization: Bearer ...")

    async def require_agent_or_operator(self, request: HttpRequest, agent: int) -> None:
        if "authorization" in request.headers:
            await self.require_operator(request)
            return
        exchange = Exchange(
            method=request.method,
            path=request.scope["path"],
            headers=request.headers,
            body=await request.body(),
            caller=name_caller(request),
        )
        await self.answer(exchange)
        if exchange.signature.agent != agent:
            raise Refused(403, "not-yours", f"agent {exchange.signature.agent} cannot act for agent {agent}")

    def limit_address(self, request: HttpRequest) -> None:
        self._address_limiter.take(name_caller(request), self.clock.elapsed())

    def refuse(self, error: Exception, path: str, request: Mapping[str, str] = {}, caller: str = "") -> Reply:
        """Count and log the refusal of a request with these headers; return it as JSON with reason and detail."""
        match error:
            case Refused():
                status, reason, detail = error.status, error.reason, error.detail
            case HTTPException():
                status, reason, detail = error.status_code, "request", str(error.detail)
            case TimeoutError():
                status, reason, detail = 503, "store-unavailable", "the store does not answer"
            case _:
                raise error
        agent, now = auth.read_claimed_agent(request), self.clock.elapsed()
        if reason in FORGED:
            self._forgeries.count_forgery(caller, int(agent), now)
        self.metrics.count_refusal(reason)
        if path == wire.EXCHANGES:
            self.refused_uploads[reason] += 1
        self.refusals.record(now, status=status, reason=reason, detail=detail, path=path, caller=caller, agent=agent)
        headers = {**(getattr(error, "headers", None) or {}), "content-type": wire.JSON}
        if isinstance(error, Refused) and error.retry_after is not None:
            headers["retry-after"] = str(max(1, round(error.retry_after)))
        if reason == "stale":
            headers[auth.SERVER_TIME] = str(int(self.clock.now()))
        if status == 401:
            headers["www-authenticate"] = 'Signature realm="fedcascade", Bearer realm="operator"'
        return status, headers, msgspec.json.encode(wire.RefusalBody(reason=reason, detail=detail))


def name_caller(request: HttpRequest) -> str:
    """Return the network of a request's caller, as limits count it."""
    return name_network(request.client.host if request.client else "")


PROBE_BYTES = 64 * 1024  # beside the bytes of a body: more than the database pages that an upload changes
CACHED_SECONDS = 1.0  # lifetime of a probe's result


class ReadinessProbe:
    """Probe that writes as much as an upload, at most once per second."""

    def __init__(self, writer: Writer, body_bytes: int) -> None:
        self._writer, self._size = writer, PROBE_BYTES + body_bytes
        self._probe: asyncio.Task[None] | None = None
        self._expires = 0.0
        self._was_healthy = True

    async def check(self) -> None:
        """Raise the failure of the last probe, if any. A probe is repeated if it is old or an upload contradicts it."""
        is_fresh = time.monotonic() < self._expires and self._writer.healthy == self._was_healthy
        if self._probe is None or (self._probe.done() and not is_fresh):
            self._probe = asyncio.get_running_loop().create_task(self._write())
        await asyncio.shield(self._probe)

    async def _write(self) -> None:
        """Write random bytes: a store may skip a write of the same value."""
        probe = secrets.token_hex(self._size // 2)
        try:
            await self._writer.run(lambda store, _: store.set_setting("ready", probe))
        finally:
            self._expires, self._was_healthy = time.monotonic() + CACHED_SECONDS, self._writer.healthy
