"""The demo's shop window: whoever looks at it is one more user, with an agent of their own.

An agent belongs next to its user. A browser cannot run this one, so it runs in the server's process; it speaks to the
server over the network all the same, and its clicks stay with it until an upload sums them up.
"""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcascade.demo.catalogue import ATTRIBUTES, draw_films
from fedcascade.federation.agent import ShownList
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.protocol.errors import Refused

SHOWN = 10
OFFERED = 60
SETTLE_SECONDS = 2.0


class Shop:
    """One visitor and the visitor's agent, which is made at the first visit. Call it from any thread."""

    def __init__(
        self, connect_visitor: Callable[[], RemoteAgent], read_clusters: Callable[[], dict[int, int]], seed: int
    ) -> None:
        self._connect_visitor = connect_visitor
        self._read_clusters = read_clusters
        self._films, self._features = draw_films(seed)
        self._agent: RemoteAgent | None = None
        self._shown: ShownList | None = None
        self._offered: list[int] = []
        self._rounds = self._clicks = 0
        self._lock = threading.RLock()

    @property
    def visitor(self) -> int | None:
        """The number of the visitor's agent, if there was a visit."""
        return None if self._agent is None else self._agent.id

    def get_list(self) -> dict[str, Any]:
        """The list that waits for the visitor's answer, with what the agent and the server make of earlier ones."""
        with self._lock:
            if self._agent is None:
                self._agent = self._connect_visitor()
            if self._shown is None:
                self._offered = random.sample(range(len(self._films)), OFFERED)
                self._shown = self._agent.recommend(self._features[self._offered], SHOWN)
            return self._describe(self._agent, self._shown)

    def choose(self, impression: int, clicked: int | None) -> dict[str, Any]:
        """Click a position, counted from 0, or pass with None; returns the next list."""
        with self._lock:
            shown, agent = self._shown, self._agent
            if shown is None or agent is None or shown.impression != impression:
                raise Refused(409, "conflict", "this list was answered already: load the page again")
            if clicked is not None and not 0 <= clicked < shown.items.size:
                raise Refused(422, "impossible", f"clicked must be a position from 0 to {shown.items.size - 1}")
            upload = agent.feedback(shown, clicked)
            self._rounds += 1
            self._clicks += clicked is not None
            self._shown = None
            if upload is not None:
                agent.flush(SETTLE_SECONDS)  # so that the page can show at once in which cluster the visitor is
            return self.get_list() | {"uploaded": None if upload is None else upload.statistics.count}

    def _describe(self, agent: RemoteAgent, shown: ShownList) -> dict[str, Any]:
        clusters = self._read_clusters()
        cluster = clusters.get(agent.id)
        neighbours = [neighbour for neighbour, label in clusters.items() if label == cluster and neighbour != agent.id]
        films = [self._films[self._offered[item]] for item in shown.items]
        likes = agent.estimate[: len(ATTRIBUTES)] * np.sqrt(2.0)
        return {
            "agent": agent.id,
            "impression": shown.impression,
            "films": [{"title": film.title, "words": film.describe()} for film in films],
            "likes": [[*names[:2], float(amount)] for names, amount in zip(ATTRIBUTES, likes, strict=True)],
            "cluster": cluster,
            "others": sorted(neighbours),
            "rounds": self._rounds,
            "clicks": self._clicks,
            "buffered": agent.buffered,
            "floor": agent.floor,
        }

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
