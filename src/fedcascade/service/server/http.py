"""From a socket to the writer without a framework: uvicorn's HTTP protocol, which answers plain exchanges by itself.

Exchanges are nearly all requests, and a framework's scopes, events and headers cost more than reading, checking and
counting an upload. Everything else, and an exchange that is unusual in any way, goes to the web application.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.exchanges import answer_exchange

TARGET = wire.EXCHANGES.encode()
log = logging.getLogger("fedcascade.service")


@dataclass(slots=True)
class PendingExchange:
    """An exchange under way, with the attributes that uvicorn asks of a request: is it answered, is more to come."""

    headers: dict[str, str]
    body: bytes = b""
    disconnected: bool = False
    keep_alive: bool = True
    response_complete: bool = False
    message_event: ClassVar = asyncio.Event()  # nobody waits for it


class ExchangeHttpProtocol(HttpToolsProtocol):
    """One connection of a caller."""

    cycle: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.service = self.config.app.state.service  # type: ignore[union-attr]

    def on_headers_complete(self) -> None:
        """Decide whether a request is a plain exchange or goes to the web application."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        if self._is_plain(headers):
            self.cycle = PendingExchange(headers)
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if type(self.cycle) is PendingExchange:
            self.cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if type(self.cycle) is not PendingExchange:
            super().on_message_complete()
            return
        task = self.loop.create_task(self._answer(self.cycle))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _is_plain(self, headers: dict[str, str]) -> bool:
        """Whether this is an exchange whose length is known and allowed, behind no other request."""
        if self.url != TARGET or self.parser.get_method() != b"POST" or self.expect_100_continue:
            return False
        is_free = self.cycle is None or self.cycle.response_complete
        if not is_free or self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return False
        length = headers.get("content-length", "")
        is_known = length.isascii() and length.isdigit() and "transfer-encoding" not in headers
        return is_known and not self.parser.should_upgrade() and int(length) <= self.service.body_bytes

    async def _answer(self, cycle: PendingExchange) -> None:
        try:
            answer = await answer_exchange(self.service, cycle.headers, cycle.body)
            reply = 200, {"content-type": wire.get_media_type(cycle.headers)}, answer
        except (Refused, TimeoutError) as error:
            status, more, problem = self.service.refuse(error, wire.EXCHANGES)
            reply = status, {"content-type": wire.JSON, **more}, problem
        except Exception:
            log.exception("an exchange failed")
            reply = 500, {"content-type": "text/plain"}, b"Internal Server Error"
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if not cycle.disconnected:
            self._write_reply(cycle, *reply)

    def _write_reply(self, cycle: PendingExchange, status: int, headers: dict[str, str], body: bytes) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection = "" if cycle.keep_alive else "connection: close\r\n"
        head = f"{lines}{connection}content-length: {len(body)}\r\n\r\n".encode("latin-1")
        default = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join([STATUS_LINE[status], *default, head, body]))
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
