"""The state: no accepted upload makes a sum that a server could not work with, now, with others, or at a replay."""

import gc
import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.federation.grouping.population.partition import PopulationPartition
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import (
    are_possible,
    check_upload,
    compute_shift,
    find_smallest_lambda,
)
from fedcascade.service.server.operations import forget
from fedcascade.service.server.serve import ServerSettings
from fedcascade.service.server.settings import UploadBounds
from fedcascade.service.server.state import ServerState, make_empty_server, replay_log
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.snapshot import encode_state
from fedcascade.testing.stores import record_upload

from ..helpers import RunningService, build_unit_upload, serve_in_process


def steepest(count: int, dimension: int, first: int = 0, second: int = 1, share: float = 0.99) -> Statistics:
    """A lie whose gram has an eigenvalue below 0, as near to the limit as ``share`` says."""
    shift = compute_shift(float(count), dimension)
    gram = np.zeros((dimension, dimension))
    gram[second, second] = count
    gram[first, second] = gram[second, first] = np.floor(share * np.sqrt(shift * count) * 2.0**24) / 2.0**24
    return Statistics(gram, np.zeros(dimension), count, 0, count)


def is_accepted(statistics: Statistics) -> bool:
    numbers = np.append(np.frombuffer(wire.pack_numbers(statistics), "<f8"), 0.0)[None]
    counts = np.array([[statistics.count, statistics.clicks, statistics.rounds]])
    possible = bool(are_possible(numbers, counts)[0])
    try:
        check_upload(statistics, statistics.dimension)
    except ValueError:
        assert not possible
        return False
    assert possible
    return True


@pytest.mark.parametrize("dimension", [2, 3, 20, 100])
@pytest.mark.parametrize("count", [100, 10**6, LARGEST_TOTAL])
def test_what_is_accepted_is_definite_with_the_smallest_lambda(dimension: int, count: int) -> None:
    lie = steepest(count, dimension)
    assert is_accepted(lie)
    assert not is_accepted(steepest(count, dimension, share=1.6))
    least = np.linalg.eigvalsh(lie.gram)[0]
    assert least >= -1.5 * compute_shift(float(count), dimension)
    assert least >= -0.4 * find_smallest_lambda(dimension) * count / LARGEST_TOTAL - 1e-15 * count


@pytest.mark.parametrize("eigenvalue", [-9_000.0, -100.0, -3.9, -0.1])
def test_a_gram_that_was_within_a_share_of_the_trace_is_refused(eigenvalue: float) -> None:
    gram = np.diag([eigenvalue] + [3e8] * 2)
    assert not is_accepted(Statistics(gram, np.zeros(3), 10**9, 0, 10**9))
    gram = np.diag([eigenvalue] + [1e8] * 2)
    assert not is_accepted(Statistics(gram, np.zeros(3), 4 * 10**8, 0, 4 * 10**8))


def test_no_moment_gives_an_estimate_beyond_what_its_clicks_explain() -> None:
    """|theta|^2 <= 2 clicks / lambda; once, a moment outside the range of a large gram gave 2e7."""
    gram, clicks = np.diag([0.0, 1e8, 1e8]), 10**8
    shift = compute_shift(2e8, 3)
    for length in (0.5, 1.0, 2.0, 100.0):
        step = np.floor(length * np.sqrt(clicks * shift) * 2.0**12) / 2.0**12
        lie = Statistics(gram, np.array([step, 0.0, 0.0]), 2 * clicks, clicks, clicks)
        if is_accepted(lie):
            for lambda_ in (find_smallest_lambda(3), 4.0):
                assert np.linalg.norm(Ridge(lie, lambda_).theta) <= np.sqrt(2 * clicks / lambda_)
        else:
            assert length >= 1.0


