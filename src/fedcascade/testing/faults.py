"""A transport that behaves like a bad network: it drops, delays, repeats and reorders."""

import random
import threading
import time
from collections.abc import Mapping

from fedcascade.service.agent.transport import HttpReply, Transport


class FaultyTransport:
    """Passes requests to another transport, and loses, delays and repeats some of them and of their replies.

    A request whose reply is lost has reached the server all the same.

    Args:
        transport: the way to the server.
        seed: makes a run of faults repeatable.
        drop: the probability that a request is lost, and likewise that its reply is.
        repeat: the probability that a request arrives a second time, later and perhaps after others.
        delay: the longest delay of a request or a reply, in seconds.
    """

    def __init__(
        self, transport: Transport, *, seed: int, drop: float = 0.2, repeat: float = 0.2, delay: float = 0.01
    ) -> None:
        self._transport = transport
        self._random = random.Random(seed)
        self._drop, self._repeat, self._delay = drop, repeat, delay
        self._repeats: list[threading.Thread] = []

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Deliver a request, perhaps twice, and return its reply; raise ConnectionError where either is lost."""
        draw = self._random.random
        time.sleep(draw() * self._delay)
        if draw() < self._drop:
            raise ConnectionError("the request was lost")
        if draw() < self._repeat:
            self._send_later(draw() * 5 * self._delay, method, path, body, headers)
        reply = self._transport.send(method, path, body, headers)
        time.sleep(draw() * self._delay)
        if draw() < self._drop:
            raise ConnectionError("the reply was lost")
        return reply

    def _send_later(self, seconds: float, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        def deliver() -> None:
            time.sleep(seconds)
            self._transport.send(method, path, body, headers)

        thread = threading.Thread(target=deliver, daemon=True)
        thread.start()
        self._repeats.append(thread)

    def close(self) -> None:
        """Wait for the repeated requests that are under way, and close the transport."""
        for thread in self._repeats:
            thread.join()
        self._transport.close()
