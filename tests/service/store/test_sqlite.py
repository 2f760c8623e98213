"""The embedded store keeps the contract, migrates its database, and forgets for real."""

from pathlib import Path

import pytest

from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import StoreContract, make_entry

from .migrations import check_conversion, check_migrations


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
            agent = store.add_agent(secret, 1.0)
            store.append(make_entry(1, agent, 1))
        assert any(secret in path.read_bytes() for path in self.path.parent.iterdir())
        with store.transaction():
            store.forget_agent(agent, 2)
        store.purge_deleted_rows()
        assert not any(secret in path.read_bytes() for path in self.path.parent.iterdir())
        store.close()


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open the store"):
        open_store(f"sqlite:///{tmp_path}/missing/store.db")


def test_migrations_keep_the_data_and_do_not_go_back(tmp_path: Path) -> None:
    check_migrations(lambda migrations: open_sqlite(str(tmp_path / "store.db"), migrations))


def test_a_store_of_the_first_layout_is_converted(tmp_path: Path) -> None:
    check_conversion(lambda migrations: open_sqlite(str(tmp_path / "store.db"), migrations))
