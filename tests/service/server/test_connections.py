"""What a stranger may cost before any signature is looked at: connections, headers, bytes, time. On real sockets."""

import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import uvicorn
from nacl.signing import SigningKey

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent import client
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server import http, listener, writer
from fedcascade.service.server.app import build_application
from fedcascade.service.server.connections import ConnectionTable
from fedcascade.service.server.http import MOST_PIPELINED, NO_DEADLINE
from fedcascade.service.server.listener import GracefulServer, open_socket
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.open import open_store

from ..helpers import TOKEN, build_unit_upload

GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
POLICY = POLICIES["fedc3ucb-h"]


class SocketServer:
    """A server on a real socket, in a thread of this process, so that a test can shorten its time-outs."""

    def __init__(self, path: Path, limits: Limits, context: ssl.SSLContext | None = None) -> None:
        self.writer = Writer(lambda: open_store(f"sqlite:///{path}"), POLICY, 3)
        self.writer.submit(set_operator(TOKEN)).result()
        self.service = Service(self.writer, limits)
        app = build_application(self.service)
        config = uvicorn.Config(app, http=http.ExchangeHttpProtocol, ws="none", proxy_headers=False, log_level="error",
                                timeout_graceful_shutdown=1)  # fmt: skip
        self.listening = open_socket("127.0.0.1", 0)
        self.port: int = self.listening.getsockname()[1]
        self.server = GracefulServer(config, [self.service], [], context)
        self.thread = threading.Thread(target=lambda: self.server.run(sockets=[self.listening]))
        self.thread.start()
        wait_for(lambda: self.server.started)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10.0, source_address=(source, 0))

    def ask(self, source: str = "127.0.0.1", path: str = "/healthz", **headers: str) -> bytes:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        with self.connect(source) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n".encode())
            return read_all(connection)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.listening.close()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)


def raises_os_error(function: Callable[[], bool]) -> bool:
    """Whether a function returns True, or fails because its connection was reset."""
    try:
        return function()
    except OSError:
        return True


