"""From a socket to the writer without a framework: uvicorn's HTTP protocol, which answers plain exchanges by itself.

Exchanges are nearly all requests, and a framework's scopes, events and headers cost more than reading, checking and
counting an upload. Everything else, and an exchange that is unusual in any way, goes to the web application.

A stranger's memory is bounded here: bytes and number of headers, bytes of a request, requests that wait for an answer.
"""

import asyncio
import logging
import re
from collections.abc import Coroutine
from functools import lru_cache, partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.connections import (
    BODY_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    MOST_HEAD_BYTES,
    MOST_HEADERS,
    MOST_PIPELINED,
    NEVER,
    WRITE_SECONDS,
    find_caller,
    name_network,
)
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.service import Service

_LINE = r"[A-Za-z0-9-]+: [!-~][ -~]*\r\n"
_HEAD = re.compile(rf"POST {wire.EXCHANGES} HTTP/1\.1\r\n((?:{_LINE}){{1,{MOST_HEADERS}}})\r\n".encode())
_UNUSUAL = frozenset({"transfer-encoding", "upgrade", "expect", "origin"})
TARGET = wire.EXCHANGES.encode()
CHUNK_OVERHEAD = 8  # a chunked body may take so many times the bytes that it holds
Reply = tuple[int, dict[str, str], bytes]  # status, headers, body
log = logging.getLogger("fedcascade.service")


