"""Transports of requests."""

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2

from fedcascade.checks import require


class Transport(Protocol):
    """A way to send a request to the server; it raises ConnectionError if that fails."""

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> httpx2.Response: ...

    def close(self) -> None: ...


class HttpTransport:
    """A transport over HTTP. Certificates are verified; plain http is for loopback and behind proxies."""

    def __init__(self, url: str, *, timeout: float = 10.0, verify: Any = True) -> None:
        require(is_address(url), f"a server's address looks like https://host:8777, got '{url}'")
        self._url = url
        self._client = httpx2.Client(base_url=url, timeout=timeout, verify=verify)

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> httpx2.Response:
        try:
            return self._client.request(method, path, content=body, headers=dict(headers))
        except httpx2.HTTPError as error:
            raise ConnectionError(f"{self._url}: {error or type(error).__name__}") from None

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
