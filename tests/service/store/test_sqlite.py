"""The embedded store keeps the contract, opens databases of older versions, and forgets for real."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.state import caught_up
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import MIGRATIONS
from fedcascade.testing.stores import StoreContract, entry


class TestSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open(self) -> Store:
        return open_store(f"sqlite:///{self.path}")

    def test_commits_reach_the_disk(self) -> None:
        store = self.open()
        assert store.row("PRAGMA journal_mode")[0] == "wal"  # type: ignore[attr-defined]
        assert store.row("PRAGMA synchronous")[0] == 2  # type: ignore[attr-defined]
        store.close()

    def test_nobody_else_may_read_the_file(self) -> None:
        self.open().close()
        assert self.path.stat().st_mode & 0o077 == 0

    def test_nothing_of_a_forgotten_agent_is_left_in_any_file(self) -> None:
        store = self.open()
        secret = b"a secret that must not stay, anywhere" * 3
        with store.transaction():
            agent = store.add_agent(b"k" * 32, 1.0)
            store.append(entry(1, agent, 1), secret)
        assert any(secret in path.read_bytes() for path in self.path.parent.iterdir())
        with store.transaction():
            store.forget_agent(agent, 2)
        store.purge_deleted_rows()
        assert not any(secret in path.read_bytes() for path in self.path.parent.iterdir())
        store.close()

    def test_a_database_from_the_future_is_refused(self) -> None:
        store = self.open()
        with store.transaction():
            store.run("INSERT INTO migration (number) VALUES (?)", len(MIGRATIONS) + 1)  # type: ignore[attr-defined]
        store.close()
        with pytest.raises(ValueError, match="newer fedcascade"):
            self.open()


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open the store"):
        open_store(f"sqlite:///{tmp_path}/missing/store.db")


def test_a_database_of_an_older_version_opens_with_all_that_it_held(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    shutil.copy(Path(__file__).parent / "assets" / "migration-1.db", old)
    store = open_store(f"sqlite:///{old}")
    assert [one.position for one in store.read_entries(after=0)] == [1, 2, 3, 4, 5, 6]
    assert store.read_answer(4) == b"answer 4"
    assert store.count_agents() == 2
    assert [(row.position, row.at) for row in store.read_exchanges(0, 9)] == [(position, 0) for position in range(1, 7)]
    with store.transaction():
        fold = caught_up(store, POLICIES["fedc3ucb-h"], 3)
        assert np.diag(fold.total().gram).tolist() == [2.0, 2.0, 2.0]
        store.append(entry(7, 1, 9), b"new")
        store.forget_agent(2, 8)
    assert store.row("SELECT max(number) FROM migration")[0] == len(MIGRATIONS)  # type: ignore[attr-defined]
    store.close()
    open_store(f"sqlite:///{old}").close()
