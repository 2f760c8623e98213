"""Agents in JavaScript with simulated users: they live in one process of Node, which is told by lines what happens."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.demo.swarm import wait_for_answers
from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.confidence import ProblemSize
from fedcascade.service.protocol.wire import unpack_statistics


class NodeProcess:
    """A process of Node that holds agents; a request is a line, and so is its reply."""

    def __init__(self) -> None:
        node = shutil.which("node")
        require(node is not None, "agents in JavaScript need Node 20 or newer")
        command = [str(node), "--no-warnings", str(Path(__file__).with_name("runner.js"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def request(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Have the process do something; ValueError with its line if it refuses."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ValueError(f"Node has ended with exit code {self._process.wait()}") from None
        line = self._process.stdout.readline()
        require(bool(line), "Node has ended")
        reply: dict[str, Any] = json.loads(line)
        require("error" not in reply, str(reply.get("error")))
        return reply

    def close(self) -> None:
        """Close all agents and end the process; again is harmless."""
        if self._process.poll() is None:
            self.request("close")
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(20)
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.stdout.close()


@dataclass
class NodeAgent:
    """One of the agents in a process of Node."""

    process: NodeProcess
    place: int
    id: int
    problem: ProblemSize
    has_prior: bool = False
    trouble: str | None = None

    def recommend(self, items: ArrayLike, *, ties: NDArray[np.uint32], **attributes: object) -> ShownList:
        require(
            not any(value is not None for value in attributes.values()), "a swarm in Node has no categories or costs"
        )
        features = np.asarray(items, np.float32)
        reply = self.process.request("recommend", agent=self.place, items=encode(features, "<f4"),
                                     ties=encode(ties, "<u4"), k=self.problem.list_length)  # fmt: skip
        chosen = np.array(reply["items"], np.intp)
        self._impression = reply["impression"]
        return ShownList(self.id, 0, chosen, features[chosen])

    def feedback(self, _: ShownList, clicked: int | None, *, round_: int, draw: float) -> Upload | None:
        """Learn from the list that was shown last."""
        what = {"impression": self._impression, "clicked": clicked, "round": round_, "draw": draw}
        sent = self.process.request("feedback", agent=self.place, **what)["upload"]
        if sent is None:
            return None
        counts = sent["count"], sent["clicks"], sent["rounds"]
        statistics = unpack_statistics(base64.b64decode(sent["numbers"]), counts, self.problem.dimension)
        return Upload(agent=self.id, sequence=sent["sequence"], cause=Cause(sent["cause"]), statistics=statistics)

    def flush(self, timeout: float | None = None) -> bool:
        reply = self.process.request("flush", agent=self.place, seconds=timeout)
        self.trouble = reply["trouble"]
        return bool(reply["done"])


def encode(numbers: NDArray[Any], kind: str) -> str:
    """Numbers as base64 of that type."""
    return base64.b64encode(np.ascontiguousarray(numbers, kind).tobytes()).decode()


@contextmanager
def connect_in_node(
    url: str, folder: Path | None, min_observations: int, tokens: list[str], problem: ProblemSize
) -> Iterator[tuple[list[Any], Callable[[], None]]]:
    """Enrol an agent for each token, in one process of Node; they keep their files in ``folder``, or in memory."""
    sizes = {"users": problem.users, "dimension": problem.dimension, "listLength": problem.list_length}
    with closing(NodeProcess()) as process:
        reply = process.request("connect", url=url, tokens=tokens, minObservations=min_observations,
                                folder=None if folder is None else str(folder.resolve()),
                                problem=sizes | {"rounds": problem.rounds})  # fmt: skip
        newcomers = enumerate(zip(reply["agents"], reply["hasPrior"], strict=True))
        agents: list[Any] = [
            NodeAgent(process, place, agent, problem, has_prior) for place, (agent, has_prior) in newcomers
        ]

        def wait_for_all() -> None:
            for agent in agents:
                wait_for_answers(agent)

        yield agents, wait_for_all
