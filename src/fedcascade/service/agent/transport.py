"""How a request travels: over HTTP, or in process to an application without a network between."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2

from fedcascade.checks import require


@dataclass(frozen=True)
class HttpReply:
    """Status, body and headers of a reply; names of headers in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Carries one request to the server and its reply back; raises ConnectionError when that fails."""

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Send one request and return its reply."""

    def close(self) -> None:
        """Close the connections."""


class HttpTransport:
    """HTTP over a network. Certificates are checked; plain http is meant for loopback and behind proxies."""

    def __init__(self, url: str, *, timeout: float = 10.0, verify: Any = True) -> None:
        parts = urlsplit(url)
        require(
            parts.scheme in ("http", "https") and bool(parts.netloc),
            f"a server's address looks like https://host:8777, got '{url}'",
        )
        self._client = httpx2.Client(base_url=url, timeout=timeout, verify=verify)

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Send one request and return its reply."""
        try:
            response = self._client.request(method, path, content=body, headers=dict(headers))
        except httpx2.HTTPError as error:
            raise ConnectionError(f"{method} {path}: {error or type(error).__name__}") from None
        lower = {name.lower(): value for name, value in response.headers.items()}
        return HttpReply(response.status_code, response.content, lower)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class InProcessTransport:
    """Calls an application in this process, in an event loop of its own: all of the server but sockets."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedcascade-in-process", daemon=True)
        self._thread.start()

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Send one request and return its reply."""
        return asyncio.run_coroutine_threadsafe(self._call_app(method, path, body, headers), self._loop).result()

    async def _call_app(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        sent: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = [
            {"type": "http.request", "body": body, "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive() -> dict[str, Any]:
            return events.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._app(_build_scope(method, path, body, headers), receive, send)
        names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return HttpReply(sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]), names)

    def close(self) -> None:
        """Stop the event loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _build_scope(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    path, _, query = path.partition("?")
    named = {"host": "in-process", "content-length": str(len(body)), **{k.lower(): v for k, v in headers.items()}}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        "client": ("in-process", 0),
        "server": ("in-process", 0),
        "state": {},
    }
