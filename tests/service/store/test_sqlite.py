"""The embedded store keeps the contract, migrates its database, and forgets for real."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcascade.service.server.state import replay_log
from fedcascade.service.store.contract import Store, add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sql import MIGRATIONS
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import StoreContract, make_entry, make_unit_upload, record_upload

from .migrations import NEXT, check_migrations
from .record_store import DAYS, POLICY

RECORDED = Path(__file__).parent / "recorded"


class TestSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open(self) -> Store:
        return open_store(f"sqlite:///{self.path}")

    def test_commits_reach_the_disk(self) -> None:
        store = open_sqlite(str(self.path))
        assert store.fetch_row("PRAGMA journal_mode")[0] == "wal"
        assert store.fetch_row("PRAGMA synchronous")[0] == 2
        store.close()

    def test_nobody_else_may_read_the_file(self) -> None:
        self.open().close()
        assert self.path.stat().st_mode & 0o077 == 0

    def test_nothing_of_a_forgotten_agent_is_left_in_any_file(self) -> None:
        store = self.open()
        secret = b"a secret that must not stay, anywhere" * 3
        with store.transaction():
            agent = add_agent(store, secret, 1.0)
            store.append(*make_entry(1, agent, 1))
        assert any(secret in path.read_bytes() for path in self.path.parent.iterdir())
        with store.transaction():
            store.forget_agent(agent, 2)
        store.run_maintenance(purge=True)
        assert not any(secret in path.read_bytes() for path in self.path.parent.iterdir())
        store.close()


def test_another_process_does_not_delete_the_log_under_a_store_that_this_one_opened_twice(tmp_path: Path) -> None:
    """Closing any descriptor of a file cancels this process's locks of it, also those of SQLite."""
    url = f"sqlite:///{tmp_path}/store.db"
    read = f"with closing(open_store({url!r})) as store: print(store.get_setting('name'))"
    program = f"from contextlib import closing\nfrom fedcascade.service.store.open import open_store\n{read}"
    with closing(open_store(url)) as store:
        for value in ("one", "two"):
            with store.transaction():
                store.set_setting("name", value)
            open_store(url).close()
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            assert done.stdout.strip() == value


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open the store"):
        open_store(f"sqlite:///{tmp_path}/missing/store.db")


def test_migrations_keep_the_data_and_do_not_go_back(tmp_path: Path) -> None:
    check_migrations(lambda migrations: open_sqlite(str(tmp_path / "store.db"), migrations))


@pytest.mark.parametrize("recorded", sorted(RECORDED.glob("*.sql")), ids=lambda path: path.stem)
def test_a_store_that_an_earlier_version_wrote_is_migrated(recorded: Path, tmp_path: Path) -> None:
    """Everything that it holds is what was written, a server goes on from it, and so does a later version."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(recorded.read_text())
    for more, migrations in enumerate((MIGRATIONS, NEXT)):
        with closing(open_sqlite(str(path), migrations)) as store:
            state, uploads = replay_log(store, POLICY, 3), [DAYS + more, DAYS, DAYS]
            assert store.verify()[0] == state.position == 43 + more
            agents = sorted(state.places, key=state.places.__getitem__)
            assert [state.get_statistics(agent).rounds for agent in agents] == uploads
            assert [store.sum_uploads(agent).last_sequence for agent in agents] == uploads
            assert np.array_equal(np.diag(state.sum_statistics().gram), uploads)
            actions = [record.action for record in store.read_audit()]
            assert actions == ["set the operator's token", "forgot", "folded"]
            with store.transaction():
                record_upload(store, state, make_unit_upload(agents[0], DAYS + more + 1, 0), more)