def record(folder: Path, uploads: Sequence[tuple[int, Statistics]], forgotten: Sequence[int] = ()) -> tuple[Any, int]:
    """A store with those uploads that are accepted, and how many there are; some agents are forgotten half-way."""
    url = f"sqlite:///{folder}/store-{len(list(folder.iterdir()))}.db"
    store, state = open_store(url), ServerState(POLICIES["population"], uploads[0][1].dimension)
    accepted = 0
    with store.transaction():
        agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(1 + max(who for who, _ in uploads))]
        gone = set[int]()
        for number, (who, statistics) in enumerate(uploads):
            if number == len(uploads) // 2:
                gone = set(forgotten) & {who for who, _ in uploads[:number]}
                for leaver in gone:
                    forget(agents[leaver])(store, state)
            upload = Upload(agent=agents[who], sequence=number + 1, cause=Cause.FORCED, statistics=statistics)
            if who in gone or not is_accepted(statistics):
                continue
            if state.get_statistics(agents[who]).count + statistics.count <= LARGEST_TOTAL:
                record_upload(store, state, upload, number)
                accepted += 1
    return store, accepted


def check_replays(store: Any, dimension: int) -> None:
    """Replay the log as every kind of server would."""
    least = find_smallest_lambda(dimension)
    for name in ("population", "fedc3ucb-h", "fedlinucb"):
        for lambda_ in (least, 1.0):
            # Sharing's prior, variance d / length^2, is as small as a server takes.
            length = float(np.sqrt(0.2 * dimension / least)) * 0.999
            policy = guard_policy(POLICIES[name]).with_constants(lambda_=lambda_, length=length)
            ServerSettings(store="", policy=policy, dimension=dimension)
            state = ServerState(policy, dimension)
            for entry in store.read_entries(after=0):
                answer = state.apply(entry.upload, entry.position)
                Ridge(answer, lambda_)
                assert np.isfinite(Ridge(answer, lambda_).theta).all()
            Ridge(state.sum_statistics(), lambda_)
            if name == "population":
                groups = state.server.groups
                assert isinstance(groups, PopulationPartition)
                assert all(
                    np.isfinite(learned).all() for learned in (groups.responsibilities, groups.mean, groups.covariance)
                )


COUNTS = st.sampled_from([1, 10, 1_000, 10**6, 10**8, 4 * 10**8])


@st.composite
def lies(draw: st.DrawFn) -> tuple[int, list[tuple[int, Statistics]]]:
    """Uploads of a few agents, near the limit of what is accepted, with moments near theirs."""
    dimension, uploads = draw(st.integers(2, 6)), []
    for _ in range(draw(st.integers(1, 8))):
        first, second = draw(st.permutations(range(dimension)))[:2]
        lie = steepest(draw(COUNTS), dimension, first, second, draw(st.sampled_from([0.5, 0.9, 0.99, 0.999])))
        moment, clicks = np.zeros(dimension), draw(st.integers(0, lie.count))
        moment[draw(st.sampled_from([first, second]))] = np.floor(draw(st.floats(0, 1)) * clicks * 4096) / 4096
        held = Statistics(lie.gram, moment, lie.count, clicks, lie.rounds)
        uploads.append((draw(st.integers(0, 3)), held if is_accepted(held) else lie))
    return dimension, uploads


@pytest.mark.parametrize("examples", [10, pytest.param(500, marks=pytest.mark.long)])
def test_every_accepted_log_can_be_replayed_under_every_lambda(tmp_path: Path, examples: int) -> None:
    given_logs = given(drawn=lies(), forgotten=st.sets(st.integers(0, 3)))
    settings(deadline=None, max_examples=examples)(given_logs(check_log))(tmp_path)


def check_log(tmp_path: Path, drawn: tuple[int, list[tuple[int, Statistics]]], forgotten: set[int]) -> None:
    store, _ = record(tmp_path, drawn[1], sorted(forgotten))
    check_replays(store, drawn[0])
    store.close()


