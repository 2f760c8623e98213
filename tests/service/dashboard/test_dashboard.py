"""What pages get: from the store alone, to whom it belongs, with no gap and nothing twice."""

import asyncio
import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.dashboard.feed import POLL_SECONDS, Feed
from fedcascade.service.dashboard.routes import COOKIE
from fedcascade.service.dashboard.view import read_refusals
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON
from fedcascade.service.store.open import open_store

from ..helpers import TOKEN, RunningService, ServerProcess, build_unit_upload, serve_in_process

BEARER = {"authorization": f"Bearer {TOKEN}"}
METRIC = re.compile(r"fedcascade_[a-z_]+")


def send_request(
    running: RunningService, path: str, method: str = "GET", body: object = None, **headers: str
) -> tuple[int, Any, Any]:
    """Status, content and headers of an answer."""
    sent = b"" if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"content-type": JSON}
    reply = running.transport.send(method, path, sent, kind | headers)
    content = json.loads(reply.content) if reply.headers.get("content-type", "").startswith(JSON) else reply.content
    return reply.status_code, content, reply.headers


def read_view(running: RunningService, query: str = "") -> dict[str, Any]:
    status, body, _ = send_request(running, f"/live/view{query}", **BEARER)
    assert status == 200
    assert isinstance(body, dict)
    return body


def send_uploads(agent: AgentClient, *axes: int, first: int = 1) -> None:
    for sequence, axis in enumerate(axes, first):
        agent.exchange(build_unit_upload(sequence, axis, 3))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    policy = POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.3)
    with serve_in_process(tmp_path / "store.db", policy=policy) as service:
        yield service


class EventListener:
    """A page's stream of events over a real connection."""

    def __init__(self, process: ServerProcess) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=10)
        self.connection.request("GET", "/live/events", headers=BEARER)
        self.reply = self.connection.getresponse()
        assert self.reply.status == 200

    def __next__(self) -> tuple[str, dict[str, Any]]:
        """The next event that is not about health alone: its kind and content."""
        kind, data = "", ""
        while line := self.reply.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            match name:
                case "event":
                    kind = value
                case "data":
                    data = value
                case "" if data and kind != "health":
                    return kind, json.loads(data)
        raise StopIteration

    def until(self, position: int) -> list[dict[str, Any]]:
        """The updates up to a position."""
        updates: list[dict[str, Any]] = []
        while not updates or updates[-1]["position"] < position:
            kind, data = next(self)
            assert kind == "update"
            updates.append(data)
        return updates

    def close(self) -> None:
        self.reply.close()
        self.connection.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    started = ServerProcess(tmp_path, "sqlite:///store.db").start()
    yield started
    started.stop()


def test_a_view_says_what_the_log_says(running: RunningService) -> None:
    first, second, third = (running.enrol() for _ in range(3))
    send_uploads(first, 0, 0, 0)
    send_uploads(second, 0, 0, 0)
    send_uploads(third, 1, 1, 1)
    view = read_view(running)
    assert (view["position"], view["uploads"], view["members"], view["enrolled"]) == (9, 9, 3, 3)
    assert (view["rounds"], view["clicks"], view["causes"]) == (9, 9, {"forced": 9})
    labels = {agent: cluster for agent, *_, cluster in view["agents"]}
    assert labels[first.agent] == labels[second.agent] != labels[third.agent]
    assert view["clusters"] == 2 == len(set(running.operator.fetch_overview().labels.values()))
    assert [row[0] for row in view["latest"]] == list(range(1, 10))
    assert sum(row[2] for row in view["bins"]["rows"]) == 9


def test_the_past_is_as_it_was(running: RunningService) -> None:
    first, second = running.enrol(), running.enrol()
    send_uploads(first, 0, 0, 0)
    before = read_view(running)
    send_uploads(second, 0, 0, 0)
    after = read_view(running)
    then = read_view(running, "?position=3")
    for name in ("position", "uploads", "members", "clusters", "agents", "causes", "latest", "moves", "sizes"):
        assert then[name] == before[name]
    assert then["head"] == 6
    assert (before["clusters"], after["clusters"]) == (1, 1)
    assert [len(view["agents"]) for view in (before, after)] == [1, 2]
    assert read_view(running, f"?at={then['last']}")["position"] >= 3
    assert read_view(running, "?at=1")["position"] == 0


def test_a_forgotten_agent_is_in_no_view(running: RunningService) -> None:
    first, second = running.enrol(), running.enrol()
    send_uploads(first, 0, 0)
    send_uploads(second, 0, 0)
    running.operator.forget(first.agent)
    view = read_view(running)
    assert [agent for agent, *_ in view["agents"]] == [second.agent]
    assert all(agent == second.agent for _, agent, _ in view["moves"])
    assert (view["position"], view["uploads"]) == (5, 2)
    assert read_view(running, "?position=2")["uploads"] == 0


