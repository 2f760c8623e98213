"""Tenants: federations of one process, each under ``/t/NAME`` with a store, policy, tokens and page of its own."""

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litestar import Litestar, Response, get, route
from litestar.datastructures import Headers, State
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from prometheus_client import Metric, generate_latest

from fedcascade.checks import require
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import ENROLMENTS, EXCHANGES
from fedcascade.service.server.app import HEALTH, PROBES, build_refusal, check_service
from fedcascade.service.server.connections import RateLimiter, build_headers, name_network
from fedcascade.service.server.metrics import Metrics
from fedcascade.service.server.service import HttpRequest, Service
from fedcascade.service.store.open import hide_password

NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
BATCH = 4  # most jobs of a tenant in one transaction, so that its turns are short
SHARED_SECONDS, LONGEST_REST = 1.0, 0.1
RESTS = 2.0  # rests of a turn's length per other writer: the event loop and the verifier work as long for a batch
REQUESTS_PER_SECOND, REQUESTS_AT_ONCE = 100.0, 100.0  # of a tenant, beside exchanges that need no framework
UNLIMITED = (*HEALTH, ENROLMENTS, "/v1/enrolment-tokens")  # the last two are limited by address
REFUSAL_SECONDS = 1.0  # before a request beyond that rate is refused, so that a connection cannot send the next at once
ROOT = "/t/"  # of the paths of tenants
PREFIX = re.compile(rf"({ROOT}{NAME.pattern})(/.*)")


def name_store(store: str, tenant: str) -> str:
    """Return the store of a tenant without one of its own: a file beside the server's, or a schema in its database.

    >>> name_store("sqlite:///data/fedcascade.db", "home"), name_store("postgresql://host/shop", "home")
    ('sqlite:///data/fedcascade-home.db', 'postgresql://host/shop?options=-csearch_path%3Dtenant_home')
    """
    require(NAME.fullmatch(tenant) is not None, f"a tenant's name must match {NAME.pattern}, got '{tenant}'")
    if store.startswith("sqlite"):
        return re.sub(r"(\.[a-z]+)?$", rf"-{tenant}\1", store, count=1)
    can_add = store.startswith("postgres") and "options=" not in store
    require(can_add, f"give tenant '{tenant}' a store of its own: '{hide_password(store)}' cannot be divided")
    return f"{store}{'&' if '?' in store else '?'}options=-csearch_path%3Dtenant_{tenant}"


class Turns:
    """A fair lock of writers: they get it in the order in which they ask, and each has its share of the time.

    After a turn, a writer rests for ``RESTS`` times as long as its turn took, times the other writers that had two
    turns in the last second: an idle one has one. Its answers are out by then, so only a flooded tenant waits.
    """

    def __init__(self) -> None:
        self._waiting: deque[threading.Event] = deque()  # the first one holds the lock
        self._began: dict[int, tuple[float, float]] = {}  # the last two turns of each thread
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        mine = threading.Event()
        with self._lock:
            self._waiting.append(mine)
            if len(self._waiting) == 1:
                mine.set()
        mine.wait()
        with self._lock:
            me = threading.get_ident()
            self._began[me] = self._began.get(me, (0.0, 0.0))[1], time.monotonic()

    def __exit__(self, *_: object) -> None:
        now, me = time.monotonic(), threading.get_ident()
        with self._lock:
            self._waiting.popleft()
            if self._waiting:
                self._waiting[0].set()
            others = sum(now - before < SHARED_SECONDS for thread, (before, _) in self._began.items() if thread != me)
            taken = now - self._began[me][1]
        time.sleep(min(LONGEST_REST, RESTS * taken * others))


@dataclass(frozen=True)
class MergedMetrics:
    """The metrics of several tenants, with their names as a label."""

    metrics: Mapping[str, Metrics]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for tenant, metrics in self.metrics.items():
            for family in metrics.collect():
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples += [each._replace(labels={"tenant": tenant, **each.labels}) for each in family.samples]
        return families.values()


@get("/metrics")
async def show_all_metrics(request: HttpRequest) -> Response[bytes]:
    """Show the metrics of all tenants."""
    tenants = request.app.state.tenants.items()
    merged = MergedMetrics({path.removeprefix(ROOT): service.metrics for path, service in tenants})
    return Response(generate_latest(merged), media_type="text/plain; version=0.0.4")


class TenantApplication:
    """An ASGI application that passes requests on to tenants by the start of the path. Their writers take turns."""

    def __init__(self, names: Sequence[str], applications: Sequence[Litestar], services: Sequence[Service]) -> None:
        # Connections have no tenant yet, so that of the largest bodies limits them.
        largest = max(services, key=lambda each: each.body_bytes)
        paths = [f"{ROOT}{name}" for name in names]
        self.state = State({"service": largest, "tenants": dict(zip(paths, services, strict=True))})
        self._applications = dict(zip(paths, applications, strict=True))
        self._limiter = RateLimiter(rate=REQUESTS_PER_SECOND, burst=REQUESTS_AT_ONCE)
        turns = Turns()
        for service in services:
            service.writer.turn, service.writer.batch = turns, BATCH
        self._root = Litestar(
            [route(HEALTH, http_method=PROBES)(check_service), show_all_metrics],
            openapi_config=None,
            logging_config=None,
            lifespan=[each.lifespan() for each in applications],
            state=self.state,
            exception_handlers={Refused: build_refusal, HTTPException: build_refusal},
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._root(scope, receive, send)
            return
        found = PREFIX.fullmatch(scope["path"])
        application = self._applications.get(found[1]) if found is not None else None
        if found is not None and application is not None:
            scope = {**scope, "path": found[2], "raw_path": found[2].encode(), "tenant": found[1]}
        path, tenant = scope["path"], scope.get("tenant", "")
        try:
            if path not in UNLIMITED:
                self._limiter.take((tenant, path == EXCHANGES), time.monotonic())
        except Refused as refusal:
            await asyncio.sleep(REFUSAL_SECONDS)
            service, caller = self.state.tenants.get(tenant, self.state.service), scope["client"] or ("",)
            status, headers, body = service.refuse(refusal, path, caller=name_network(caller[0]))
            headers |= build_headers(service.origins, path, Headers.from_scope(scope).get("origin"))
            await ASGIResponse(body=body, status_code=status, headers=headers)(scope, receive, send)
            return
        await (application or self._root)(scope, receive, send)