class ExchangeHttpProtocol(HttpToolsProtocol):
    """One connection of a caller; a ``connections.Connection``."""

    cycle: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.service: Service = self.config.app.state.service  # type: ignore[union-attr]
        self.address = ""
        self.handshake: asyncio.Task[None] | None = None
        self.deadline = self.write_deadline = NEVER
        self.is_waiting = True
        self.is_in_head = False
        self.request_bytes = self.head_bytes = 0
        self.fault: Refused | None = None

    def enter(self, address: str, handshake: "asyncio.Task[None]") -> bool:
        """Take a place in the table of connections as soon as a caller is connected; False if there is none.

        ``handshake`` ends with ``connection_made``, or not at all.
        """
        self.address, self.handshake = name_network(address), handshake
        self.deadline = self.loop.time() + HEAD_SECONDS
        return self.service.connections.admit(self)

    def leave(self) -> None:
        """Give the place in the table back."""
        self.service.connections.release(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        super().connection_lost(exc)

    def expire(self) -> None:
        """End a connection whose caller is too slow."""
        is_stuck = self.transport is None or self.write_deadline <= self.deadline
        if is_stuck or self.transport.is_closing():
            self.drop()
        elif self.request_bytes:
            self._refuse(Refused(408, "too-slow", "the request did not come in time: send it again, faster"))
        else:
            self.transport.close()

    def drop(self) -> None:
        """Close at once."""
        self.leave()
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def data_received(self, data: bytes) -> None:
        """Read what came, and refuse a request that is too large, whether it has ended or not."""
        exchange = read_plain_exchange(data) if self._is_free() else None
        if exchange is not None and len(exchange[1]) <= self.service.body_bytes:
            self._take_exchange(*exchange)
            return
        self.request_bytes += len(data)
        super().data_received(data)
        if self.request_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self._check_size()

    def _is_free(self) -> bool:
        """Whether no request is under way, and no byte of the next one was read."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and not self.request_bytes and self.timeout_keep_alive_task is None

    def _take_exchange(self, headers: dict[str, str], body: bytes) -> None:
        """Begin a plain exchange, which the parser has not seen."""
        self.deadline, self.is_waiting = NEVER, False
        self.cycle = self._make_exchange(headers, self._find_proxied(headers), body)
        self._start_exchange(self.cycle)

    def _make_exchange(self, headers: dict[str, str], host: str | None, body: bytes = b"") -> Exchange:
        """Make an exchange of this caller, or of the host for which a trusted proxy speaks."""
        exchange = Exchange(headers=headers, body=body, caller=self.address if host is None else name_network(host))
        exchange.deliver = partial(self._finish_exchange, exchange)
        return exchange

    def _find_proxied(self, headers: dict[str, str]) -> str | None:
        """Who speaks through a trusted proxy; None if the peer is none."""
        peer, proxies = self.client[0] if self.client else "", self.service.proxies
        return find_caller(peer, headers.get("x-forwarded-for", ""), proxies) if peer in proxies else None

    def _check_size(self) -> None:
        most = MOST_HEAD_BYTES + CHUNK_OVERHEAD * self.service.body_bytes
        if self.is_in_head:
            self._refuse(make_head_fault())
        elif self.request_bytes > most:
            self._refuse(Refused(413, "request", f"a request may have at most {most} bytes"))

    def on_message_begin(self) -> None:
        """Begin a request; only when it goes to the application, what that wants to know of it is put together."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self.is_in_head = True
        self.request_bytes = 1  # counted from the next data on: what came with these is in memory already
        self.head_bytes = 0
        self.deadline = self.loop.time() + HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _count_head(self, size: int) -> None:
        """Count bytes of the head, and those of trailers; the parser ends where this raises."""
        self.head_bytes += size
        if self.head_bytes > MOST_HEAD_BYTES or len(self.headers) >= MOST_HEADERS:
            self.fault = make_head_fault()
            raise self.fault

    def on_headers_complete(self) -> None:
        """Decide whether a request is a plain exchange or goes to the web application."""
        self.is_in_head = False
        self.deadline = self.loop.time() + BODY_SECONDS
        if len(self.pipeline) >= MOST_PIPELINED:
            detail = f"at most {MOST_PIPELINED} requests may wait on a connection"
            self.fault = Refused(429, "too-many-requests", detail)
            raise self.fault
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        host = self._find_proxied(headers)
        if self._is_plain(headers):
            self.cycle = self._make_exchange(headers, host)
            return
        self._make_scope()
        if host is not None:  # a trusted proxy says who asks, and how it was asked
            self.scope["client"] = (host, 0)
            if headers.get("x-forwarded-proto") in ("http", "https"):
                self.scope["scheme"] = headers["x-forwarded-proto"]
        super().on_headers_complete()

    def _make_scope(self) -> None:
        """Let uvicorn begin the request after all."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # in place: the scope holds this list

    def on_body(self, body: bytes) -> None:
        if type(self.cycle) is Exchange:
            self.cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        is_answered = self.cycle.response_complete
        self.deadline = self.loop.time() + IDLE_SECONDS if is_answered else NEVER
        self.is_waiting, self.request_bytes = is_answered, 0
        if type(self.cycle) is not Exchange:
            super().on_message_complete()
            return
        self._start_exchange(self.cycle)

    def _start_exchange(self, exchange: Exchange) -> None:
        """Hand an exchange to the writer; that of an agent that is met for the first time, in a task that may wait."""
        try:
            if self.service.read_signature(exchange):
                self.service.start(exchange)
            else:
                self._run_task(self._start_stranger(exchange))
        except Exception as error:
            self.loop.call_soon(exchange.deliver, error)  # when the parser is done with what came

    def _run_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _start_stranger(self, exchange: Exchange) -> None:
        try:
            await self.service.load_identity(exchange.signature.agent)
            self.service.start(exchange)
        except Exception as error:
            exchange.deliver(error)

    def on_response_complete(self) -> None:
        """Go on with the next request; while one waits, nothing more is read.

        Idle connections are closed by the table of connections, so uvicorn's timer for each of them is not needed.
        """
        if self.pipeline:
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()
        self.is_waiting = self.cycle.response_complete  # of the last request that has begun
        if self.pipeline:
            self.flow.pause_reading()
        elif self.is_waiting and not self.is_in_head:
            self.deadline = self.loop.time() + IDLE_SECONDS

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_deadline = self.loop.time() + WRITE_SECONDS

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_deadline = NEVER

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser, or a limit in one of its callbacks, did not take."""
        self._refuse(self.fault or Refused(400, "malformed", msg))

    def _is_plain(self, headers: dict[str, str]) -> bool:
        """Whether this is an exchange whose length is known and allowed, behind no other request."""
        if self.url != TARGET or self.parser.get_method() != b"POST" or self.expect_100_continue:
            return False
        if self.service.origins and "origin" in headers:
            return False  # the application says whether a page of that origin may read the reply
        is_free = self.cycle is None or self.cycle.response_complete
        if not is_free or self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return False
        length = headers.get("content-length", "")
        is_known = length.isascii() and length.isdigit() and "transfer-encoding" not in headers
        return is_known and not self.parser.should_upgrade() and int(length) <= self.service.body_bytes

    def _finish_exchange(self, exchange: Exchange, result: Any) -> None:
        """Answer an exchange, or refuse it; wait for a caller that does not read what was written before."""
        if isinstance(result, bytes):
            reply: Reply = 200, {"content-type": exchange.media_type or wire.JSON}, result
        elif isinstance(result, Refused | TimeoutError):
            status, more, problem = self.service.refuse(result, wire.EXCHANGES, exchange.headers, exchange.caller)
            reply = status, {"content-type": wire.JSON, **more}, problem
        else:
            log.error("an exchange failed", exc_info=result)
            reply = 500, {"content-type": "text/plain"}, b"Internal Server Error"
        if self.flow.write_paused:
            self._run_task(self._reply_later(exchange, reply))
        else:
            self._reply(exchange, reply)

    async def _reply_later(self, exchange: Exchange, reply: Reply) -> None:
        await self.flow.drain()
        self._reply(exchange, reply)

    def _reply(self, exchange: Exchange, reply: Reply) -> None:
        if exchange.disconnected:
            return
        self._write(*reply, keep_alive=exchange.keep_alive)
        exchange.response_complete = True
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _refuse(self, refusal: Refused) -> None:
        """Say why, and close the connection."""
        status, headers, body = self.service.refuse(refusal, "", caller=self.address)
        self._write(status, {"content-type": wire.JSON, **headers}, body, keep_alive=False)
        self.deadline = self.loop.time() + IDLE_SECONDS  # whoever does not read this is dropped
        self.transport.close()

    def _write(self, status: int, headers: dict[str, str], body: bytes, *, keep_alive: bool) -> None:
        head = encode_head(status, tuple(self.server_state.default_headers), tuple(headers.items()), keep_alive)
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))


