"""A server process: store, writer, application, socket."""

import asyncio
import gc
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from fedcascade.checks import require, require_integer
from fedcascade.federation.policies import Policy
from fedcascade.federation.triggers import Never
from fedcascade.service.dashboard.watch import Watch
from fedcascade.service.protocol import auth
from fedcascade.service.server import operations
from fedcascade.service.server.app import Limits, application
from fedcascade.service.server.http import ShortWay
from fedcascade.service.server.verifier import Beside
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store

if TYPE_CHECKING:
    from fedcascade.demo.live import Demo

TERMS = "terms"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a server needs to know before it starts."""

    store: str
    policy: Policy
    dimension: int
    host: str = "127.0.0.1"
    port: int = 8777
    tls_cert: Path | None = None
    tls_key: Path | None = None
    operator_token: Path = Path("operator.token")
    batch: int = 256
    snapshot_every: int = 10_000
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        require_integer("dimension", self.dimension)
        require_integer("batch", self.batch)
        require_integer("snapshot every", self.snapshot_every)
        both = (self.tls_cert is None) == (self.tls_key is None)
        require(both, "TLS needs both a certificate and a key: give --tls-cert and --tls-key")
        require(
            self.policy.reply_rule.answers_uploads and self.policy.reply_rule.download_cause is None,
            f"{self.policy.name} does not answer the agent that asks and nobody else: a server cannot call agents",
        )
        speaks = not isinstance(self.policy.trigger, Never)
        require(speaks, f"{self.policy.name} never exchanges: its agents need no server")
        require(not self.policy.yardstick, f"{self.policy.name} is a yardstick for simulations: no real server knows")


def open_writer(setup: Setup) -> Writer:
    """The writer on the store, after a look whether the store is one of this policy and dimension."""
    first = open_store(setup.store)
    try:
        with first.transaction():
            _agree(first, setup)
    finally:
        first.close()
    return Writer(
        lambda: open_store(setup.store),
        setup.policy,
        setup.dimension,
        batch=setup.batch,
        snapshot_every=setup.snapshot_every,
        notary=Beside(),
    )


def _agree(store: Store, setup: Setup) -> None:
    """A log of another dimension cannot be read; one of another policy is folded anew."""
    kept = json.loads(store.get_setting(TERMS) or "{}")
    dimension = kept.get("dimension", setup.dimension)
    agrees = dimension == setup.dimension
    require(agrees, f"the store holds uploads of dimension {dimension}, got --dimension {setup.dimension}")
    store.set_setting(TERMS, json.dumps({"dimension": setup.dimension, "policy": setup.policy.name}))


def empty(url: str) -> None:
    """Refuse a store that somebody uses already."""
    store = open_store(url)
    try:
        require(store.count_agents() == 0, f"the store {url} has agents already: simulated users need one of their own")
    finally:
        store.close()


def ensure_operator(writer: Writer, path: Path) -> bool:
    """Make the operator's token if there is none yet; True if it was written to ``path`` just now."""
    if path.exists():
        writer.submit(operations.set_operator(path.read_text(encoding="utf-8").strip())).result()
        return False
    if writer.submit(operations.operator_hash()).result() is not None:
        return False
    token = auth.new_token()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    writer.submit(operations.set_operator(token)).result()
    return True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


class Attended(uvicorn.Server):
    """A server that ends its demo and the streams of open pages when it is told to stop: neither ends by itself."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self.watch = watch

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        if self.watch.demo is not None:
            await asyncio.to_thread(self.watch.demo.end)
        self.watch.feed.close()
        await super().shutdown(sockets)


def serve(setup: Setup, say: Callable[[str], None], demo: "Demo | None" = None) -> None:
    """Run a server until it is told to stop. ``say`` is given what an operator wants to know."""
    listening = listen(setup.host, setup.port)
    try:
        writer = open_writer(setup)
        if ensure_operator(writer, setup.operator_token):
            say(f"the operator's token is in {setup.operator_token}, readable by you alone")
        app = application(writer, setup.policy, setup.dimension, limits=setup.limits, demo=demo)
        config = uvicorn.Config(
            app,
            http=ShortWay,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            ssl_certfile=setup.tls_cert,
            ssl_keyfile=setup.tls_key,
        )
        scheme = "http" if setup.tls_cert is None else "https"
        url = f"{scheme}://{setup.host}:{listening.getsockname()[1]}"
        say(f"serving {setup.policy.name} on {url}")
        gc.collect()
        gc.freeze()  # what was imported lives as long as the process: looking through it again delays requests
        gc.set_threshold(20_000, 20, 20)  # they leave no cycles behind, so there is little to find
        if demo is not None:
            demo.begin(url, lambda: writer.submit(lambda store, _: store.read_clusters(store.find_head())).result())
        Attended(config, app.state.service.watch).run(sockets=[listening])
    finally:
        listening.close()
