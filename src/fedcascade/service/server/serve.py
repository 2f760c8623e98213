"""A server process: store, writer, application, socket."""

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from fedcascade.checks import require
from fedcascade.federation.policies import Policy
from fedcascade.federation.triggers import Never
from fedcascade.service.protocol import auth
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.validation import find_smallest_lambda
from fedcascade.service.server import operations
from fedcascade.service.server.app import Extension, build_application, keep_retaining
from fedcascade.service.server.http import ExchangeHttpProtocol
from fedcascade.service.server.listener import (
    GRACE_SECONDS,
    GracefulServer,
    open_socket,
    read_certificate,
    reserve_descriptors,
)
from fedcascade.service.server.metrics import Metrics, TracingMetrics, trace_store
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import Limits, ServerOptions, UploadBounds
from fedcascade.service.server.tenure import claim_store, describe_terms, guard_terms
from fedcascade.service.server.verifier import VerifierProcess
from fedcascade.service.server.warming import WarmStart, warm_store
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import explain_failures
from fedcascade.service.store.epoch import load_epoch
from fedcascade.service.store.open import hide_password, open_store


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerOptions):
    """Everything that a server needs to start: its options, and the policy, limits, bounds, clock and warm start."""

    policy: Policy
    limits: Limits = field(default_factory=Limits)
    bounds: UploadBounds = field(default_factory=UploadBounds)
    clock: Clock = SYSTEM_CLOCK
    tracer: Any | None = None  # of OpenTelemetry
    warm: WarmStart | None = None  # what a new store starts from

    def __post_init__(self) -> None:
        super().__post_init__()
        name, rule = self.policy.name, self.policy.reply_rule
        passive = rule.answers_uploads and rule.download_cause is None
        require(passive, f"{name} does not answer the agent that asks and nobody else: a server cannot call agents")
        require(not isinstance(self.policy.trigger, Never), f"{name} never exchanges: its agents need no server")
        least = find_smallest_lambda(self.dimension)
        for symbol, regulariser in list_regularisers(self.policy, self.dimension).items():
            words = f"so that no sum of uploads can fail to be solved, got {regulariser:g}"
            require(regulariser >= least, f"{symbol} must be at least {least:g} in dimension {self.dimension}, {words}")
        require(not self.policy.yardstick, f"{name} is a yardstick for simulations: no real server knows")


def list_regularisers(policy: Policy, dimension: int) -> dict[str, float]:
    """The numbers that a server adds to the diagonal of grams before it factorises them, by their names."""
    regularisers = {"lambda": policy.lambda_}
    if policy.sharing is not None:
        regularisers["sharing's variance d / length^2"] = policy.sharing.compute_prior(dimension)
    return regularisers


def open_writer(settings: ServerSettings, announce: Callable[[str], None] = lambda _: None) -> Writer:
    """Open the writer, unless the store is served with other terms. A log of another policy is replayed."""
    dimension = settings.dimension
    terms = describe_terms(settings.policy, dimension)
    with closing(open_store(settings.store)) as store, explain_failures(store), store.transaction():
        load_epoch(store)  # here, so that the file itself has the secret before anything depends on it
        if settings.operator_token.exists():  # before others end for a server that does not start
            token = auth.read_token(settings.operator_token)
            operations.require_current_token(store, auth.hash_token(token).hex())
        claim_store(store, terms, settings.clock.read_milliseconds(), take_over=settings.take_over)
        if (warm := settings.warm) is not None:
            users = warm_store(store, warm, settings.policy, dimension, settings.clock.now())
            words = f"{users:,} users; {warm.agents_path} says which agent stands for whom" if users else "long ago"
            announce(f"started from {warm.path}: {words}")
    return Writer(
        lambda: trace_store(open_store(settings.store), settings.tracer),
        settings.policy,
        dimension,
        batch=settings.batch,
        snapshot_every=settings.snapshot_every,
        verifier=VerifierProcess(dimension),
        clock=settings.clock,
        require_tenure=guard_terms(terms),
    )


def build_service(settings: ServerSettings, writer: Writer) -> Service:
    """Build what the endpoints share, with as many connections as this process may have."""
    limits = replace(settings.limits, connections=reserve_descriptors(settings.limits.connections))
    tracer = settings.tracer
    make_metrics = Metrics if tracer is None else partial(TracingMetrics, tracer=tracer)
    return Service(writer, settings.policy, settings.dimension, limits, settings.bounds, make_metrics)


def require_empty_store(url: str) -> None:
    """Refuse a store that has agents already."""
    with closing(open_store(url)) as store, explain_failures(store):
        words = f"the store {hide_password(url)} has agents already: simulated users need one of their own"
        require(store.list_agents(0, 0).enrolled == 0, words)


def ensure_operator_token(writer: Writer, path: Path) -> bool:
    """Create the operator's token if there is none yet; True if it was written to ``path`` just now."""
    if path.exists():
        writer.submit(operations.set_operator(auth.read_token(path))).result()
        return False
    if writer.submit(operations.get_operator_hash()).result() is not None:
        return False
    token = auth.create_token()
    auth.write_token(path, token)
    writer.submit(operations.set_operator(token)).result()
    return True


def run_server(
    settings: ServerSettings,
    announce: Callable[[str], None],
    extend: Callable[[Service], Sequence[Extension]] = lambda _: (),
) -> None:
    """Run a server until it is told to stop; ``announce`` gets each line that an operator wants to read.

    ``extend`` makes what rooms above add to the application, from the service that the endpoints share.
    """
    auth.require_token_path(settings.operator_token)
    if settings.operator_token.exists():
        auth.read_token(settings.operator_token)  # before anything is compiled
    context = read_certificate(settings.tls_cert, settings.tls_key)
    listening = open_socket(settings.host, settings.port)
    try:
        writer = open_writer(settings, announce)
        if ensure_operator_token(writer, settings.operator_token):
            announce(f"the operator's token is in {settings.operator_token}, readable by you alone")
        service = build_service(settings, writer)
        extensions = [*extend(service), *keep_retaining(service, settings.retain)]
        config = uvicorn.Config(
            build_application(service, extensions),
            http=ExchangeHttpProtocol,
            loop="auto" if sys.platform != "win32" else "asyncio:SelectorEventLoop",  # the other one watches no sockets
            ws="none",
            proxy_headers=False,  # ``http.py`` reads them, from those who are trusted
            log_config=None,
            log_level="error",  # else whoever sends nonsense fills the log
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        scheme = "http" if settings.tls_cert is None else "https"
        url = f"{scheme}://{settings.host}:{listening.getsockname()[1]}"
        announce(f"serving {settings.policy.name} on {url}")
        gc.collect()
        gc.freeze()  # what was imported lives as long as the process: looking through it again delays requests
        gc.set_threshold(20_000, 20, 20)  # they leave no cycles behind, so there is little to find
        for extension in extensions:
            extension.on_listening(url)
        GracefulServer(config, service, extensions, context).run(sockets=[listening])
        if writer.taken_over is not None:
            raise writer.taken_over
    finally:
        listening.close()
