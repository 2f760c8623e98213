"""A URL opens the store of its scheme, also one that another package offers; any other is refused in one line."""

from pathlib import Path

import pytest

from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import open_sqlite


def open_shelf(url: str) -> Store:
    """The function that another package offers for URLs such as ``shelf://FILE``."""
    return open_sqlite(url.removeprefix("shelf://"))


@pytest.fixture
def _shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "shelf-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n", encoding="utf-8")
    (package / "entry_points.txt").write_text(f"[fedcascade.stores]\nshelf = {__name__}:open_shelf\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_shelf")
def test_a_store_of_another_package_is_found_by_its_scheme(tmp_path: Path) -> None:
    store = open_store(f"shelf://{tmp_path}/store.db")
    assert store.list_agents(0, 0).enrolled == 0
    store.close()


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:store.db", "store.db", ""])
@pytest.mark.usefixtures("_shelf")
def test_an_unknown_scheme_is_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(ValueError, match=r"^a store must be .* sqlite, postgresql, postgres, shelf; got '.*'$"):
        open_store(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://store.db"])
def test_a_sqlite_address_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="a SQLite store must look like"):
        open_store(url)


ADDRESSES = ["postgresql://me:secret@[junk", "postgresql://me:secret@127.0.0.1:1/x", "mysql://me:secret@x"]


@pytest.mark.parametrize("url", ADDRESSES)
def test_no_message_holds_the_password_of_a_store(url: str) -> None:
    with pytest.raises(ValueError, match="store") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
