"""uvicorn's HTTP protocol with a fast path for exchanges, which skips the web framework.

Nearly all requests are exchanges, and the framework costs more than reading, checking and counting an upload. All other
requests, and exchanges with unusual headers, go through the HTTP parser to the web application.

Memory per caller is bounded: bytes and number of headers, bytes of a request, requests that wait for an answer.
"""

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.server.connections import find_proxied, name_network
from fedcascade.service.server.exchange import ANSWER_SECONDS, Exchange
from fedcascade.service.server.service import Service
from fedcascade.service.server.writer import LATE

HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its headers
BODY_SECONDS = 30.0  # from the end of the headers to the end of the body
WRITE_SECONDS = 30.0  # for a caller to read a full send buffer
IDLE_SECONDS = 5.0  # between an answer and the next request
MOST_HEAD_BYTES = 16 * 1024
MOST_HEADERS = 64
MOST_PIPELINED = 8  # requests that wait on one connection, without the one in progress
NO_DEADLINE = float("inf")
END = b"\r\n\r\n"  # of a head
_LINE = r"\r\n[A-Za-z0-9-]+: [!-~][ -~]*"
_HEAD = re.compile(rf"POST ([a-z0-9_/]*){wire.EXCHANGES} HTTP/1\.1((?:{_LINE}){{1,{MOST_HEADERS}}})".encode())
_LENGTH = re.compile(r"[1-9][0-9]{0,8}")
_UNUSUAL = frozenset({"transfer-encoding", "upgrade", "expect"})
CHUNK_OVERHEAD = 8  # most bytes of a chunked body per byte of content


