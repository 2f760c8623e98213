"""Attacks on private uploads: to see one upload with two noises, or to count one twice."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from httpx2 import Response

from attack.arena import Arena, ServerProcess
from attack.registry import Finding, attack
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol import wire

PRIVATE = "--privacy", "epsilon=1,delta=1e-6"
Request = tuple[str, str, bytes, dict[str, str]]


class CuriousServer:
    """A server that keeps all uploads that it gets, and withholds its answers to the first ``silent`` of them."""

    def __init__(self, url: str, silent: int = 0) -> None:
        self.transport, self.silent = HttpTransport(url, timeout=60.0), silent
        self.seen: list[Request] = []

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        answer = self.transport.send(method, path, body, headers)
        if path == wire.EXCHANGES:
            self.seen.append((method, path, body, dict(headers)))
            if len(self.seen) <= self.silent:
                raise ConnectionError("no answer")
        return answer

    def list_numbers(self) -> dict[int, set[bytes]]:
        """Return the different sums that were sent under each sequence number."""
        numbers: dict[int, set[bytes]] = {}
        for _, _, body, headers in self.seen:
            message = wire.decode(body, wire.UploadMessage, wire.get_media_type(headers))
            numbers.setdefault(message.sequence, set()).add(message.numbers)
        return numbers

    def close(self) -> None:
        self.transport.close()


def open_agent(server: ServerProcess, curious: CuriousServer, path: Path, *, is_new: bool) -> RemoteAgent:
    token = server.connect_operator().create_tokens()[0] if is_new else None
    curious.transport = HttpTransport(server.url, timeout=60.0)  # the agent before has closed its own
    return connect(server.url, store=str(path), token=token, transport=curious, pauses=(0.01, 0.05))


def play(agent: RemoteAgent, lists: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(lists):
        items = random.normal(size=(5, 3))
        shown = agent.recommend(items / (1.001 * np.linalg.norm(items, axis=1, keepdims=True)), 2)
        agent.feedback(shown, 0 if shown.features[0, 0] > 0 else None)


@attack(
    301,
    "difference of two noises",
    sends="no answer to 12 uploads, so that they are sent again",
    holds="each upload has one noise",
)
def subtract_repetitions(arena: Arena) -> Finding:
    server = arena.serve(*PRIVATE)
    curious = CuriousServer(server.url, silent=12)
    with open_agent(server, curious, arena.folder / "agent.db", is_new=True) as agent:
        play(agent, 16, 1)
        is_sent = agent.flush(60)
    numbers = curious.list_numbers()
    most, repeated = max(map(len, numbers.values())), len(curious.seen) - len(numbers)
    held = is_sent and most == 1 and repeated >= 12
    return Finding(f"{repeated} repetitions, at most {most} noise per upload", held)


@attack(
    302,
    "noise averaged over restarts",
    sends="20 restarts of an agent whose uploads are not answered, then an emptied store",
    holds="each list is sent with one noise, and never again",
)
def average_over_restarts(arena: Arena) -> Finding:
    server = arena.serve(*PRIVATE)
    curious = CuriousServer(server.url, silent=10**9)
    for number in range(20):
        with open_agent(server, curious, arena.folder / "agent.db", is_new=number == 0) as agent:
            play(agent, 1, number)
            agent.flush(0.2)
    curious.silent = 0
    with open_agent(server, curious, arena.folder / "agent.db", is_new=False) as agent:
        is_sent = agent.flush(60)
        most = max(map(len, curious.list_numbers().values()))
        server.stop()
        for path in arena.folder.glob("store.db*"):
            path.unlink()
        server.start()
        curious.transport = HttpTransport(server.url, timeout=60.0)
        before = curious.list_numbers()
        play(agent, 15, 99)  # an upload after list 32, and the server's loss comes to light
        agent.flush(3)
        again = sum(1 for sequence, sent in curious.list_numbers().items() if sent != before.get(sequence, sent))
        rounds = sum(
            wire.decode(body, wire.UploadMessage, wire.get_media_type(headers)).rounds
            for _, _, body, headers in {each[2]: each for each in curious.seen}.values()
        )
    held = is_sent and most == 1 and again == 0 and rounds <= 35
    return Finding(f"at most {most} noise per upload, {again} with another, {rounds} rounds for 35 lists", held)


@attack(
    303,
    "private upload replayed",
    sends="each of 5 requests 10 times more, with its signature",
    holds="each counts once",
)
def replay_requests(arena: Arena) -> Finding:
    server = arena.serve(*PRIVATE)
    curious = CuriousServer(server.url)
    with open_agent(server, curious, arena.folder / "agent.db", is_new=True) as agent:
        play(agent, 16, 3)
        agent.flush(60)
        before = agent.client.fetch_standing()
        taken = sum(curious.transport.send(*request).status_code == 200 for request in curious.seen for _ in range(10))
        after = agent.client.fetch_standing()
    held = taken == 0 and (after.rounds, after.uploads, after.numbers) == (
        before.rounds,
        before.uploads,
        before.numbers,
    )
    return Finding(f"{taken} of {10 * len(curious.seen)} answered, {after.uploads} uploads count", held)
