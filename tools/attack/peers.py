"""Peers: agents that upload arbitrary statistics, and honest agents with users."""

from typing import Any

import msgspec
import numpy as np
from httpx2 import Response
from nacl.signing import SigningKey
from numpy.typing import NDArray

from attack.arena import ServerProcess
from fedcascade.federation.messages import Cause
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import AgentClient, enrol_agent
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.protocol import wire

GRID = 4096.0  # features are multiples of 1 / GRID: an honest gram is then exact


def draw_features(random: np.random.Generator, rows: int, dimension: int) -> NDArray[np.float32]:
    """Draw rows of features on the grid, with norms slightly below 1."""
    drawn = random.normal(size=(rows, dimension))
    units = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    features: NDArray[np.float32] = (np.trunc(units * GRID) / GRID).astype(np.float32)
    return features


def play_rounds(random: np.random.Generator, theta: NDArray[np.float64], rounds: int) -> Statistics:
    """Play rounds of four items each with a user that clicks with probability theta^T x; return the statistics."""
    total = Statistics.zero(theta.size)
    for _ in range(rounds):
        listed = draw_features(random, 4, theta.size)
        clicks = random.random(4) < listed @ theta
        total = total.observe(listed, int(np.argmax(clicks)) if clicks.any() else None)
    return total


class Peer:
    """An enrolled agent that uploads arbitrary statistics."""

    def __init__(self, server: ServerProcess, key: SigningKey | None = None) -> None:
        self.key = key or SigningKey.generate()
        [token] = server.connect_operator().create_tokens()
        self.transport = server.connect()
        self.enrolment = enrol_agent(self.transport, token, self.key)
        self.client = AgentClient(self.transport, self.key, self.enrolment.agent)
        self.dimension = self.enrolment.terms.dimension
        self.uploads = 0

    @property
    def agent(self) -> int:
        return self.enrolment.agent

    def upload(self, statistics: Statistics) -> Response:
        """Upload some statistics under the next sequence number."""
        self.uploads += 1
        body = self.encode(statistics, self.uploads)
        return self.client.send("POST", wire.EXCHANGES, body, self.uploads)

    def encode(self, statistics: Statistics, sequence: int) -> bytes:
        """Encode an upload in the protocol of the tree under attack."""
        given: dict[str, Any] = {
            "protocol": wire.PROTOCOLS[-1],
            "sequence": sequence,
            "cause": Cause.FORCED.value,
            "count": statistics.count,
            "clicks": statistics.clicks,
            "rounds": statistics.rounds,
            "numbers": wire.pack_numbers(statistics),
        }
        return msgspec.msgpack.encode(fill_fields(wire.UploadMessage, given, self.enrolment.terms))

    def decode(self, reply: Response) -> Statistics:
        """Decode the pooled statistics of an answer."""
        answer = wire.decode(reply.content, wire.AnswerMessage, wire.MSGPACK)
        return wire.unpack_statistics(answer.numbers, (answer.count, answer.clicks, answer.rounds), self.dimension)


def fill_fields(kind: type[msgspec.Struct], given: dict[str, Any], terms: object) -> dict[str, Any]:
    """Fill the fields of a message from the attacker's values, else from the server's terms."""
    names = [field.name for field in msgspec.structs.fields(kind) if field.required or field.name in given]
    return {name: given[name] if name in given else getattr(terms, name) for name in names}


def connect_agent(server: ServerProcess, path: str, **options: Any) -> RemoteAgent:
    """Connect an honest agent with a file of its own and short pauses."""
    [token] = server.connect_operator().create_tokens()
    return connect(server.url, store=path, token=token, pauses=(0.05, 0.5), **options)


def teach(agent: RemoteAgent, uploads: int, seed: int = 1) -> int:
    """Play rounds until the agent has made some uploads; return the rounds in them."""
    random = np.random.default_rng(seed)
    made = rounds = 0
    while made < uploads:
        shown = agent.recommend(draw_features(random, 8, agent.memory.state.local.dimension), 4)
        upload = agent.feedback(shown, int(random.integers(0, 4)), round_=2, draw=0.0)
        if upload is not None:
            made, rounds = made + 1, rounds + upload.statistics.rounds
    return rounds


def fetch_rounds(server: ServerProcess, agent: int) -> int:
    """Fetch the number of an agent's rounds at the server."""
    headers = {"content-type": wire.MSGPACK, "authorization": "Bearer the-operators-token-of-an-attack"}
    reply = server.connect().send("GET", f"/v1/agents/{agent}", b"", headers)
    return int(msgspec.msgpack.decode(reply.content)["rounds"]) if reply.status_code == 200 else 0
