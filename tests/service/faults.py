"""A transport that behaves like a bad network: it drops, delays, repeats and reorders."""

import random
import threading
import time
from collections.abc import Mapping

from httpx2 import Response

from fedcascade.service.agent.transport import Transport


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
        self._transport, self._random = transport, random.Random(seed)
        self._drop, self._repeat, self._delay = drop, repeat, delay
        self._repeats: list[threading.Thread] = []

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Deliver a request, perhaps twice, and return its reply; raise ConnectionError where either is lost."""
        draw = self._random.random
        time.sleep(draw() * self._delay)
        if draw() < self._drop:
            raise ConnectionError("the request was lost")
        if draw() < self._repeat:
            again = threading.Timer(draw() * 5 * self._delay, self._transport.send, (method, path, body, headers))
            again.daemon = True
            again.start()
            self._repeats.append(again)
        reply = self._transport.send(method, path, body, headers)
        time.sleep(draw() * self._delay)
        if draw() < self._drop:
            raise ConnectionError("the reply was lost")
        return reply

    def close(self) -> None:
        """Wait for the repeated requests that are under way, and close the transport."""
        for thread in self._repeats:
            thread.join()
        self._transport.close()