def test_nobody_looks_without_a_token(running: RunningService) -> None:
    for path in ("/live/view", "/live/events"):
        status, body, _ = send_request(running, path)
        assert (status, body["reason"]) == (401, "operator")
    assert send_request(running, "/live/session")[1] == {"known": False, "terms": {}, "demo": None}
    assert send_request(running, "/live/measures", "POST", {"measures": []})[0] == 401
    for path in ("/shop", "/live/films"):  # there is no demo
        status, body, _ = send_request(running, path, **BEARER)
        assert (status, body["detail"]) == (404, "this server runs no demo: start one with 'fedcascade live'")
    assert send_request(running, "/live/demo", "PUT", {"pace": 1}, **BEARER)[0] == 404


def test_a_session_lasts_until_it_ends_or_the_token_changes(running: RunningService) -> None:
    assert send_request(running, "/live/session", "POST", {"token": "wrong"})[0] == 401
    status, _, headers = send_request(running, "/live/session", "POST", {"token": TOKEN})
    cookie = headers["set-cookie"]
    assert status == 200
    assert {"HttpOnly", "SameSite=Strict", "Path=/live"} <= set(cookie.split("; "))
    session = cookie.partition(";")[0]
    assert send_request(running, "/live/view", cookie=session)[0] == 200
    assert (
        send_request(running, "/live/measures", "POST", {"measures": []}, cookie=session)[0] == 401
    )  # it may look, no more
    assert send_request(running, "/v1/overview", cookie=session)[0] == 401
    assert running.writer is not None
    for bad in ("", "1.2", session.partition("=")[2] + "x"):
        assert send_request(running, "/live/view", cookie=f"{COOKIE}={bad}")[0] == 401
    expires, _, proof = session.partition("=")[2].partition(".")
    assert send_request(running, "/live/view", cookie=f"{COOKIE}={int(expires) + 1}.{proof}")[0] == 401
    epoch = running.writer.submit(lambda _, state: state.epoch).result()
    assert send_request(running, "/live/view", cookie=f"{COOKIE}={epoch.give_session(int(time.time()) - 1)}")[0] == 401
    assert send_request(running, "/live/view", cookie=session)[0] == 200
    running.operator.replace_token("the-token-of-another-operator")
    assert send_request(running, "/live/view", cookie=session)[0] == 401


def test_who_logs_out_has_to_log_in_again(running: RunningService) -> None:
    cookie = send_request(running, "/live/session", "POST", {"token": TOKEN})[2]["set-cookie"].partition(";")[0]
    assert send_request(running, "/live/view", cookie=cookie)[0] == 200
    assert send_request(running, "/live/session", "DELETE", cookie=cookie)[0] == 200
    assert send_request(running, "/live/view", cookie=cookie)[0] == 401