@pytest.mark.parametrize("agents", [1, 6, 60])
def test_421_uploads_of_a_million_observations_do_not_add_up_to_a_broken_sum(tmp_path: Path, agents: int) -> None:
    lie = steepest(10**6, 20)
    assert np.linalg.eigvalsh(421 * lie.gram)[0] < -1e-5  # they do add up
    store, accepted = record(tmp_path, [(number % agents, lie) for number in range(421)])
    assert accepted == 421
    policy = POLICIES["fedc3ucb-h"].with_constants(lambda_=1.0)
    assert replay_log(store, policy, 20).observations == 421 * 10**6
    total = replay_log(store, POLICIES["fedc3ucb-h"], 20).sum_statistics()
    Ridge(total, find_smallest_lambda(20))
    store.close()


def test_a_server_never_fills_up(tmp_path: Path) -> None:
    """Agents that upload as much as one may are refused more; all others go on."""
    bounds = UploadBounds(longest_list=1_000, min_observations=0, rounds_burst=10 * LARGEST_TOTAL)
    policy = guard_policy(POLICIES["fedc3ucb-h"])
    with serve_in_process(tmp_path / "store.db", policy=policy, bounds=bounds) as running:
        heavy, other = [running.enrol() for _ in range(4)], running.enrol()
        for agent in heavy:
            agent.exchange(build_message(1, steepest(LARGEST_TOTAL, 3)))
        with pytest.raises(Refused) as refused:
            heavy[0].exchange(build_message(2, steepest(10, 3)))
        assert (refused.value.status, refused.value.reason) == (507, "full")
        answer = other.exchange(build_message(1, steepest(10, 3)))
        assert 10 <= answer.count <= LARGEST_TOTAL
        statistics = wire.unpack_statistics(answer.numbers, (answer.count, answer.clicks, answer.rounds), 3)
        Ridge(statistics, find_smallest_lambda(3))
        text = running.transport.send("GET", "/metrics", b"", {}).content.decode()
        assert "fedcascade_fullest 1.0" in text


@pytest.mark.parametrize("name", ["population", "fedc3ucb-h", "fedlinucb"])
def test_a_million_agents_of_five_hundred_observations_each_are_answered(name: str) -> None:
    """The same total, of 2,000 agents: 10^9 observations, twice what one sum may hold."""
    state = ServerState(guard_policy(POLICIES[name]), 3)
    lie = steepest(500_000, 3)
    for number in range(2_000 if name != "fedc3ucb-h" else 200):
        upload = Upload(agent=number % 1_000 + 1, sequence=1, cause=Cause.FORCED, statistics=lie)
        download = state.apply(upload, number + 1)
        Ridge(download, state.policy.lambda_)
        assert download.count <= LARGEST_TOTAL
    if name != "fedc3ucb-h":
        assert state.observations == 10**9


def test_two_to_the_fortieth_is_refused_and_nobody_else_notices(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agent, other = running.enrol(), running.enrol()
        nothing = Statistics(np.zeros((3, 3)), np.zeros(3), 2**40, 0, 2**40)
        with pytest.raises(Refused, match="count"):
            agent.exchange(build_message(1, nothing))
        assert other.exchange(build_unit_upload(1, 0, 3)).count == 1


def build_message(sequence: int, statistics: Statistics) -> wire.UploadMessage:
    return wire.UploadMessage.from_upload(Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=statistics))


def test_sums_in_answers_may_be_larger_than_any_upload(running: RunningService) -> None:
    small = running.enrol().exchange(build_unit_upload(1, 0, 3))
    answer = msgspec.structs.replace(small, count=2**62, clicks=2**40, rounds=2**41, system_rounds=2**63 - 1)
    for media in (wire.JSON, wire.MSGPACK):
        assert wire.decode(wire.ENCODERS[media](answer), wire.AnswerMessage, media) == answer


