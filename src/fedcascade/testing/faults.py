"""A transport that behaves like a bad network: it drops, delays, repeats and reorders."""

import random
import threading
import time
from collections.abc import Mapping

from fedcascade.service.agent.transport import Reply, Transport


class Faulty:
    """Wraps a transport. What it drops on the way back has reached the server all the same.

    Args:
        transport: the way to the server.
        seed: makes a run of faults repeatable.
        drop: how likely a request, and likewise a reply, is to be lost.
        repeat: how likely a request is to arrive a second time, later and perhaps after others.
        delay: the longest delay in seconds.
    """

    def __init__(
        self, transport: Transport, *, seed: int, drop: float = 0.2, repeat: float = 0.2, delay: float = 0.01
    ) -> None:
        self._transport = transport
        self._random = random.Random(seed)
        self._drop, self._repeat, self._delay = drop, repeat, delay
        self._late: list[threading.Thread] = []

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Perhaps deliver a request, perhaps twice; perhaps bring its reply back."""
        draw = self._random.random
        time.sleep(draw() * self._delay)
        if draw() < self._drop:
            raise ConnectionError("the request was lost")
        if draw() < self._repeat:
            self._later(method, path, body, headers, draw() * 5 * self._delay)
        reply = self._transport.send(method, path, body, headers)
        time.sleep(draw() * self._delay)
        if draw() < self._drop:
            raise ConnectionError("the reply was lost")
        return reply

    def _later(self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float) -> None:
        def deliver() -> None:
            time.sleep(seconds)
            self._transport.send(method, path, body, headers)

        thread = threading.Thread(target=deliver, daemon=True)
        thread.start()
        self._late.append(thread)

    def close(self) -> None:
        """Wait for what is still under way."""
        for thread in self._late:
            thread.join()
        self._transport.close()
