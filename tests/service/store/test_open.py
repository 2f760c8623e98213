"""A URL opens the store of its scheme, also one that another package offers; any other is refused in one line."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from fedcascade.service.store import open as opening
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import open_sqlite


def open_shelf(url: str) -> Store:
    """The store that another package offers for ``shelf://FILE``."""
    return open_sqlite(url.removeprefix("shelf://"))


@pytest.fixture
def _shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoints([EntryPoint("shelf", f"{__name__}:open_shelf", opening.GROUP)])
    monkeypatch.setattr(opening, "entry_points", lambda *, group: offered.select(group=group))


@pytest.mark.usefixtures("_shelf")
def test_a_store_of_another_package_is_found_by_its_scheme(tmp_path: Path) -> None:
    store = open_store(f"shelf://{tmp_path}/store.db")
    assert store.count_agents() == 0
    store.close()


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:store.db", "store.db", ""])
@pytest.mark.usefixtures("_shelf")
def test_an_unknown_scheme_is_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(ValueError, match=r"^a store must be .* postgres, postgresql, shelf, sqlite; got '.*'$"):
        open_store(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://store.db"])
def test_a_sqlite_address_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="a SQLite store looks like"):
        open_store(url)
