"""Private uploads between real agents and a real server: noise once, budget, refusals, restarts."""

import math
import sqlite3
import subprocess
import sys
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, PRIVATE_POPULATION, Policy, guard_policy
from fedcascade.federation.privacy import PrivateUploads
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import AgentClient, enrol_agent
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.ledger import settle
from fedcascade.service.agent.pool import AgentPool, PoolAgent, RemoteAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.settings import FOR_SIMULATIONS
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.open import open_store

from ..helpers import CuttableTransport, RunningService, ServerProcess, serve_in_process

D = 4
PRIVATE = guard_policy(PRIVATE_POPULATION.with_constants(epsilon=2.0))
BOUNDS = replace(FOR_SIMULATIONS, min_observations=1)


def serve(folder: Path, policy: Policy = PRIVATE) -> AbstractContextManager[RunningService]:
    return serve_in_process(folder / "store.db", policy=policy, dimension=D, bounds=BOUNDS)


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve(tmp_path) as service:
        yield service


def open_agent(running: RunningService, path: Path, **options: Any) -> RemoteAgent:
    token, transport = running.operator.create_tokens()[0], CuttableTransport(running)
    return connect("", store=str(path), token=token, transport=transport, pauses=(0.005, 0.05), **options)


def play(agent: PoolAgent, lists: int, seed: int = 0) -> None:
    """Show lists of two items, each of which is clicked if its first feature is positive."""
    random = np.random.default_rng([seed, agent.memory.state.local.arrivals])
    for _ in range(lists):
        items = random.normal(size=(6, D))
        items /= np.linalg.norm(items, axis=1, keepdims=True) * 1.001
        shown = agent.recommend(items, 2)
        clicks = [place for place in range(2) if shown.features[place, 0] > 0]
        agent.feedback(shown, clicks[0] if clicks else None)


def read_log(folder: Path) -> list[Upload]:
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    try:
        return [entry.upload for entry in store.read_entries(after=0)]
    finally:
        store.close()


def test_an_agent_uploads_first_items_with_noise_on_a_schedule(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db") as agent:
        assert agent.privacy is not None
        assert agent.privacy.spent == 0.0
        play(agent, 20)
        assert agent.flush(20), agent.trouble
        assert agent.privacy.spent == 2.0
        assert agent.trouble is None
        assert agent.memory.state.is_settled
        own = agent.memory.state.local.own_total
    uploads = read_log(tmp_path)
    assert [upload.statistics.rounds for upload in uploads] == [1, 1, 2, 4, 8]  # after lists 1, 2, 4, 8 and 16
    assert all(upload.statistics.count == upload.statistics.rounds for upload in uploads)
    assert own.rounds == 20
    assert own.count > 20  # the agent learns from all positions
    scale = math.sqrt(len(uploads)) * PRIVATE.privacy.compute_scales(1).gram  # type: ignore[union-attr]
    total = sum(np.trace(upload.statistics.gram) for upload in uploads)
    assert abs(total - 16 / 1.001**2) < 6 * scale * math.sqrt(D)
    assert total != pytest.approx(16 / 1.001**2, abs=1e-3)  # with noise


def test_noise_is_drawn_once_however_often_an_upload_is_sent(running: RunningService, tmp_path: Path) -> None:
    transport = CuttableTransport(running)
    token = running.operator.create_tokens()[0]
    path = str(tmp_path / "agent.db")
    with connect("", store=path, token=token, transport=transport, pauses=(0.005, 0.05)) as agent:
        transport.up = False
        play(agent, 9)
        waiting = agent.memory.state.outbox
        first, estimate = agent.memory.state.local.first, agent.estimate
    assert [upload.statistics.rounds for upload in waiting] == [1, 1, 2, 4]
    with connect("", store=path, transport=transport, pauses=(0.005, 0.05)) as again:  # another process
        np.testing.assert_allclose(again.estimate, estimate, rtol=1e-9)  # its own data have no noise
        assert again.memory.state.local.first is not None
        assert first is not None
        np.testing.assert_array_equal(again.memory.state.local.first.gram, first.gram)
        transport.up = True
        assert again.flush(20), again.trouble
        play(again, 7)
        assert again.flush(20), again.trouble
        assert again.memory.state.local.own_total.rounds == 16
    held = read_log(tmp_path)
    assert [upload.statistics.rounds for upload in held] == [1, 1, 2, 4, 8]
    for sent, counted in zip(waiting, held, strict=False):
        np.testing.assert_array_equal(sent.statistics.gram, counted.statistics.gram)
        np.testing.assert_array_equal(sent.statistics.moment, counted.statistics.moment)


def test_the_log_replays_and_a_snapshot_restores_the_same_state(running: RunningService, tmp_path: Path) -> None:
    for number in range(3):
        with open_agent(running, tmp_path / f"agent{number}.db") as agent:
            play(agent, 17, number)
            assert agent.flush(20), agent.trouble
    assert running.writer is not None
    assert running.writer.state is not None
    kept = running.writer.state
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    replayed = replay_log(store, PRIVATE, D, ServerState(PRIVATE, D))
    store.close()
    assert replayed.dump() == kept.dump()
    restored = ServerState.from_state(kept.to_state(), PRIVATE, D)
    assert restored is not None
    np.testing.assert_array_equal(restored.get_statistics(1).gram, kept.get_statistics(1).gram)


def make_client(running: RunningService) -> AgentClient:
    key = SigningKey.generate()
    answer = enrol_agent(running.transport, running.operator.create_tokens()[0], key)
    return AgentClient(running.transport, key, answer.agent)


def send(client: AgentClient, sequence: int, statistics: Statistics) -> None:
    upload = Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=statistics)
    client.exchange(wire.UploadMessage.from_upload(upload))