@lru_cache(16)
def encode_head(
    status: int, default: tuple[tuple[bytes, bytes], ...], headers: tuple[tuple[str, str], ...], keep_alive: bool
) -> bytes:
    """The head that answers of a second share, but for the length of the body; ``default`` has the date."""
    lines = [b"%b: %b\r\n" % header for header in default]
    lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers]
    return b"".join([STATUS_LINE[status], *lines, b"" if keep_alive else b"connection: close\r\n"])


def make_head_fault() -> Refused:
    """The refusal of headers that are too many or too large."""
    detail = f"a request may have at most {MOST_HEADERS} headers of {MOST_HEAD_BYTES} bytes in all"
    return Refused(431, "headers", detail)


def read_plain_exchange(data: bytes) -> tuple[dict[str, str], bytes] | None:
    r"""Return headers and body if these bytes are one whole exchange in the plainest form, else None.

    The parser calls Python for every header. Everything that this reads the parser would read the same; whatever can be
    written in several ways, or changes how a request ends, is left to it.

    >>> read_plain_exchange(b"POST /v1/exchanges HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
    ({'host': 'a', 'content-length': '2'}, b'hi')
    """
    match = _HEAD.match(data, 0, MOST_HEAD_BYTES)
    if match is None or b" \r\n" in match[1]:
        return None
    lines = match[1][:-2].decode("ascii").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    is_plain = (
        len(headers) == len(lines)
        and _UNUSUAL.isdisjoint(headers)
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and headers.get("content-length") == str(len(data) - match.end())
    )
    return (headers, data[match.end() :]) if is_plain else None
