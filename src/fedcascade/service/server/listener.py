"""Sockets and TLS of a server: accepts connections, ends slow ones, and shuts down in bounded time."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

try:
    import resource
except ImportError:  # Windows has no limit of descriptors
    resource = None  # type: ignore[assignment]

from fedcascade.checks import require
from fedcascade.service.server.app import Extension
from fedcascade.service.server.http import HEAD_SECONDS, ExchangeHttpProtocol
from fedcascade.service.server.logs import log_event
from fedcascade.service.server.service import Service

GRACE_SECONDS = 4  # for open requests and pages to end
END_SECONDS = 8.0  # after a signal the process exits, even if something is stuck
ACCEPTED_AT_ONCE = 64
TICKS_PER_SWEEP = 5  # ticks of 0.1 s between two sweeps of slow connections
SPARE_DESCRIPTORS = 64  # for the store, its journals, pipes and libraries
MOST_SELECTED = 400  # connections on Windows, where an event loop watches at most 512 sockets
log = logging.getLogger("fedcascade.service")


def open_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)  # on Windows, REUSEADDR would share the port
    listening.setsockopt(socket.SOL_SOCKET, exclusive or socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


def reserve_descriptors(connections: int) -> int:
    """Raise the limit of descriptors for that many connections; return how many are possible."""
    if resource is None:
        return min(connections, MOST_SELECTED)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return connections if soft == resource.RLIM_INFINITY else max(8, min(connections, soft - SPARE_DESCRIPTORS))


def read_certificate(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of a certificate and its key; None without a certificate."""
    if certificate is None:
        return None
    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        require(file is not None and file.is_file(), f"{option}: there is no file '{file}'")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ValueError(f"cannot use '{certificate}' and '{key}' for TLS: {error.strerror or error}") from None
    return context


class Acceptor:
    """Acceptor of connections; each enters the table of connections before its TLS handshake."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], ExchangeHttpProtocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listening, self._make_protocol, self._context = listening, make_protocol, context
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        listening.setblocking(False)

    def open(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listening)

    def _accept(self) -> None:
        """Accept some of the waiting connections, so that open ones are served in between."""
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                connection, peer = self._listening.accept()
                self._admit(connection, str(peer[0]))
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors: retry in a second
            log.error("cannot accept connections: %s", error.strerror)
            self.close()
            self._loop.call_later(1.0, self.open)

    def _admit(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = self._make_protocol()
        handshake = self._loop.create_task(self._connect(protocol, connection))
        self._handshakes.add(handshake)
        handshake.add_done_callback(lambda task: self._end_handshake(task, protocol, connection))
        if not protocol.enter(address, handshake):
            handshake.cancel()

    async def _connect(self, protocol: ExchangeHttpProtocol, connection: socket.socket) -> None:
        """Do the TLS handshake, if any, and start HTTP."""
        seconds = None if self._context is None else HEAD_SECONDS
        await self._loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=seconds
        )

    def _end_handshake(
        self, handshake: "asyncio.Task[None]", protocol: ExchangeHttpProtocol, connection: socket.socket
    ) -> None:
        """Close a connection that was dropped during its handshake or failed it."""
        self._handshakes.discard(handshake)
        if handshake.cancelled() or handshake.exception() is not None:
            protocol.leave()
            connection.close()


class GracefulServer(uvicorn.Server):
    """A uvicorn server that ends slow connections and exits within seconds of a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        services: Sequence[Service],
        extensions: Sequence[Extension],
        context: ssl.SSLContext | None,
        reload: Callable[[], None] = lambda: None,
        on_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self.reload, self.on_stopped = reload, on_stopped
        self.services = services
        self.extensions = extensions
        self.context = context
        self.acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup(sockets=[])
        self.acceptors = [Acceptor(each, self._make_protocol, self.context) for each in sockets or ()]
        for acceptor in self.acceptors:
            acceptor.open()
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        """Read certificates and tokens again; keep the old ones if one cannot be used."""
        try:
            self.reload()
        except (OSError, ValueError) as error:
            log.error("SIGHUP: nothing is changed: %s", error)
        else:
            log_event("SIGHUP: certificate and operator's token were read again", event="reloaded")

    def _make_protocol(self) -> ExchangeHttpProtocol:
        return ExchangeHttpProtocol(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SWEEP == 0:
            for service in self.services:
                service.connections.expire(asyncio.get_running_loop().time())
                service.refusals.flush(service.clock.elapsed())
                self.should_exit = self.should_exit or service.writer.taken_over is not None
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down, with a time limit in case a store, a verifier or a stream is stuck."""
        if not self.should_exit:
            timer = threading.Timer(END_SECONDS, self._end_at_once)
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)

    def _end_at_once(self) -> None:
        """Exit at once. Acknowledged uploads are durable, so nothing is lost."""
        log.error("the shutdown took longer than %g s: exiting at once", END_SECONDS)
        for service in self.services:
            service.writer.verifier.close(at_once=True)
        os._exit(128 + signal.SIGTERM)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the extensions, whose streams do not end by themselves, then the server."""
        for acceptor in self.acceptors:
            acceptor.close()
        for extension in self.extensions:
            await extension.on_shutdown()
        await super().shutdown(sockets)
        self.on_stopped()  # before uvicorn raises the signal again, which ends the process