def test_uploads_that_noise_does_not_explain_are_refused(running: RunningService) -> None:
    client = make_client(running)
    usual = Statistics(np.eye(D), np.zeros(D), 8, 3, 4)  # as an agent without private uploads sends it
    with pytest.raises(Refused, match="one item for each of its lists"):
        send(client, 1, usual)
    honest = replace(usual, count=4)
    with pytest.raises(Refused, match="eigenvalues of gram must be in"):
        send(client, 1, replace(honest, gram=200 * np.eye(D)))
    with pytest.raises(Refused, match="multiples of 2\\^-24"):
        send(client, 1, replace(honest, moment=np.full(D, 0.1)))
    with pytest.raises(Refused, match="must not hold rewards"):
        send(client, 1, replace(honest, shortfall=0.5))
    send(client, 1, honest)


def test_a_lie_within_the_noise_is_refused_when_it_is_repeated(running: RunningService) -> None:
    privacy = PRIVATE.privacy
    assert privacy is not None
    client, taken = make_client(running), 0
    slack = privacy.compute_scales(1).moment * (math.sqrt(D) + 6.0)
    lie = np.zeros(D)
    lie[0] = np.floor(slack)  # an honest agent exceeds this about once in 10^8 uploads
    with suppress(Refused):
        for sequence in range(1, 60):
            send(client, sequence, Statistics(np.eye(D), lie, 1, 1, 1))
            taken = sequence
    assert 1 <= taken < 8
    with pytest.raises(Refused, match="with the agent's earlier uploads, moment must have length"):
        send(client, taken + 1, Statistics(np.eye(D), lie, 1, 1, 1))


def test_a_user_s_budget_ends_the_uploads(tmp_path: Path) -> None:
    policy = guard_policy(PRIVATE_POPULATION.with_constants(epsilon=4.0, unit="user", uploads=3))
    with serve(tmp_path, policy) as running:
        with open_agent(running, tmp_path / "agent.db") as agent:
            spent = []
            for _ in range(12):
                play(agent, 1)
                assert agent.privacy is not None
                spent.append(agent.privacy.spent)
            assert agent.flush(20), agent.trouble
            assert agent.privacy is not None
            assert agent.privacy.is_spent
        assert spent == sorted(spent)
        assert spent[0] < spent[1] < spent[3] == spent[-1] == pytest.approx(4.0, rel=1e-3)
        assert len(read_log(tmp_path)) == 3
        client = make_client(running)
        for sequence in range(1, 4):
            send(client, sequence, Statistics(np.eye(D), np.zeros(D), 1, 0, 1))
        with pytest.raises(Refused, match="a user's privacy allows 3 uploads, this is upload 4"):
            send(client, 4, Statistics(np.eye(D), np.zeros(D), 1, 0, 1))


