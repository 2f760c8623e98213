"""Transports of requests: over HTTP, or in process to an application."""

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
    """The status, body and headers of a reply; header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """A way to send a request to the server; it raises ConnectionError if that fails."""

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply: ...

    def close(self) -> None: ...


class HttpTransport:
    """A transport over HTTP. Certificates are verified; plain http is for loopback and behind proxies."""

    def __init__(self, url: str, *, timeout: float = 10.0, verify: Any = True) -> None:
        require(is_address(url), f"a server's address looks like https://host:8777, got '{url}'")
        self._url = url
        self._client = httpx2.Client(base_url=url, timeout=timeout, verify=verify)

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        try:
            response = self._client.request(method, path, content=body, headers=dict(headers))
        except httpx2.HTTPError as error:
            raise ConnectionError(f"{self._url}: {error or type(error).__name__}") from None
        return HttpReply(response.status_code, response.content, dict(response.headers))

    def close(self) -> None:
        self._client.close()


def is_address(url: str) -> bool:
    """Return whether a URL is an HTTP address of a host.

    >>> [is_address(url) for url in ("https://host:8777", "host:8777", "http://host:80000", "http://[::1")]
    [True, False, False, False]
    """
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


class InProcessTransport:
    """A transport to an application in this process, which runs in an event loop of its own."""

    def __init__(self, app: Callable[..., Any]) -> None:
        transport = httpx2.ASGITransport(app, client=("in-process", 0))
        self._client = httpx2.AsyncClient(base_url="http://in-process", transport=transport, timeout=None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedcascade-in-process", daemon=True)
        self._thread.start()

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        request = self._client.request(method, path, content=body, headers=dict(headers))
        response = asyncio.run_coroutine_threadsafe(request, self._loop).result()
        return HttpReply(response.status_code, response.content, dict(response.headers))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
