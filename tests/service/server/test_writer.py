"""The writer: exchanges are counted once, checked by theorem, and survive a restart bit for bit."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.ledger import unpack_answer
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import are_possible, check_upload
from fedcascade.service.server.state import replay_log
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import SqliteStore

from ..helpers import RunningService, build_unit_upload, serve_in_process


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def diagonal(running: RunningService) -> list[float]:
    assert running.writer is not None
    held: Statistics = running.writer.submit(lambda _, state: state.sum_statistics()).result()
    return [float(number) for number in np.diag(held.gram)]


def test_repeated_reordered_and_concurrent_deliveries_count_once(
    running: RunningService,
) -> None:
    agent, other = running.enrol(), running.enrol()
    for sequence in (3, 1, 2):
        agent.exchange(build_unit_upload(sequence, sequence % 3, 3))
    other.exchange(build_unit_upload(1, 0, 3))
    lock = threading.Lock()

    def repeat(sequence: int) -> wire.AnswerMessage:
        with lock:  # signing is the client's own affair; the deliveries overlap
            body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(sequence, sequence % 3, 3))
            headers = agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), sequence)
        reply = running.transport.send("POST", "/v1/exchanges", body, headers)
        assert reply.status_code == 200, reply.content
        return wire.decode(reply.content, wire.AnswerMessage, wire.MSGPACK)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(repeat, [1, 2, 3] * 8))
    assert [answer.sequence for answer in answers] == [1, 2, 3] * 8
    assert len({answer.numbers for answer in answers}) == 1
    assert diagonal(running) == [2.0, 1.0, 1.0]


def test_concurrent_first_deliveries_count_once(running: RunningService) -> None:
    agent = running.enrol()
    body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(1, 2, 3))
    signed = [agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), 1) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda headers: running.transport.send("POST", "/v1/exchanges", body, headers), signed))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    assert diagonal(running) == [0.0, 0.0, 1.0]


def test_the_same_sequence_with_another_body_is_a_conflict(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(build_unit_upload(1, 0, 3))
    with pytest.raises(Refused) as refused:
        agent.exchange(build_unit_upload(1, 1, 3))
    assert (refused.value.status, refused.value.reason) == (409, "conflict")
    assert diagonal(running) == [1.0, 0.0, 0.0]


def test_a_repeated_upload_is_answered_with_what_the_group_holds_by_then(running: RunningService) -> None:
    """Answers are not kept: they hold the data of others, who may be forgotten before the upload is repeated."""
    agent, other = running.enrol(), running.enrol()
    first = agent.exchange(build_unit_upload(1, 0, 3))
    assert agent.exchange(build_unit_upload(1, 0, 3)) == first
    other.exchange(build_unit_upload(1, 1, 3))
    shared = agent.exchange(build_unit_upload(1, 0, 3))
    assert np.diag(unpack_answer(shared, 3).gram).tolist() == [1.0, 1.0, 0.0]
    other.leave()
    assert agent.exchange(build_unit_upload(1, 0, 3)).numbers == first.numbers
    assert diagonal(running) == [1.0, 0.0, 0.0]


def test_json_and_messagepack_say_the_same(running: RunningService) -> None:
    agent = running.enrol()
    packed = agent.exchange(build_unit_upload(1, 0, 3))
    body = wire.ENCODERS[wire.JSON](build_unit_upload(1, 0, 3))
    headers = agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), 1) | {
        "content-type": "application/json; charset=utf-8"
    }
    reply = running.transport.send("POST", "/v1/exchanges", body, headers)
    assert wire.decode(reply.content, wire.AnswerMessage, wire.JSON) == packed


def test_an_answer_tells_how_many_agents_share_the_group(running: RunningService) -> None:
    first, second = running.enrol(), running.enrol()
    assert first.exchange(build_unit_upload(1, 0, 3)).group_agents == 1
    assert second.exchange(build_unit_upload(1, 1, 3)).group_agents == 2


def test_a_restart_goes_on_where_it_stopped_bit_for_bit(tmp_path: Path) -> None:
    policy = POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.05)
    random = np.random.default_rng(5)
    with serve_in_process(tmp_path / "store.db", policy=policy, snapshot_every=7) as running:
        agents = [running.enrol() for _ in range(3)]
        for sequence in range(1, 16):
            for agent in agents:
                upload = Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=observed(random, 4))
                agent.exchange(wire.UploadMessage.from_upload(upload))
        live = running.writer.submit(lambda _, state: state.dump()).result()  # type: ignore[union-attr]
        store = open_store(running.url)
        kept = store.read_snapshot()
        assert kept is not None
        assert 0 < kept[0] < 45
        assert replay_log(store, policy, 3).dump() == live  # from a snapshot, as after a crash
        store.close()
    with serve_in_process(tmp_path / "store.db", policy=policy) as again:
        assert again.writer.submit(lambda _, state: state.dump()).result() == live  # type: ignore[union-attr]
    with serve_in_process(
        tmp_path / "store.db", policy=POLICIES["fedlinucb"]
    ) as other:  # the log is the truth: replay it anew
        assert other.writer.submit(lambda _, state: state.clusters).result() == 1  # type: ignore[union-attr]


def test_a_forgotten_agent_is_gone_and_the_rest_goes_on(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agent, other = running.enrol(), running.enrol()
        for sequence in (1, 2):
            agent.exchange(build_unit_upload(sequence, 0, 3))
            other.exchange(build_unit_upload(sequence, 1, 3))
        agent.leave()
        assert diagonal(running) == [0.0, 2.0, 0.0]
        with pytest.raises(Refused, match="no enrolled agent"):
            agent.exchange(build_unit_upload(3, 0, 3))
        answer = other.exchange(build_unit_upload(3, 2, 3))
        assert np.diag(unpack_answer(answer, 3).gram).tolist() == [0, 2.0, 1.0]
        assert (answer.agents, answer.system_rounds) == (1, 3)
        live = running.writer.submit(lambda _, state: state.dump()).result()  # type: ignore[union-attr]
    with serve_in_process(tmp_path / "store.db") as again:
        assert again.writer.submit(lambda _, state: state.dump()).result() == live  # type: ignore[union-attr]
        running.operator.transport = again.transport
        running.operator.forget(other.agent)
        assert diagonal(again) == [0.0, 0.0, 0.0]
        assert again.enrol().exchange(build_unit_upload(1, 1, 3)).agents == 1


def observed(random: np.random.Generator, rounds: int, dimension: int = 3) -> Statistics:
    """What an honest agent could have seen."""
    total = Statistics.zero(dimension)
    for _ in range(rounds):
        drawn = random.normal(size=(int(random.integers(1, 5)), dimension))
        listed = round_to_grid(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
        click = int(random.integers(-1, len(listed)))
        total = total.observe(listed, None if click < 0 else click)
    return total


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 12), st.booleans())
def test_no_honest_upload_is_ever_refused(seed: int, rounds: int, dimension: int, same: bool) -> None:
    random = np.random.default_rng(seed)
    total = observed(random, rounds, dimension)
    if same:  # the same item again and again: gram has rank one
        item = np.zeros((1, dimension), np.float32)
        item[0, 0] = 0.625
        for _ in range(rounds):
            total = total.observe(item, 0)
    check_upload(total, dimension)


def test_a_long_honest_history_is_not_refused() -> None:
    once = observed(np.random.default_rng(1), 50, 20)
    total = once
    for _ in range(17):
        total = total + total
    check_upload(total, 20)


def accepted(statistics: Statistics, dimension: int) -> bool:
    try:
        check_upload(statistics, dimension)
    except ValueError:
        return False
    return True


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 6), st.lists(st.floats(-1e-5, 1e-5), min_size=3, max_size=3))
def test_many_uploads_are_judged_as_each_alone(seed: int, dimension: int, moved: list[float]) -> None:
    """Honest ones, and ones that were changed by so little that either may be right."""
    random = np.random.default_rng(seed)
    batch = [observed(random, rounds, dimension) for rounds in (1, 5, 40)]
    for number, shift in enumerate(moved):
        held = batch[number]
        gram, moment = held.gram + np.round(shift * 2.0**24) / 2.0**24 * np.eye(dimension), held.moment.copy()
        moment[0] += np.round(100 * shift * 2.0**12) / 2.0**12
        counts = held.count, held.clicks, held.rounds + int(random.integers(-1, 2) * (shift != 0))
        batch.append(Statistics(gram, moment, *counts))
    numbers = np.array([[*np.frombuffer(wire.pack_numbers(statistics), "<f8"), 0.0] for statistics in batch])
    counted = np.array([(statistics.count, statistics.clicks, statistics.rounds) for statistics in batch])
    assert are_possible(numbers, counted).tolist() == [accepted(statistics, dimension) for statistics in batch]


GRAM, MOMENT = [1.0, 0, 0, 0, 0, 0], [1.0, 0, 0]  # of one unit vector that was clicked


LIES: dict[str, dict[str, Any]] = {
    "gram off the grid": {"gram": [0.3, 0, 0, 0, 0, 0], "moment": [0.25, 0, 0]},
    "moment off the grid": {"moment": [0.3, 0, 0]},
    "trace beyond the count": {"gram": [2.0, 0, 0, 0, 0, 0]},
    "negative diagonal": {"gram": [-0.5, 0, 0, 0, 0, 0]},
    "indefinite": {"gram": [0.5, 0.6, 0, 0.5, 0, 0]},
    "moment outside the range": {"moment": [0.0, 0.1, 0.0]},
    "moment too long": {"moment": [1.1, 0.0, 0.0]},
    "clicks beyond rounds": {"clicks": 2},
    "rounds beyond the count": {"rounds": 2},
    "count too small": {"count": 0},
    "no rounds": {"rounds": 0, "clicks": 0, "moment": [0.0, 0.0, 0.0]},
    "click without a moment's length": {"clicks": 0},
    "wrong dimension": {"moment": [1.0, 0.0]},
    "a whole matrix": {"gram": [1.0, 0, 0, 0.5, 0, 0, 0, 0, 0]},
    "huge": {"gram": [1e308, 1e308, 1e308, 1e308, 1e308, 1e308]},
    "huge moment": {"moment": [1e300, 1e300, 1e300]},
    "infinite": {"gram": [float("inf"), 0, 0, 0, 0, 0]},
    "not a number": {"moment": [float("nan"), 0, 0]},
}


def lying_message(sequence: int, *, gram: Any = GRAM, moment: Any = MOMENT, **counts: Any) -> wire.UploadMessage:
    """A unit vector's upload with some of its content changed."""
    numbers = np.array([*gram, *moment], "<f8").tobytes()
    return msgspec.structs.replace(build_unit_upload(sequence, 0, 3), numbers=numbers, **counts)