def test_late_rewards_stay_with_the_agent(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db") as agent:
        play(agent, 2)
        shown = agent.recommend(np.eye(D) * 0.5, 1)
        agent.feedback(shown, 0, reward="later")
        first = agent.memory.state.local.first
        assert first is not None
        assert first.moment.sum() == 0.25  # 0.5, whatever the rewards of other clicks were
        before = agent.memory.state.local.own_total.reward
        agent.reward(shown, 1.0)
        assert agent.memory.state.local.own_total.reward == before + 0.5
        assert agent.memory.state.local.first is first
        assert agent.flush(20)


def test_a_lost_upload_is_not_sent_again(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db") as agent:
        play(agent, 8)
        assert agent.flush(20)
        shorter = msgspec.structs.replace(agent.client.fetch_standing(), rounds=4, count=4, clicks=2)
        state, note = settle(agent.memory.policy, agent.memory.state, shorter)
        assert note == "the server has lost 4 rounds: private uploads are sent once"
        assert (state.lost, state.outbox) == (4, ())
        assert state.local.own_total.rounds == 8


def test_an_agent_accepts_no_less_privacy_than_it_began_with(running: RunningService, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epsilon <= 1, delta <= 1e-05, got epsilon 2 and delta 1e-06"):
        open_agent(running, tmp_path / "strict.db", most_epsilon=1.0)
    with open_agent(running, tmp_path / "agent.db", most_epsilon=2.0) as agent:
        play(agent, 3)
        terms = agent.memory.state.enrolment.terms
        for change in ({"epsilon": 3.0}, {"delta": 1e-3}, {"epsilon": 1e-6}):
            weaker = replace_terms(terms, constants=terms.constants | change)
            with pytest.raises(ValueError, match=r"promise less|wants private uploads|would be noise alone"):
                agent.memory.follow(weaker)
        with pytest.raises(ValueError, match=r"promise less|wants private uploads"):
            agent.memory.follow(replace_terms(terms, policy="population"))
        agent.memory.follow(replace_terms(terms, constants=terms.constants | {"epsilon": 1.0}))
        assert agent.privacy is not None
        assert agent.privacy.epsilon == 1.0


def test_an_agent_that_enrols_again_accepts_no_less_privacy(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    (tmp_path / "other").mkdir()
    weaker = guard_policy(PRIVATE_POPULATION.with_constants(epsilon=50.0))
    with serve(tmp_path) as running, open_agent(running, path) as agent:
        play(agent, 3)
        assert agent.flush(20)
    for policy in (POLICIES["population"], weaker):  # a server that says that it does not know the agent
        with serve(tmp_path / "other", guard_policy(policy)) as other:
            with suppress(ValueError), open_agent(other, path) as agent:
                play(agent, 9)
                agent.flush(1)
                assert "promise less" in str(agent.trouble)
            assert read_log(tmp_path / "other") == []
        (tmp_path / "other" / "store.db").unlink()
    with serve(tmp_path) as running, connect("", store=str(path), transport=CuttableTransport(running)) as agent:
        assert agent.privacy is not None
        assert agent.privacy.epsilon == 2.0


def test_lists_of_a_promise_before_enrolment_are_never_sent_without_noise(tmp_path: Path) -> None:
    store = str(tmp_path / "agents.db")
    with serve(tmp_path) as running:
        transport = CuttableTransport(running)
        with AgentPool("", store=store, transport=transport, pauses=(0.005, 0.05)) as pool:  # without tokens
            play(pool.get("user"), 3)
    (tmp_path / "other").mkdir()
    with serve(tmp_path / "other", guard_policy(POLICIES["population"])) as other:
        tokens, transport = other.operator.create_tokens(2), CuttableTransport(other)
        with AgentPool("", store=store, transport=transport, tokens=tokens, pauses=(0.005, 0.05)) as pool:
            agent = pool.get("user")  # under the terms that the first pool has stored
            assert not agent.flush(1)
            assert "promise less" in str(agent.trouble)
            pool.get("another user")
        with AgentPool("", store=store, transport=transport, tokens=tokens, pauses=(0.005, 0.05)) as pool:
            agent = pool.get("user")  # under those of the other server
            assert (agent.unsent, agent.buffered, agent.memory.state.local.first) == (0, 0, None)
            assert agent.memory.state.local.own_total.rounds == 3
            play(agent, 1)
            assert agent.flush(20), agent.trouble
    assert sum(upload.statistics.rounds for upload in read_log(tmp_path / "other")) <= 1


def test_an_agent_that_starts_over_has_spent_its_user_s_budget(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    policy = guard_policy(PRIVATE_POPULATION.with_constants(epsilon=4.0, unit="user", uploads=3))
    with serve(tmp_path, policy) as running:
        with open_agent(running, path) as agent:
            play(agent, 2)
            assert agent.flush(20), agent.trouble
        with closing(sqlite3.connect(path)) as file:
            file.execute("UPDATE pool_entry SET value = x'00' WHERE name = 'progress'")
            file.commit()
        options = {"transport": CuttableTransport(running), "start_over": True, "pauses": (0.005, 0.05)}
        for _ in range(2):
            with connect("", store=str(path), **options) as agent:  # type: ignore[arg-type]
                assert agent.privacy is not None
                assert agent.privacy.is_spent
                play(agent, 8)
                assert agent.flush(20), agent.trouble
        assert len(read_log(tmp_path)) == 2


def replace_terms(terms: wire.Terms, **fields: Any) -> wire.Terms:
    return msgspec.structs.replace(terms, **fields).with_id()


def test_an_agent_that_asks_for_privacy_refuses_a_server_without(tmp_path: Path) -> None:
    line = "wants private uploads of epsilon <= 2, delta <= 1e-05, got none"
    with serve_in_process(tmp_path / "store.db", dimension=D) as running, pytest.raises(ValueError, match=line):
        open_agent(running, tmp_path / "agent.db", most_epsilon=2.0)


@pytest.mark.parametrize(("given", "line"), [
    ("epsilon=0", "epsilon must be a finite number > 0, got 0.0"),
    ("delta=1e-6", "privacy must look like 'epsilon=2,delta=1e-6', got 'delta=1e-6'"),
    ("epsilon=2,unit=item", "unit must be"),
    ("epsilon=2,gamma=1", "gamma"),
])  # fmt: skip
def test_wrong_options_are_refused_in_one_line(tmp_path: Path, given: str, line: str) -> None:
    command = [sys.executable, "-m", "fedcascade", "serve", "--privacy", given, "--store", "sqlite:///x.db"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_server_process_with_private_uploads(tmp_path: Path) -> None:
    options = "--policy", "population", "--privacy", "epsilon=2,delta=1e-6"
    process = ServerProcess(tmp_path / "server", "sqlite:///store.db", *options, dimension=D, published=False)
    process.start()
    try:
        running = process.connect()
        token = running.operator.create_tokens()[0]
        with connect(process.url, store=str(tmp_path / "agent.db"), token=token, most_epsilon=2.0) as agent:
            play(agent, 5)
            assert agent.flush(60), agent.trouble
            process.kill()
            process.start()
            play(agent, 4)
            assert agent.flush(60), agent.trouble
            assert agent.privacy is not None
            assert agent.privacy == PrivateUploads(epsilon=2.0).measure_budget(4)
        metrics = running.transport.send("GET", "/metrics", b"", {}).content.decode()
        running.transport.close()
        assert 'fedcascade_privacy_epsilon_bucket{le="2"} 1.0' in metrics
    finally:
        process.stop()
    assert [upload.statistics.rounds for upload in read_log(tmp_path / "server")] == [1, 1, 2, 4]