class ExchangeHttpProtocol(HttpToolsProtocol):
    """A connection of a caller; implements ``connections.Connection``."""

    cycle: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        state = self.config.app.state  # type: ignore[union-attr]
        self.service: Service = state.service  # of the largest bodies, if there are several
        self._tenant = self.service  # of the exchange in progress
        self._services: Mapping[str, Service] = state.get("tenants", {"": self.service})  # by the start of the path
        self.address = ""
        self.handshake: asyncio.Task[None] | None = None
        self.deadline = self.write_deadline = NO_DEADLINE
        self.is_waiting = True
        self.is_in_head = False
        self.request_bytes = self.head_bytes = 0
        self.fault: Refused | None = None
        self._deferred: Refused | None = None  # of a pipelined request, until those before it are answered
        self._exchange: Exchange | None = None  # the exchange of the fast path in progress
        self._missing = 0  # bytes of its body still to come

    def enter(self, address: str, handshake: "asyncio.Task[None]") -> bool:
        """Enter the table of connections; return False if it is full. ``handshake`` leads to ``connection_made``."""
        self.address, self.handshake = name_network(address), handshake
        self.deadline = self.loop.time() + HEAD_SECONDS
        return self.service.connections.admit(self)

    def leave(self) -> None:
        self.service.connections.release(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        super().connection_lost(exc)

    def expire(self) -> None:
        """End a connection whose caller is too slow."""
        is_stuck = self.transport is None or self.write_deadline <= self.deadline
        if is_stuck or self.transport.is_closing():
            self.drop()
        elif self._exchange is not None and not self._missing:
            self._reply(self._exchange, Unavailable(LATE))
        elif self.request_bytes or self._missing:
            self._refuse(Refused(408, "too-slow", "the request did not come in time: send it again, faster"))
        else:
            self.transport.close()

    def drop(self) -> None:
        self.leave()
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def data_received(self, data: bytes) -> None:
        """Read an exchange and hand it to the writer; leave all other requests to the parser."""
        if self._exchange is None or not self._missing:
            head, end, body = data.partition(END)
            if not (end and self._is_free() and self._begin(head)):
                self._parse(data)
                return
            data = body
        exchange, rest = self._exchange, data[self._missing :]
        assert exchange is not None
        exchange.body += data[: self._missing]
        self._missing = max(0, self._missing - len(data))
        if self._missing:
            return
        self.cycle = exchange
        self.deadline, self.is_waiting = self.loop.time() + ANSWER_SECONDS, False
        try:
            self._tenant.start(exchange)
        except Exception as error:
            self.loop.call_soon(exchange.deliver, error)
        if rest:
            self._parse(rest)

    def _begin(self, head: bytes) -> bool:
        """Begin the exchange of a head; return False if the web application has to read the request."""
        plain = read_plain_head(head)
        service = None if plain is None else self._services.get(plain[0])
        if plain is None or service is None:
            return False
        _, headers, size = plain
        if size > service.body_bytes or (service.origins and "origin" in headers):  # CORS is up to the application
            return False
        self._tenant, self._missing, self.deadline = service, size, self.loop.time() + BODY_SECONDS
        host, media = self._find_proxied(headers), wire.get_media_type(headers)
        caller = self.address if host is None else name_network(host)
        self._exchange = Exchange(headers=headers, caller=caller, media_type=media, loop=self.loop)
        self._exchange.deliver = partial(self._reply, self._exchange)
        return True

    def _is_free(self) -> bool:
        """Return whether no request is in progress and no byte of the next one was read."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and not self.request_bytes and self.timeout_keep_alive_task is None

    def _parse(self, data: bytes) -> None:
        """Pass data to the parser, and refuse a request that is too large."""
        self.request_bytes += len(data)
        super().data_received(data)
        if self.request_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self._check_size()

    def _await(self, seconds: float) -> None:
        """Set the caller's deadline, unless an exchange is in progress."""
        if self._exchange is None:
            self.deadline = self.loop.time() + seconds

    def _find_proxied(self, headers: dict[str, str]) -> str | None:
        """Return the address behind a trusted proxy; None if the peer is not a trusted proxy."""
        peer = self.client[0] if self.client else ""
        return find_proxied(peer, headers.get("x-forwarded-for", ""), self.service.proxies)

    def _check_size(self) -> None:
        most = MOST_HEAD_BYTES + CHUNK_OVERHEAD * self.service.body_bytes
        if self.is_in_head:
            self._refuse(make_head_fault())
        elif self.request_bytes > most:
            self._refuse(Refused(413, "request", f"a request may have at most {most} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_head = True
        self.request_bytes = 1  # earlier bytes of this read are in memory already
        self.head_bytes = 0
        self._await(HEAD_SECONDS)

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        """Count bytes of headers and trailers; raising stops the parser."""
        self.head_bytes += size
        if self.head_bytes > MOST_HEAD_BYTES or len(self.headers) >= MOST_HEADERS:
            self.fault = make_head_fault()
            raise self.fault

    def on_headers_complete(self) -> None:
        """Begin a request to the web application, with the caller and scheme that a trusted proxy forwards."""
        self.is_in_head = False
        self._await(BODY_SECONDS)
        if len(self.pipeline) >= MOST_PIPELINED:
            detail = f"at most {MOST_PIPELINED} requests may wait on a connection"
            self.fault = Refused(429, "too-many-requests", detail)
            raise self.fault
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        host = self._find_proxied(headers)
        if host is not None:
            self.scope["client"] = (host, 0)
            if headers.get("x-forwarded-proto") in ("http", "https"):
                self.scope["scheme"] = headers["x-forwarded-proto"]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        is_answered = self.cycle.response_complete
        self._await(IDLE_SECONDS if is_answered else NO_DEADLINE)
        self.is_waiting, self.request_bytes = is_answered and self._exchange is None, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, and pause reading while one waits.

        The table of connections closes idle ones, so uvicorn's timer per connection is not needed.
        """
        if self._deferred is not None and not self.pipeline:
            refusal, self._deferred = self._deferred, None
            self._refuse(refusal)
            return
        if self.pipeline:
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()
        self.is_waiting = self.cycle.response_complete  # of the last request that has begun
        if self.pipeline or self._deferred is not None:
            self.flow.pause_reading()
        elif self.is_waiting and not self.is_in_head:
            self.deadline = self.loop.time() + IDLE_SECONDS

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_deadline = self.loop.time() + WRITE_SECONDS

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_deadline = NO_DEADLINE

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser or a limit in its callbacks rejected."""
        self._refuse(self.fault or Refused(400, "malformed", msg))

    def _reply(self, exchange: Exchange, result: Any) -> None:
        """Answer or refuse an exchange, after the caller has read earlier answers."""
        if exchange.response_complete:
            return
        if self.flow.write_paused:
            task = self.loop.create_task(self._reply_later(exchange, result))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            return
        status, headers, body = self._tenant.finish(exchange, result)
        exchange.response_complete, self._exchange = True, None
        if exchange.disconnected:
            return
        self.transport.write(self._encode_head(status, headers, len(body), exchange.keep_alive) + body)
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    async def _reply_later(self, exchange: Exchange, result: Any) -> None:
        await self.flow.drain()
        self._reply(exchange, result)

    def _refuse(self, refusal: Refused) -> None:
        """Send a refusal and close the connection, after the answers to earlier requests of the connection."""
        last = self.cycle
        if self._deferred is not None:
            return
        if self.pipeline or not (last is None or last.response_complete or last.more_body):
            if last.more_body:  # the request that is refused
                self.pipeline.popleft()
            self._deferred = refusal
            self.flow.pause_reading()
            return
        status, headers, body = self.service.refuse(refusal, "", caller=self.address)
        self.transport.write(self._encode_head(status, headers, len(body), False) + body)
        self.deadline = self.loop.time() + IDLE_SECONDS  # for the caller to read the refusal
        self.transport.close()

    def _encode_head(self, status: int, headers: dict[str, str], size: int, keep_alive: bool) -> bytes:
        head = encode_head(status, tuple(self.server_state.default_headers), tuple(headers.items()), keep_alive)
        return b"%bcontent-length: %d\r\n\r\n" % (head, size)


@lru_cache(16)
def encode_head(
    status: int, default: tuple[tuple[bytes, bytes], ...], headers: tuple[tuple[str, str], ...], keep_alive: bool
) -> bytes:
    """Encode the head of an answer without its content length; ``default`` has the date."""
    lines = [b"%b: %b\r\n" % header for header in default]
    lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers]
    return b"".join([STATUS_LINE[status], *lines, b"" if keep_alive else b"connection: close\r\n"])


def make_head_fault() -> Refused:
    """Return the refusal of headers that are too many or too large."""
    detail = f"a request may have at most {MOST_HEADERS} headers of {MOST_HEAD_BYTES} bytes in all"
    return Refused(431, "headers", detail)


def read_plain_head(head: bytes) -> tuple[str, dict[str, str], int] | None:
    r"""Return the start of the path before that of exchanges, the headers, and the size of the body.

    Return None for other requests, and for headers that have several spellings or change the end of a request: those
    are left to the parser, which is slower because it calls Python per header.

    >>> read_plain_head(b"POST /t/home/v1/exchanges HTTP/1.1\r\nHost: a\r\nContent-Length: 2")
    ('/t/home', {'host': 'a', 'content-length': '2'}, 2)
    """
    match = _HEAD.fullmatch(head) if len(head) <= MOST_HEAD_BYTES else None
    if match is None or b" \r\n" in head or head.endswith(b" "):
        return None
    lines = match[2].decode("ascii").split("\r\n")[1:]
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    is_plain = (
        len(headers) == len(lines)
        and _UNUSUAL.isdisjoint(headers)
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and _LENGTH.fullmatch(headers.get("content-length", "")) is not None
    )
    return (match[1].decode("ascii"), headers, int(headers["content-length"])) if is_plain else None