@pytest.mark.parametrize("lie", LIES)
def test_what_no_data_can_have_is_refused_with_a_reason(running: RunningService, lie: str) -> None:
    agent = running.enrol()
    agent.exchange(build_unit_upload(1, 0, 3))
    before = running.writer.submit(lambda _, state: state.dump()).result()  # type: ignore[union-attr]
    with pytest.raises(Refused) as refused:
        agent.exchange(lying_message(2, **LIES[lie]))
    assert refused.value.status == 422
    assert len(refused.value.detail) > 10
    assert running.writer.submit(lambda _, state: state.dump()).result() == before  # type: ignore[union-attr]


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**70), 2**70),
    st.none(),
    st.text(max_size=3),
    st.floats(-2, 2),
)
HOSTILE = st.fixed_dictionaries(
    {
        "protocol": st.one_of(st.just(1), NUMBERS),
        "sequence": st.one_of(st.just(2), NUMBERS),
        "cause": st.one_of(st.just("forced"), st.text(max_size=12), st.none()),
        "numbers": st.one_of(
            st.lists(st.floats(-3, 3), min_size=9, max_size=9).map(lambda values: np.array(values, "<f8").tobytes()),
            st.lists(st.floats(), max_size=10).map(lambda values: np.array(values, "<f8").tobytes()),
            st.binary(max_size=100),
            NUMBERS,
            st.lists(NUMBERS, max_size=10),
        ),
        "count": st.one_of(st.integers(0, 2), NUMBERS),
        "clicks": st.one_of(st.integers(0, 5), NUMBERS),
        "rounds": st.one_of(st.integers(0, 5), NUMBERS),
    },
    optional={"more": NUMBERS},
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=HOSTILE, binary=st.booleans())
def test_hostile_uploads_are_refused_and_change_nothing(
    message: dict[str, object], binary: bool, shared: RunningService
) -> None:
    agent = shared.agent  # type: ignore[attr-defined]
    say, media = (msgspec.msgpack.encode, wire.MSGPACK) if binary else (msgspec.json.encode, wire.JSON)
    try:
        body = say(message)
    except OverflowError:
        return
    sequence = message["sequence"]
    signed = sequence if isinstance(sequence, int) and 0 < sequence < 2**53 else 2
    headers = agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), signed) | {"content-type": media}
    before = shared.writer.submit(lambda _, state: state.dump()).result()  # type: ignore[union-attr]
    reply = shared.transport.send("POST", "/v1/exchanges", body, headers)
    after = shared.writer.submit(lambda _, state: state.dump()).result()  # type: ignore[union-attr]
    if reply.status_code == 200:  # not a lie after all: then a theorem says so, and no other
        held = wire.decode(body, wire.UploadMessage, media).to_upload(0, 3).statistics
        assert np.linalg.eigvalsh(held.gram)[0] > -1e-6
        assert np.trace(held.gram) <= held.count * 1.001
        assert held.moment @ np.linalg.pinv(held.gram, rcond=1e-6) @ held.moment <= held.clicks + 1e-3
    else:
        assert 400 <= reply.status_code < 500
        assert len(msgspec.json.decode(reply.content, type=wire.RefusalBody).detail) > 5
        assert after == before


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path_factory.mktemp("hostile") / "store.db") as service:
        service.agent = service.enrol()  # type: ignore[attr-defined]
        service.agent.exchange(build_unit_upload(1, 0, 3))  # type: ignore[attr-defined]
        yield service


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b"", "application/json", 400),
        (b"[" * 100_000, "application/json", 413),
        (b"[" * 3_000, "application/json", 422),
        (b"\x91" * 3_000, "application/msgpack", 422),
        (b'{"numbers": ' * 300 + b"1" + b"}" * 300, "application/json", 422),
        (b"x" * 10_000_000, "application/json", 413),
        (b'{"numbers": [1e999]}', "application/json", 422),
        (b"\xff\xfe\x00", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"{}", "multipart/form-data; boundary=x", 415),
        (b"NaN", "application/json", 400),
    ],
)
def test_bodies_that_are_no_messages_are_refused(shared: RunningService, body: bytes, media: str, status: int) -> None:
    agent = shared.agent  # type: ignore[attr-defined]
    before = shared.writer.submit(lambda _, state: state.dump()).result()  # type: ignore[union-attr]
    headers = agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), 2) | {"content-type": media}
    reply = shared.transport.send("POST", "/v1/exchanges", body, headers)
    problem = msgspec.json.decode(reply.content, type=wire.RefusalBody)
    assert (reply.status_code, len(problem.detail) > 5) == (status, True), problem
    assert shared.writer.submit(lambda _, state: state.dump()).result() == before  # type: ignore[union-attr]