def test_a_form_of_another_site_cannot_log_in(running: RunningService) -> None:
    body = json.dumps({"token": TOKEN}).encode()
    reply = running.transport.send("POST", "/live/session", body, {"content-type": "text/plain"})
    assert reply.status_code == 415


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/live/assets/main.js", "text/javascript; charset=utf-8"),
        ("/live/assets/style.css", "text/css; charset=utf-8"),
        ("/live/assets/icon.svg", "image/svg+xml"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_a_file_says_once_in_which_letters_it_is_written(running: RunningService, path: str, kind: str) -> None:
    assert send_request(running, path)[2]["content-type"] == kind


def test_the_page_has_a_glossary_and_links_to_no_other_site(running: RunningService) -> None:
    page = send_request(running, "/")[1]
    assert b'<details id="glossary">' in page
    assert b"https://" not in page


def test_the_page_and_its_files_come_with_a_strict_policy(running: RunningService) -> None:
    for path in ("/", "/live/assets/main.js", "/live/assets/style.css", "/live/assets/icon.svg"):
        status, body, headers = send_request(running, path)
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert b"http://" not in body.replace(b"http://www.w3.org/", b"")
        assert b"https://" not in body
    for path in ("/live/assets/nothing.js", "/live/assets/..%2Fpages.py", "/live/assets/__init__.py"):
        assert send_request(running, path)[0] == 404


@pytest.mark.parametrize("query", ["?at=-1", "?position=x", "?at=1e9", f"?at={'9' * 30}"])
def test_a_bad_question_gets_one_line(running: RunningService, query: str) -> None:
    status, body, _ = send_request(running, f"/live/view{query}", **BEARER)
    assert (status, body["reason"]) == (400, "request")


def test_refused_uploads_reach_the_store_by_reason(process: ServerProcess) -> None:
    running = process.connect()
    agent = running.enrol()
    listener = EventListener(process)
    next(listener)
    impossible = build_unit_upload(1, 0, 2)
    for _ in range(3):
        with pytest.raises(Refused, match="must hold"):
            agent.exchange(impossible)
    status, *_ = send_request(running, "/v1/exchanges", "POST", {})
    assert status == 401
    updates = [next(listener)[1]]
    while updates[-1]["refused"] != {"impossible": 3, "unsigned": 1}:
        updates.append(next(listener)[1])
    listener.close()
    running.transport.close()
    process.kill()
    store = open_store(f"sqlite:///{process.folder}/store.db")
    assert read_refusals(store) == {"impossible": 3, "unsigned": 1}
    store.close()


def test_a_stream_starts_with_the_whole_view_also_after_a_crash(process: ServerProcess) -> None:
    running = process.connect()
    agent = running.enrol()
    listener = EventListener(process)
    kind, whole = next(listener)
    assert (kind, whole["position"]) == ("view", 0)
    send_uploads(agent, 0, 1, 2)
    updates = listener.until(3)
    listener.close()
    send_uploads(agent, 0, 0, first=4)  # while nobody listens
    process.kill()
    process.start()
    process.connect().transport.close()
    again = EventListener(process)
    kind, whole = next(again)
    assert (kind, whole["position"], whole["uploads"]) == ("view", 5, 5)
    send_uploads(agent, 1, first=6)
    [last] = again.until(6)
    again.close()
    running.transport.close()
    assert [update["after"] for update in updates[1:]] == [update["position"] for update in updates[:-1]]
    assert (updates[0]["after"], last["after"]) == (0, 5)
    assert [row[0] for update in (*updates, last) for row in update["latest"]] == [1, 2, 3, 6]


def test_who_left_disappears_from_open_pages(process: ServerProcess) -> None:
    running = process.connect()
    first, second = running.enrol(), running.enrol()
    send_uploads(first, 0)
    send_uploads(second, 0)
    listener = EventListener(process)
    next(listener)
    running.operator.forget(first.agent)
    kind, whole = next(listener)
    assert kind == "view"
    assert [agent for agent, *_ in whole["agents"]] == [second.agent]
    assert whole["position"] == 3
    listener.close()
    running.transport.close()


def test_pages_hear_of_health_when_nothing_else_happens(tmp_path: Path) -> None:
    health: dict[str, Any] = {"healthy": True, "clock": 1.0}

    async def read_events() -> list[bytes]:
        feed = Feed(lambda: open_store(f"sqlite:///{tmp_path}/store.db"), lambda: health)
        events = await feed.follow()
        first = await anext(events)
        health["clock"] = 2.0  # runs on, and is no news
        await asyncio.sleep(3 * POLL_SECONDS)
        health["healthy"] = False
        second = await anext(events)
        await feed.stop()
        return [first, second]

    view, news = asyncio.run(read_events())
    assert b"event: view" in view
    assert news == b'event: health\ndata: {"healthy":false,"clock":2.0}\n\n'


def test_a_server_with_open_pages_stops_at_once(process: ServerProcess) -> None:
    process.connect().transport.close()
    listener = EventListener(process)
    next(listener)
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < 4.0  # uvicorn would wait 5 s for a stream that goes on
    assert listener.reply.read().strip() == b""
    listener.close()
    process.start()


def test_regret_of_a_simulation_is_kept_until_the_next_one(running: RunningService) -> None:
    running.operator.report_measures([("this run", 10, 1.5, 8), ("alone", 10, 2.5, 7)], fresh=True)
    assert read_view(running)["measures"] == [["this run", 10, 1.5, 8], ["alone", 10, 2.5, 7]]
    running.operator.report_measures([("this run", 5, 0.5, 4)], fresh=True)
    assert read_view(running)["measures"] == [["this run", 5, 0.5, 4]]


def test_the_example_dashboard_and_its_page_name_metrics_that_exist(running: RunningService) -> None:
    root = Path(__file__).parents[3]
    send_uploads(running.enrol(), 0)
    served = set(
        re.findall(r"^(fedcascade_\w+)", running.transport.send("GET", "/metrics", b"", {}).content.decode(), re.M)
    )
    dashboard = json.loads((root / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {
        name for panel in dashboard["panels"] for target in panel["targets"] for name in METRIC.findall(target["expr"])
    }
    assert len(asked) > 5
    # There from the first refusal, and the first list of an A/B test, on.
    served |= {"fedcascade_refused_total"}
    served |= {"fedcascade_arm_lists_total", "fedcascade_arm_clicks_total", "fedcascade_arm_alarm"}
    assert asked <= served
    page = set(METRIC.findall((root / "docs" / "how-to-watch-it-live.md").read_text(encoding="utf-8")))
    assert {name.removesuffix("_bucket") for name in asked} <= page
    assert all(any(metric.startswith(name) for metric in served) for name in page)
