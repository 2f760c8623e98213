"""A newcomer is told what the server knows of anybody when it enrols, and decides with it from its first list on."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from httpx2 import Response
from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.federation.triggers import Always
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.client import enrol_agent
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.enrolment import ServerLink
from fedcascade.service.agent.ledger import take_prior, unpack_answer
from fedcascade.service.agent.pool import AgentPool, PoolAgent
from fedcascade.service.protocol import wire
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.contract import Store, add_agent
from fedcascade.testing.stores import record_upload

from ..helpers import CuttableTransport, RunningService, serve_in_process

D = 3
OURS = POLICIES["population"]
TALKATIVE = replace(OURS, trigger=Always())


class LossyTransport(CuttableTransport):
    """Loses the replies to the next enrolments, after the server has answered them."""

    losses = 1

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        reply = super().send(method, path, body, headers)
        if path.startswith(wire.ENROLMENTS) and self.losses:
            self.losses -= 1
            raise ConnectionError("the reply was lost")
        return reply


class OlderTransport(CuttableTransport):
    """Speaks to a server from before there was a download in a welcome: it does not look at the query."""

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        return super().send(method, path.partition("?")[0], body, headers)


def fill_server(running: RunningService, agents: int = 6, rounds: int = 80) -> None:
    """Let agents of two kinds speak."""
    random = np.random.default_rng(3)

    def record(store: Store, state: ServerState) -> None:
        for number in range(agents):
            agent, total = add_agent(store, random.bytes(32), 0.0), Statistics.zero(D)
            for row in round_to_grid(random.normal(size=(rounds, D)) / 4):
                total = total.observe(row[None], 0 if row[number % 2] > 0 else None)
            record_upload(store, state, Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=total), number)

    assert running.writer is not None
    running.writer.submit(record).result()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db", policy=OURS) as service:
        fill_server(service)
        yield service


def get_state(running: RunningService) -> ServerState:
    assert running.writer is not None
    assert running.writer.state is not None
    return running.writer.state


def get_told(running: RunningService) -> Statistics:
    """The published prior."""
    prior = get_state(running).publication.prior
    assert prior is not None
    return wire.unpack_statistics(prior.numbers, (0, 0, 0), D)


def get_prior(agent: PoolAgent) -> Statistics:
    """What an agent took over from the server, before any upload of its own."""
    assert agent.memory.state.local.own is not None
    data = agent.memory.state.local.own
    return Statistics(data.others_gram, data.others_moment, 0, 0, 0)


def assert_same(first: Statistics, second: Statistics) -> None:
    assert wire.pack_numbers(first) == wire.pack_numbers(second)
    assert (first.count, first.clicks, first.rounds) == (second.count, second.clicks, second.rounds)


def test_a_newcomer_decides_with_what_is_known_of_anybody_also_after_a_restart(
    running: RunningService, tmp_path: Path
) -> None:
    token, path = running.operator.create_tokens()[0], str(tmp_path / "agent.db")
    with connect("", store=path, token=token, policy=TALKATIVE, min_observations=0,
                 transport=CuttableTransport(running)) as agent:  # fmt: skip
        assert agent.memory.has_prior
        assert_same(get_prior(agent), get_told(running))
        assert agent.recommend(np.eye(D), 2).items.tolist() != [2]
        assert agent.estimate[:2].min() > agent.estimate[2]
    with connect("", store=path, policy=TALKATIVE, min_observations=0, transport=CuttableTransport(running)) as agent:
        assert agent.memory.has_prior
        agent.feedback(agent.recommend(np.eye(D), 1), 0)
        assert agent.flush(20), agent.trouble
        assert not agent.memory.has_prior  # its own data are in the answer now
        assert agent.memory.state.local.download.statistics.rounds >= 1


def test_a_welcome_changes_nothing_of_the_server(running: RunningService) -> None:
    """Nothing of it is logged, so a replay has the same bits; until somebody speaks it is the same for everybody."""
    before, position = get_state(running).dump(), get_state(running).position
    tokens = running.operator.create_tokens(3)
    welcomes = [enrol_agent(running.transport, token, SigningKey.generate()) for token in tokens]
    assert len({welcome.agent for welcome in welcomes}) == 3
    for welcome in welcomes:
        assert isinstance(welcome.prior, wire.PriorMessage)
        assert_same(unpack_answer(welcome.prior, D), get_told(running))
        assert (welcome.prior.system_rounds, welcome.prior.agents) == (480, 6)
    assert (get_state(running).dump(), get_state(running).position) == (before, position)

    def replay(store: Store, _: ServerState) -> bytes:
        return replay_log(store, OURS, D, ServerState(OURS, D)).dump()

    assert running.writer is not None
    assert running.writer.submit(replay).result() == before


def test_a_welcome_whose_reply_was_lost_comes_again(running: RunningService, tmp_path: Path) -> None:
    transport, token = LossyTransport(running), running.operator.create_tokens()[0]
    path = str(tmp_path / "agent.db")
    with pytest.raises(ConnectionError):
        connect("", store=path, token=token, transport=transport)
    with connect("", store=path, transport=transport) as agent:
        assert agent.memory.has_prior
        assert running.operator.fetch_overview().enrolled == 7


def test_a_process_that_dies_after_enrolment_has_kept_the_welcome(running: RunningService, tmp_path: Path) -> None:
    path, token = str(tmp_path / "agent.db"), running.operator.create_tokens()[0]
    with AgentPool("", store=path, tokens=[token], transport=CuttableTransport(running)) as pool:
        # And then nothing more happens in this process.
        welcome = ServerLink(CuttableTransport(running)).enrol(pool.get("").memory)
    with connect("", store=path, transport=CuttableTransport(running)) as agent:
        assert (agent.memory.has_prior, agent.id) == (True, welcome.agent)


def test_an_agent_with_answers_keeps_them_when_it_enrols_anew(running: RunningService, tmp_path: Path) -> None:
    """One that was revoked has data of its own, which count for more than what is known of anybody."""
    first, second = running.operator.create_tokens(2)
    policy = replace(POLICIES["fedc3ucb-h"], trigger=Always())
    with connect("", store=str(tmp_path / "agent.db"), token=first, policy=policy, min_observations=0,
                 transport=CuttableTransport(running), pauses=(0.005, 0.05)) as agent:  # fmt: skip
        agent.feedback(agent.recommend(np.eye(D), 1), 0)
        assert agent.flush(20), agent.trouble
        known = agent.memory.state.local.download.statistics
        running.operator.revoke(agent.id)
        agent.memory.put({"token": second.encode()})
        transport = agent.client.transport
        assert isinstance(transport, CuttableTransport)
        ServerLink(transport).enrol(agent.memory, new_key=True)
        agent.memory.load()
        assert_same(agent.memory.state.local.download.statistics, known)


def test_an_agent_that_has_spoken_is_not_welcomed_again(running: RunningService) -> None:
    key, token = SigningKey.generate(), running.operator.create_tokens()[0]
    agent = enrol_agent(running.transport, token, key).agent
    assert isinstance(enrol_agent(running.transport, token, key).prior, wire.PriorMessage)

    def speak(store: Store, state: ServerState) -> None:
        own = Statistics.zero(D).observe(np.eye(1, D, dtype=np.float32), 0)
        record_upload(store, state, Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=own), 99)

    assert running.writer is not None
    running.writer.submit(speak).result()
    assert enrol_agent(running.transport, token, key).prior is msgspec.UNSET


def test_older_agents_are_sent_nothing_that_they_do_not_know_and_older_servers_are_understood(
    running: RunningService, tmp_path: Path
) -> None:
    first, second = running.operator.create_tokens(2)
    older = OlderTransport(running)
    assert enrol_agent(older, first, SigningKey.generate()).prior is msgspec.UNSET
    with connect("", store=str(tmp_path / "agent.db"), token=second, transport=older) as agent:
        assert not agent.memory.has_prior
        assert not agent.estimate.any()


@pytest.mark.parametrize(("min_others", "is_told"), [(2, True), (3, False)])
def test_a_prior_is_of_twice_as_many_agents_as_an_answer_needs(tmp_path: Path, min_others: int, is_told: bool) -> None:
    """Six agents have uploaded: a prior needs 2 (min_others + 1) of them."""
    policy = guard_policy(OURS).with_constants(min_others=min_others)
    with serve_in_process(tmp_path / "store.db", policy=policy) as running:
        fill_server(running)
        welcome = enrol_agent(running.transport, running.operator.create_tokens()[0], SigningKey.generate())
        assert isinstance(welcome.prior, wire.PriorMessage) is is_told


def test_agents_of_a_pool_begin_with_what_the_last_one_of_them_was_told(
    running: RunningService, tmp_path: Path
) -> None:
    """They need neither a token nor the server for that; but it must run on the same terms."""
    transport, path = CuttableTransport(running), str(tmp_path / "agents.db")
    with AgentPool("", store=path, tokens=running.operator.create_tokens(2), transport=transport) as pool:
        early = pool.get("early")
        assert not early.memory.has_prior  # nobody of the pool has enrolled
        assert pool.enrol("first").memory.has_prior
    transport.up = False
    with AgentPool("", store=path, transport=transport) as pool:
        visitor = pool.get("visitor")
        assert (visitor.memory.has_prior, visitor.id) == (True, 0)
        assert_same(get_prior(visitor), get_told(running))
        assert pool.get("early").memory.has_prior
        pool._link.terms = msgspec.structs.replace(visitor.memory.state.enrolment.terms, terms_id="others")
        assert not pool.get("other").memory.has_prior


def test_what_nobody_can_decide_with_is_left_out(running: RunningService, tmp_path: Path) -> None:
    """A broken or hostile server cannot keep an agent from its work."""
    nan, wide = np.full((D, D), np.nan), -10.0 * np.eye(D)
    for number, gram in enumerate((nan, wide)):
        broken = wire.PriorMessage(
            count=0, clicks=0, rounds=0, system_rounds=1, agents=1,
            numbers=wire.pack_numbers(Statistics(gram, np.zeros(D), 0, 0, 0)),
        )  # fmt: skip

        class BrokenTransport(CuttableTransport):
            def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
                reply = super().send(method, path, body, headers)
                if not path.startswith(wire.ENROLMENTS):
                    return reply
                welcome = msgspec.msgpack.decode(reply.content, type=wire.EnrolmentAnswer)
                told = msgspec.structs.replace(welcome, prior=broken)  # noqa: B023 (it is used in this turn)
                return Response(reply.status_code, content=msgspec.msgpack.encode(told))

        token = running.operator.create_tokens()[0]
        with connect("", store=str(tmp_path / f"{number}.db"), token=token,
                     transport=BrokenTransport(running)) as agent:  # fmt: skip
            assert not agent.memory.has_prior
            assert agent.recommend(np.eye(D), 1).items.size == 1


def test_an_agent_goes_on_with_its_own_data_where_a_ridge_makes_nothing_of_the_last_download(
    running: RunningService, tmp_path: Path
) -> None:
    """What is told under one lambda may be no statistics under a smaller one, which the operator chooses later."""
    path, token = str(tmp_path / "agent.db"), running.operator.create_tokens()[0]
    with connect("", store=path, token=token, transport=CuttableTransport(running)) as agent:

        def follow(lambda_: float) -> None:
            terms = agent.memory.state.enrolment.terms
            constants = terms.constants | {"lambda_": lambda_}
            agent.memory.follow(msgspec.structs.replace(terms, constants=constants, terms_id=str(lambda_)))

        prior = wire.PriorMessage(
            count=0, clicks=0, rounds=0, system_rounds=1, agents=1,
            numbers=wire.pack_numbers(Statistics(-3.5 * np.eye(D), np.ones(D), 0, 0, 0)),
        )  # fmt: skip
        follow(4.0)
        agent.memory.update(lambda state: (take_prior(agent.memory.policy, state, prior), None))
        assert agent.memory.has_prior
        follow(1.0)
        assert not agent.memory.has_prior
        assert agent.recommend(np.eye(D), 1).items.size == 1
