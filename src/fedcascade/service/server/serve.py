"""Start of a server process: store, writer, application and socket."""

import gc
import logging
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from fedcascade.checks import require
from fedcascade.federation.policies import Policy, make_private
from fedcascade.federation.privacy import parse_privacy
from fedcascade.federation.triggers import Never
from fedcascade.service.protocol import auth
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.validation import find_smallest_lambda
from fedcascade.service.server import operations
from fedcascade.service.server.app import (
    SWITCH_SECONDS,
    Extension,
    build_application,
    keep_running,
    retain_forever,
    scrub_forever,
    watch_switches,
)
from fedcascade.service.server.http import ExchangeHttpProtocol
from fedcascade.service.server.listener import (
    GRACE_SECONDS,
    GracefulServer,
    open_socket,
    read_certificate,
    reserve_descriptors,
)
from fedcascade.service.server.pipes import CAN_INHERIT
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import Limits, ServerOptions, UploadBounds
from fedcascade.service.server.tenants import TenantApplication
from fedcascade.service.server.tenure import check_terms, claim_store, describe_terms, guard_terms
from fedcascade.service.server.verifier import SignatureVerifier
from fedcascade.service.server.warming import WarmStart, warm_store
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import explain_failures
from fedcascade.service.store.epoch import load_epoch
from fedcascade.service.store.open import hide_password, open_store, open_unmigrated


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerOptions):
    """Settings of a server: its options, policy, limits, bounds, clock and warm start."""

    policy: Policy
    limits: Limits = field(default_factory=Limits)
    bounds: UploadBounds = field(default_factory=UploadBounds)
    clock: Clock = SYSTEM_CLOCK
    tracer: Any | None = None  # of OpenTelemetry
    warm: WarmStart | None = None  # initial data of a new store

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.privacy and self.policy.privacy is None:
            object.__setattr__(self, "policy", make_private(self.policy, parse_privacy(self.privacy)))
        name, rule = self.policy.name, self.policy.reply_rule
        passive = rule.answers_uploads and rule.download_cause is None
        require(passive, f"{name} sends downloads to agents that did not upload: a server cannot call agents")
        require(not isinstance(self.policy.trigger, Never), f"{name} never exchanges: its agents need no server")
        least = find_smallest_lambda(self.dimension)
        for symbol, regulariser in list_regularisers(self.policy, self.dimension).items():
            bound = f"{symbol} must be at least {least:g} in dimension {self.dimension}"
            require(regulariser >= least, f"{bound}, so that all sums of uploads can be solved, got {regulariser:g}")
        require(not self.policy.yardstick, f"{name} needs the true clusters, which only a simulation knows")
        if self.policy.privacy is not None:
            fits = self.bounds.min_observations in (None, 0, 1)
            require(fits, "with private uploads min_observations must be 1: waiting for data would show in the time")
            require(self.retain is None, "private uploads cannot be folded, because their noise adds up: drop --retain")
            require(self.warm is None, "a warm start uploads a log without noise: serve it without private uploads")
            object.__setattr__(self, "bounds", replace(self.bounds, min_observations=1))


def list_regularisers(policy: Policy, dimension: int) -> dict[str, float]:
    """List the numbers that a server adds to the diagonal of grams, by name."""
    regularisers = {"lambda": policy.lambda_}
    if policy.sharing is not None:
        regularisers["sharing's variance d / length^2"] = policy.sharing.compute_prior(dimension)
    return regularisers


def open_writer(settings: ServerSettings, announce: Callable[[str], None] = lambda _: None) -> Writer:
    """Open the writer; refuse a store that is served with other terms."""
    dimension = settings.dimension
    terms = describe_terms(settings.policy, dimension, settings.features)
    unmigrated = open_unmigrated(settings.store)
    if unmigrated is not None:  # a refusal must leave the store to the version before
        with closing(unmigrated), explain_failures(unmigrated):
            check_terms(unmigrated, terms, take_over=settings.take_over)
    with closing(open_store(settings.store)) as store, explain_failures(store), store.transaction():
        load_epoch(store)  # committed before anything depends on the secret
        if settings.operator_token.exists():  # before a takeover ends other servers
            token = auth.read_private_token(settings.operator_token)
            operations.require_current_token(store, auth.hash_token(token).hex())
        claim_store(store, terms, settings.clock.read_milliseconds(), take_over=settings.take_over)
        if (warm := settings.warm) is not None:
            users = warm_store(store, warm, settings.policy, dimension, settings.clock.now())
            words = f"{users:,} users; {warm.agents_path} lists the agent of each user" if users else "done before"
            announce(f"warm start from {warm.path}: {words}")
    writer = Writer(
        lambda: open_store(settings.store),
        settings.policy,
        dimension,
        batch=settings.batch,
        snapshot_every=settings.snapshot_every,
        verifier=SignatureVerifier(dimension, settings.policy.privacy, has_process=CAN_INHERIT),
        clock=settings.clock,
        require_tenure=guard_terms(terms),
    )
    if settings.tracer is not None:
        writer.span = partial(settings.tracer.start_as_current_span, "transaction")
    return writer