def test_newcomers_join_after_a_start_from_a_snapshot(tmp_path: Path) -> None:
    for round_ in range(3):
        with serve_in_process(tmp_path / "store.db") as running:
            newcomers = [running.enrol() for _ in range(3)]
            answers = [agent.exchange(build_unit_upload(1, axis, 3)) for axis, agent in enumerate(newcomers)]
            assert [answer.agents for answer in answers] == [3 * round_ + number for number in (1, 2, 3)]
            assert diagonal(running) == [round_ + 1.0] * 3


def test_a_job_that_breaks_does_not_break_its_neighbours(running: RunningService) -> None:
    assert running.writer is not None
    agent = running.enrol()
    gate = threading.Event()
    first = running.writer.submit(lambda *_: gate.wait(5))
    broken = running.writer.submit(lambda *_: 1 // 0)
    body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(1, 0, 3))
    headers = agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), 1)
    with ThreadPoolExecutor(1) as pool:
        good = pool.submit(running.transport.send, "POST", "/v1/exchanges", body, headers)
        gate.set()
        assert good.result().status_code == 200
    assert first.result()
    with pytest.raises(ZeroDivisionError):
        broken.result()
    assert diagonal(running) == [1.0, 0.0, 0.0]


def test_metrics_count_what_happened(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(build_unit_upload(1, 0, 3))
    with pytest.raises(Refused):
        agent.exchange(build_unit_upload(1, 1, 3))
    text = running.transport.send("GET", "/metrics", b"", {}).content.decode()
    for line in (
        'fedcascade_exchanges_total{cause="forced"} 1.0',
        'fedcascade_refused_total{reason="conflict"} 1.0',
        "fedcascade_clusters 0.0",  # of two agents or more
        "fedcascade_exchange_seconds_count 1.0",
        'fedcascade_bytes_total{direction="up"}',
    ):
        assert line in text


def test_a_store_that_cannot_be_read_is_tried_once_for_all_agents_that_wait(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents, writer = [running.enrol() for _ in range(4)], running.writer
    tries, release = list[None](), threading.Event()
    assert writer is not None

    def fail(*_: object) -> None:
        tries.append(None)
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched, ThreadPoolExecutor(4) as threads:
        stuck = writer.submit(lambda *_: release.wait(30.0))
        patched.setattr(SqliteStore, "find_identity", fail)
        replies = [threads.submit(agent.exchange, build_unit_upload(1, 0, 3)) for agent in agents]
        end = time.monotonic() + 10.0
        while writer.waiting < len(agents):
            assert time.monotonic() < end
            time.sleep(0.01)
        release.set()
        assert stuck.result()
        reasons = {getattr(reply.exception(30), "reason", None) for reply in replies}
    assert reasons == {"store-unavailable"}
    assert len(tries) == 1
    assert agents[0].exchange(build_unit_upload(1, 0, 3)).sequence == 1