@pytest.mark.parametrize(
    ("name", "constants", "word"),
    [("fedc3ucb-h", {"lambda_": 1e-4}, "lambda"), ("fedlinucb", {"length": 1e4}, "variance d / length")],
)
def test_a_server_refuses_a_regulariser_that_some_sum_could_break(
    name: str, constants: dict[str, float], word: str
) -> None:
    with pytest.raises(ValueError, match=word) as refused:
        ServerSettings(store="", policy=guard_policy(POLICIES[name]).with_constants(**constants), dimension=20)
    assert "at least 0.0002149" in str(refused.value)


def test_a_log_that_cannot_be_replayed_names_the_entry(tmp_path: Path) -> None:
    """As one that a damaged disk or an older version has left."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    broken = Statistics(np.diag([-3.9, 5.0, 5.0]), np.zeros(3), 20, 0, 20)
    with store.transaction():
        agent = add_agent(store, b"k" * 32, 1.0)
        upload = Upload(agent=agent, sequence=9, cause=Cause.FORCED, statistics=broken)
        store.append(1, upload)
    with pytest.raises(ValueError, match=f"upload 9 of agent {agent}, entry 1 of the log"):
        replay_log(store, POLICIES["fedc3ucb-h"], 3)
    store.close()


def test_a_sum_that_cannot_be_solved_is_a_refusal_of_that_upload_alone(tmp_path: Path) -> None:
    """The fold checks before it changes: nothing is dropped or read again, whatever got past the verifier."""
    store, state = open_store(f"sqlite:///{tmp_path}/store.db"), ServerState(POLICIES["fedc3ucb-h"], 3)
    with store.transaction():
        agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(2)]
        upload = build_unit_upload(1, 0, 3).to_upload(agents[0], 3)
        record_upload(store, state, upload, 1)
        before = state.dump()
        for agent in agents:
            broken = Statistics(np.diag([-100.0, 5.0, 5.0]), np.zeros(3), 20, 0, 20)
            lie = Upload(agent=agent, sequence=2, cause=Cause.FORCED, statistics=broken)
            with pytest.raises(Refused) as refused:
                record_upload(store, state, lie, 2)
            assert refused.value.status == 422
            assert state.dump() == before
    store.close()


def test_holdings_do_not_change_when_they_refuse() -> None:
    state = ServerState(POLICIES["fedc3ucb-h"], 3)
    state.apply(build_unit_upload(1, 0, 3).to_upload(7, 3), 1)
    before = state.dump()
    with pytest.raises(ValueError, match="positive semi-definite"):
        state.server.holdings.add(0, Statistics(np.diag([-100.0, 0.0, 0.0]), np.zeros(3), 20, 0, 20))
    assert state.dump() == before


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def test_a_failed_job_leaves_no_state_behind(running: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception's traceback once held the state that was dropped, in a ring that only a collection broke."""
    writer = running.writer
    assert writer is not None
    running.enrol().exchange(build_unit_upload(1, 0, 3))

    def fail(_: object, state: ServerState) -> None:
        states.append(weakref.ref(state))
        raise ArithmeticError("on purpose")

    states: list[weakref.ref[ServerState]] = []
    monkeypatch.setattr(logging.getLogger("fedcascade.service"), "disabled", True)  # pytest keeps what is logged
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with suppress(ArithmeticError):
                writer.submit(fail).result()
        writer.submit(lambda *_: None).result()
        assert len(states) == 5
        assert [state() for state in states] == [None] * 5
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["fedlinucb", "fedc3ucb-h", "no-auxiliary", "population"])
def test_the_first_agent_of_an_empty_server_makes_it_a_server_of_one_agent(name: str) -> None:
    empty, policy = make_empty_server(POLICIES[name], 3), POLICIES[name]
    assert len(empty.holdings) == empty.rounds == 0
    assert empty.join() == 0
    assert encode_state(empty.to_state()) == encode_state(Server(policy=policy, agents=1, dimension=3).to_state())
