"""Exchanges that skip the web application are answered as by it, and keep to HTTP; messages keep to their form."""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.protocol.wire import EXCHANGES
from fedcascade.service.store.contract import is_same_upload

from ..helpers import ServerProcess, build_unit_upload

FORGED = "agent=:" + "A" * 86 + "==:"


@dataclass
class Served:
    """A server process and an agent of it."""

    process: ServerProcess
    agent: AgentClient
    sequence: int = 0

    def request(self, body: bytes | None = None, sequence: int | None = None, **changed: str) -> bytes:
        """A signed request, whole; ``changed`` headers are sent as given."""
        self.sequence += 1
        number = sequence or self.sequence
        if body is None:
            body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(number, 0, 3))
        headers = {"host": "server", "content-length": str(len(body))}
        headers |= self.agent.sign_headers("POST", EXCHANGES, compute_digest(body), number)
        headers |= {name.replace("_", "-"): value for name, value in changed.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {EXCHANGES} HTTP/1.1\r\n{lines}\r\n".encode() + body

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.process.port), timeout=10)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        with self.connect() as connection:
            connection.sendall(request)
            return reply(connection)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("protocol")
    process = ServerProcess(folder, "sqlite:///store.db").start()
    running = process.connect()
    yield Served(process, running.enrol())
    running.transport.close()
    process.stop()


def reply(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next reply; nothing is read beyond it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        assert piece, "the server hung up"
        head += piece
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    assert b"date: " in head
    body = b""
    while len(body) < int(found[1]):
        body += connection.recv(int(found[1]) - len(body))
    return int(head.split()[1]), body


def reason(answer: tuple[int, bytes]) -> tuple[int, str]:
    status, body = answer
    return status, wire.decode(body, wire.RefusalBody, wire.JSON).reason


def test_one_connection_serves_exchange_after_exchange(served: Served) -> None:
    with served.connect() as connection:
        for _ in range(3):
            connection.sendall(served.request())
            status, body = reply(connection)
            assert status == 200
            assert wire.decode(body, wire.AnswerMessage, wire.MSGPACK).sequence == served.sequence


@pytest.mark.parametrize("unusual", [{"connection": "close"}, {"expect": "100-continue"}])
def test_an_unusual_request_goes_the_long_way_and_is_answered(served: Served, unusual: dict[str, Any]) -> None:
    with served.connect() as connection:
        connection.sendall(served.request(**unusual))
        if "expect" in unusual:
            assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        status, body = reply(connection)
    assert (status, wire.decode(body, wire.AnswerMessage, wire.MSGPACK).sequence) == (200, served.sequence)


@pytest.mark.parametrize("way", [{}, {"connection": "close"}], ids=["short", "long"])
def test_both_ways_refuse_in_the_same_words(served: Served, way: dict[str, Any]) -> None:
    impossible = wire.ENCODERS[wire.MSGPACK](msgspec.structs.replace(build_unit_upload(90, 0, 3), clicks=7))
    wrong = wire.ENCODERS[wire.MSGPACK](build_unit_upload(91, 0, 4))
    assert reason(served.ask(served.request(signature=FORGED, **way))) == (401, "unrecognised")
    assert reason(served.ask(served.request(signature="", **way))) == (401, "unsigned")
    assert reason(served.ask(served.request(content_digest="sha-256=:AAAA:", **way))) == (401, "altered")
    assert reason(served.ask(served.request(b"\xc1", **way))) == (400, "malformed")
    assert reason(served.ask(served.request(impossible, 90, **way))) == (422, "impossible")
    assert reason(served.ask(served.request(wrong, 91, **way))) == (422, "impossible")
    assert reason(served.ask(served.request(content_type="text/plain", **way))) == (415, "content-type")
    assert reason(served.ask(served.request(b"x" * 100_000, **way)))[0] == 413
    assert served.ask(served.request(**way))[0] == 200


def test_requests_that_are_sent_ahead_are_answered_in_order(served: Served) -> None:
    with served.connect() as connection:
        first, second, third = served.request(), served.request(signature=FORGED), served.request()
        connection.sendall(first + second + third)
        assert [reply(connection)[0] for _ in range(3)] == [200, 401, 200]


def test_a_body_may_come_in_pieces_and_a_caller_may_go_away(served: Served) -> None:
    request = served.request()
    with served.connect() as connection:
        for start in range(0, len(request), 100):
            connection.sendall(request[start : start + 100])
        assert reply(connection)[0] == 200
    with served.connect() as connection:
        connection.sendall(served.request()[:-1])
    with served.connect() as connection:
        connection.sendall(served.request())
    assert served.ask(served.request())[0] == 200


@pytest.mark.parametrize("numbers", [[1.0] * 9, "AAAA", b"", b"\x00" * 71, b"\x00" * 88, None])
def test_numbers_travel_as_bytes_of_the_right_length_alone(served: Served, numbers: object) -> None:
    fields = msgspec.to_builtins(build_unit_upload(92, 0, 3), builtin_types=[bytes]) | {"numbers": numbers}
    assert served.ask(served.request(msgspec.msgpack.encode(fields), 92))[0] == 422


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([wire.JSON, wire.MSGPACK]))
def test_an_upload_and_a_download_cross_the_wire_to_the_bit(seed: int, dimension: int, media_type: str) -> None:
    random = np.random.default_rng(seed)
    gram = random.normal(size=(dimension, dimension))
    statistics = Statistics(gram + gram.T, random.normal(size=dimension), 9, 4, 5)
    upload = Upload(agent=7, sequence=3, cause=Cause.AUXILIARY, statistics=statistics)
    message = wire.UploadMessage.from_upload(upload)
    again = wire.decode(wire.ENCODERS[media_type](message), wire.UploadMessage, media_type)
    assert again == message
    assert is_same_upload(again.to_upload(7, dimension), upload)
    receipt = wire.Receipt(epoch="1-a", position=4, proof=bytes(16))
    counts = {
        "count": 9,
        "clicks": 4,
        "rounds": 5,
        "system_rounds": 100,
        "agents": 8,
        "held_count": 9,
        "held_rounds": 5,
    }
    answer = wire.AnswerMessage(
        protocol=2, sequence=3, group_agents=2, terms_id="abc", receipt=receipt, numbers=message.numbers, **counts
    )
    decoded = wire.decode(wire.ENCODERS[media_type](answer), wire.AnswerMessage, media_type)
    received = wire.unpack_statistics(decoded.numbers, (decoded.count, decoded.clicks, decoded.rounds), dimension)
    assert np.array_equal(received.gram, statistics.gram)
    assert np.array_equal(received.moment, statistics.moment)
    assert decoded == answer


def test_a_protocol_that_is_not_spoken_is_refused_with_the_range(served: Served) -> None:
    body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(93, 0, 3, protocol=1))
    status, refusal = served.ask(served.request(body, 93))
    assert (status, b"protocol must be 2 to 2, got 1" in refusal) == (400, True)