def read_all(connection: socket.socket) -> bytes:
    """Everything that comes until the other side closes; a test fails if it does not."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@contextmanager
def serve(path: Path, *, context: ssl.SSLContext | None = None, **limits: object) -> Iterator[SocketServer]:
    server = SocketServer(path, Limits(**{"rate": 1e6, "burst": 1e6, **limits}), context)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketServer]:
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "IDLE_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(http, name, 0.3)
    with serve(tmp_path / "store.db") as running:
        yield running


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"x-%d: %s\r\n" % (number, b"a" * 50) for number in range(4_000)),  # many, never ended
        b"x: " + b"a" * 200_000,  # one, never ended
        b"".join(b"x-%d: a\r\n" % number for number in range(200)) + b"\r\n",  # many small ones
    ],
)
def test_headers_have_an_end(server: SocketServer, head: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        with suppress(ConnectionError):  # the server does not even read it all
            connection.sendall(head)
        received = read_all(connection)
    assert received == b"" or b" 431 " in received.splitlines()[0]
    assert server.ask().startswith(b"HTTP/1.1 200")


def test_an_address_that_never_ends_is_refused(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /" + b"a" * 100_000)
        assert b" 431 " in read_all(connection)


def test_a_chunked_body_never_ends(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /v1/agents HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):  # the server stops reading, and closes
            for _ in range(2_000):
                connection.sendall(b"1000\r\n" + b"a" * 4096 + b"\r\n")
        received = read_all(connection)
    assert received == b"" or b" 413 " in received.splitlines()[0]
    assert server.ask().startswith(b"HTTP/1.1 200")


def test_requests_in_a_row_wait_in_a_short_line(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(GET * 5_000)
        received = read_all(connection)
    assert 0 < received.count(b"HTTP/1.1 200") + received.count(b"HTTP/1.1 429") < 50


def test_a_few_requests_in_a_row_are_all_answered(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(GET * MOST_PIPELINED)
        assert read_all(connection).count(b"HTTP/1.1 200") == MOST_PIPELINED


def test_the_body_of_an_exchange_may_come_in_pieces_and_the_next_request_behind_it(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /v1/exchanges HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n")
        for piece in (b"ab", b"cd", b"ef" + GET):
            time.sleep(0.05)
            connection.sendall(piece)
        received = read_all(connection)
    assert received.index(b"HTTP/1.1 401") < received.index(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 2


def connect_agent(server: SocketServer) -> tuple[HttpTransport, client.AgentClient]:
    """An agent of a server that takes uploads of any size."""
    transport = HttpTransport(f"http://127.0.0.1:{server.port}", timeout=30.0)
    [token] = client.OperatorClient(transport, TOKEN).create_tokens()
    key = SigningKey.generate()
    server.service.bounds = FOR_SIMULATIONS
    return transport, client.AgentClient(transport, key, client.enrol_agent(transport, token, key).agent)


def encode_exchange(agent: client.AgentClient, sequence: int) -> bytes:
    """The bytes of a signed exchange."""
    body = msgspec.msgpack.encode(build_unit_upload(sequence, sequence % 3, 3))
    headers = {
        "host": "x",
        **agent.sign_headers("POST", wire.EXCHANGES, compute_digest(body), sequence),
        "content-length": len(body),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {wire.EXCHANGES} HTTP/1.1\r\n{lines}\r\n".encode() + body


def read_replies(connection: socket.socket) -> list[tuple[int, bytes]]:
    """Status and body of each answer until the other side closes."""
    received, replies = read_all(connection), []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        replies.append((int(head.split()[1]), rest[:size]))
        received = rest[size:]
    return replies


@pytest.mark.parametrize("first", [b"", GET])
def test_exchanges_in_a_row_get_their_own_answers_and_only_the_last_one_is_refused(
    server: SocketServer, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    transport, agent = connect_agent(server)
    sent = 2 * MOST_PIPELINED
    begun, release = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        release.wait(30.0)

    server.writer.submit(hold)  # else the first may be answered before the last is read
    assert begun.wait(10.0)  # else the writer may take the first exchange with this job, and none waits
    with server.connect() as connection:
        connection.sendall(first + b"".join(encode_exchange(agent, 1 + number) for number in range(sent)))
        wait_for(lambda: server.writer.waiting > 0)
        release.set()
        replies = read_replies(connection)[bool(first) :]
    answered = [wire.decode(body, wire.AnswerMessage, wire.MSGPACK) for status, body in replies if status == 200]
    assert [answer.sequence for answer in answered] == list(range(1, len(answered) + 1))
    assert MOST_PIPELINED <= len(answered) <= MOST_PIPELINED + 1
    assert [status for status, _ in replies[len(answered) :]] == [429]
    assert agent.fetch_standing().last_sequence == len(answered)  # nothing counts whose caller heard otherwise
    assert [record for record in caplog.records if record.exc_info] == []
    transport.close()


@pytest.mark.parametrize(
    ("second", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost", 408),
        (b"POST /v1/agents HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", 408),
    ],
)
def test_a_bad_request_behind_a_good_one_does_not_take_its_answer(
    server: SocketServer, second: bytes, status: int
) -> None:
    release = threading.Event()
    stuck = server.writer.submit(lambda *_: release.wait(30.0))
    with server.connect() as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n" + second)
        time.sleep(1.0)  # longer than a request may take to come
        release.set()
        assert stuck.result()
        assert [status for status, _ in read_replies(connection)] == [200, status]
    wait_for(lambda: len(server.service.connections) == 0)


def test_an_exchange_that_waits_too_long_is_told_so_once(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, agent = connect_agent(server)
    assert agent.exchange(build_unit_upload(1, 0, 3)).sequence == 1
    release = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(http, "ANSWER_SECONDS", 0.2)
        stuck = server.writer.submit(lambda *_: release.wait(30.0))
        with pytest.raises(Refused, match="did not answer within"):
            agent.exchange(build_unit_upload(2, 1, 3))
    release.set()
    assert stuck.result()
    assert agent.exchange(build_unit_upload(2, 1, 3)).held_count == 2
    transport.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"\r\n\r\n", b""),
        (b"POST /v1/exchanges HTTP/1.1\r\nhost: x\r\n", b"408"),
        (b"POST /v1/exchanges HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{", b"408"),
        (b"POST /v1/agents HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{", b"408"),
    ],
)
def test_half_a_request_is_not_held(server: SocketServer, sent: bytes, status: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        assert status in read_all(connection)
    wait_for(lambda: len(server.service.connections) == 0)


def test_bytes_that_are_no_request_do_not_keep_a_connection(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(GET)
        connection.setblocking(False)

        def is_closed() -> bool:
            with suppress(BlockingIOError):
                connection.send(b"\r\n")
                return connection.recv(65_536) == b""
            return False

        wait_for(lambda: raises_os_error(is_closed))
    wait_for(lambda: len(server.service.connections) == 0)


def test_an_answer_that_nobody_reads_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.3)
    with serve(tmp_path / "store.db") as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(0.5)
        connection.connect(("127.0.0.1", server.port))
        with suppress(OSError):  # the server stops reading, then closes
            for _ in range(1_000_000):
                connection.sendall(b"GET /schema HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_for(lambda: len(server.service.connections) == 0)


def test_silent_connections_make_room_for_others(tmp_path: Path) -> None:
    with serve(tmp_path / "store.db", connections=32) as server, ExitStack() as stack:
        for number in range(100):
            stack.enter_context(server.connect(f"127.0.1.{number + 1}"))
        assert server.ask("127.0.0.2").startswith(b"HTTP/1.1 200")
        assert len(server.service.connections) <= 32


def test_one_address_cannot_have_all_connections(tmp_path: Path) -> None:
    with serve(tmp_path / "store.db", connections=100, connections_per_address=10) as server, ExitStack() as stack:
        quiet = stack.enter_context(server.connect("127.0.0.2"))
        for _ in range(60):
            stack.enter_context(server.connect("127.0.0.3"))
        wait_for(lambda: len(server.service.connections) <= 11)
        quiet.sendall(GET)
        assert quiet.recv(4_096).startswith(b"HTTP/1.1 200")


def test_silence_instead_of_a_tls_handshake_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
         "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not installed")
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.5)
    context = listener.read_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    trusting.check_hostname = False
    with serve(tmp_path / "store.db", connections=32, context=context) as server, ExitStack() as stack:
        for number in range(60):
            stack.enter_context(server.connect(f"127.0.1.{number + 1}"))
        with trusting.wrap_socket(server.connect("127.0.0.2")) as connection:
            connection.sendall(GET)
            assert connection.recv(4_096).startswith(b"HTTP/1.1 200")
            wait_for(lambda: len(server.service.connections) == 1)  # the others have not shaken hands


class Caller:
    """A connection as the table sees it."""

    def __init__(self, address: str, deadline: float, *, is_waiting: bool = True) -> None:
        self.address, self.deadline, self.write_deadline, self.is_waiting = address, deadline, NO_DEADLINE, is_waiting
        self.ended = ""

    def expire(self) -> None:
        self.ended = "expired"

    def drop(self) -> None:
        self.ended = "dropped"


def test_whoever_has_a_request_under_way_keeps_the_place() -> None:
    table = ConnectionTable(most=4, most_per_address=4)
    busy = [Caller(str(number), NO_DEADLINE, is_waiting=False) for number in range(3)]
    idle = Caller("3", 5.0)
    assert all(table.admit(caller) for caller in [*busy, idle])
    assert table.admit(Caller("4", 9.0, is_waiting=False))
    assert idle.ended == "dropped"
    table.release(idle)
    assert not table.admit(Caller("5", 9.0))
    assert not any(caller.ended for caller in busy)


def test_only_those_who_are_late_are_sent_away() -> None:
    table = ConnectionTable(most=40, most_per_address=40)
    late, early = Caller("a", 1.0), Caller("b", 3.0)
    table.admit(late)
    table.admit(early)
    table.expire(2.0)
    assert (late.ended, early.ended) == ("expired", "")


def test_a_header_names_another_address_only_if_a_trusted_proxy_sends_it(tmp_path: Path) -> None:
    """Guesses at the operator's token are limited per address."""

    def guess(server: SocketServer, count: int) -> int:
        asked = {"path": "/v1/overview", "authorization": "Bearer a-wrong-guess-at-the-token"}
        replies = [server.ask(x_forwarded_for=f"10.0.0.{number}", **asked) for number in range(count)]
        return sum(b" 429 " in reply.splitlines()[0] for reply in replies)

    with serve(tmp_path / "store.db", address_rate=0.001, address_burst=4.0) as server:
        assert guess(server, 10) == 6
    with serve(tmp_path / "store.db", address_rate=0.001, address_burst=4.0, trusted_proxy=("127.0.0.1",)) as server:
        assert guess(server, 10) == 0


def test_readiness_is_written_once_per_second(server: SocketServer) -> None:
    def read_probe() -> str | None:
        return server.writer.submit(lambda store, _: store.get_setting("ready")).result()

    assert server.ask(path="/readyz").startswith(b"HTTP/1.1 200")
    began, probe = time.monotonic(), read_probe()
    asked = 0
    while time.monotonic() < began + 0.5:
        assert server.ask(path="/readyz").startswith(b"HTTP/1.1 200")
        asked += 1
    assert asked > 2
    assert read_probe() == probe


def test_a_stuck_writer_shows_and_requests_are_told_to_come_back(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(writer, "ANSWER_SECONDS", 0.4)
    release = threading.Event()
    stuck = server.writer.submit(lambda *_: release.wait(30.0))
    try:
        waiting = server.ask(path="/readyz")
        assert waiting.startswith(b"HTTP/1.1 503")
        assert b"retry-after: " in waiting
        health = server.ask()
        assert health.startswith(b"HTTP/1.1 503")
        assert b"the writer has been stuck for" in health
    finally:
        release.set()
    assert stuck.result()
    wait_for(lambda: server.ask().startswith(b"HTTP/1.1 200"))