def build_service(settings: ServerSettings, writer: Writer) -> Service:
    """Build the service, with as many connections as this process can open."""
    limits = replace(settings.limits, connections=reserve_descriptors(settings.limits.connections))
    service = Service(writer, limits, settings.bounds, settings.features, settings.tracer)
    service.guard_margin, service.guard_level = settings.guard_margin, settings.guard_level
    return service


def require_empty_store(url: str) -> None:
    """Refuse a store that has agents already."""
    with closing(open_store(url)) as store, explain_failures(store):
        taken = f"the store {hide_password(url)} has agents already: simulated users need an empty store"
        require(store.list_agents(0, 0).enrolled == 0, taken)


def ensure_operator_token(writer: Writer, path: Path) -> bool:
    """Create the operator's token if there is none; return whether it was written to ``path``."""
    is_new = not path.exists() and writer.submit(operations.get_operator_hash()).result() is None
    if is_new:
        auth.write_token(path, auth.create_token())
    if path.exists():
        writer.submit(operations.set_operator(auth.read_private_token(path))).result()
    return is_new


@dataclass(frozen=True)
class Federation:
    """A federation of a server: its settings, service and extensions."""

    settings: ServerSettings
    service: Service
    extensions: Sequence[Extension]


def reload_secrets(hosted: Sequence[Federation], context: ssl.SSLContext | None) -> None:
    """Read certificate, key and operators' tokens from their files again; raise before anything is changed."""
    paths = [(each, each.settings.operator_token) for each in hosted]
    tokens = [(each, auth.read_private_token(path)) for each, path in paths if path.exists()]
    certificate, key = hosted[0].settings.tls_cert, hosted[0].settings.tls_key
    if context is not None and certificate is not None:
        read_certificate(certificate, key)
        context.load_cert_chain(certificate, key)
    for each, token in tokens:
        each.service.writer.submit(operations.set_operator(token))


def announce_end(announce: Callable[[str], None], hosted: Sequence[Federation]) -> None:
    """Announce the end of a server, and flush its log."""
    ends = [str(each.service.writer.last_state.position) for each in hosted]
    announce(f"stopped; the log ends at position {', '.join(ends)}")
    logging.shutdown()


def open_federation(
    settings: ServerSettings, announce: Callable[[str], None], extend: Callable[[Service], Sequence[Extension]]
) -> Federation:
    """Open the store of a federation and build its service."""
    writer = open_writer(settings, announce)
    token, is_new = settings.operator_token.resolve(), ensure_operator_token(writer, settings.operator_token)
    known = f"that of {token}" if token.exists() else f"that of the store; there is no file {token}"
    announce(f"the operator's token is {f'new, in {token}, readable by you alone' if is_new else known}")
    service = build_service(settings, writer)
    extensions = [*extend(service), keep_running(scrub_forever, service, settings.scrub)]
    extensions += [keep_running(retain_forever, service, settings.retain)] if settings.retain else []
    extensions.append(keep_running(watch_switches, service, SWITCH_SECONDS))
    return Federation(settings, service, extensions)


def run_server(
    settings: ServerSettings,
    announce: Callable[[str], None],
    extend: Callable[[Service], Sequence[Extension]] = lambda _: (),
    tenants: Mapping[str, ServerSettings] = {},
) -> None:
    """Run a server until a signal; ``announce`` gets each line for the operator, ``extend`` returns extensions.

    With ``tenants`` it hosts those, and of ``settings`` only address and TLS count.
    """
    for each in tenants.values() or [settings]:
        auth.require_token_path(each.operator_token)
        if each.operator_token.exists():
            auth.read_private_token(each.operator_token)  # before anything is compiled
    context = read_certificate(settings.tls_cert, settings.tls_key)
    listening = open_socket(settings.host, settings.port)
    try:
        hosted = [open_federation(each, announce, extend) for each in tenants.values() or [settings]]
        services = [each.service for each in hosted]
        applications = [build_application(each.service, each.extensions) for each in hosted]
        config = uvicorn.Config(
            TenantApplication(list(tenants), applications, services) if tenants else applications[0],
            http=ExchangeHttpProtocol,
            loop="auto"
            if sys.platform != "win32"
            else "asyncio:SelectorEventLoop",  # the default loop of Windows cannot watch sockets
            ws="none",
            proxy_headers=False,  # ``http.py`` reads those of trusted proxies
            log_config=None,
            log_level="error",  # otherwise malformed requests could fill the log
            access_log=False,
            server_header=False,
            headers=[("x-content-type-options", "nosniff")],  # of every answer, also outside of the application
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        scheme = "http" if settings.tls_cert is None else "https"
        url = f"{scheme}://{settings.host}:{listening.getsockname()[1]}"
        announce(f"serving {', '.join(tenants) or settings.policy.name} on {url}")
        gc.collect()
        gc.freeze()  # imported objects live as long as the process: scanning them would delay requests
        gc.set_threshold(20_000, 20, 20)  # requests leave no cycles
        extensions = [extension for each in hosted for extension in each.extensions]
        for extension in extensions:
            extension.on_listening(url)
        reload = partial(reload_secrets, hosted, context)
        on_stopped = partial(announce_end, announce, hosted)
        GracefulServer(config, services, extensions, context, reload, on_stopped).run(sockets=[listening])
        for service in services:
            if service.writer.taken_over is not None:
                raise service.writer.taken_over
    finally:
        listening.close()
