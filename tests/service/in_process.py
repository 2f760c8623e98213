"""A transport to an application in this process."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
from httpx2 import Response


class InProcessTransport:
    """A transport to an application in this process, which runs in an event loop of its own."""

    def __init__(self, app: Callable[..., Any]) -> None:
        transport = httpx2.ASGITransport(app, client=("in-process", 0))
        self._client = httpx2.AsyncClient(base_url="http://in-process", transport=transport, timeout=None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedcascade-in-process", daemon=True)
        self._thread.start()

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        request = self._client.request(method, path, content=body, headers=dict(headers))
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
