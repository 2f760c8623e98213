"""A store of an earlier version: a refused upgrade leaves its bytes, and new constants mean what was before them."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedcascade.constants import constant
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Determinant
from fedcascade.service.server.serve import ServerSettings, open_writer
from fedcascade.service.server.state import describe_origin
from fedcascade.service.server.tenure import describe_terms
from fedcascade.service.store import open as opening
from fedcascade.service.store import sqlite

from .migrations import NEXT
from .record_store import POLICY

RECORDED = Path(__file__).parent / "recorded" / "store-1.sql"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A store that an earlier version has served."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(RECORDED.read_text(encoding="utf-8"))
        connection.execute("PRAGMA journal_mode = WAL")
    open_writer(ServerSettings(store=f"sqlite:///{path}", policy=POLICY, dimension=3)).close()
    return path


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A next version of fedcascade, with one migration more."""

    def open_newer(url: str, migrations: object = NEXT) -> sqlite.SqliteStore:
        return sqlite.open_sqlite(url.removeprefix("sqlite:///"), NEXT if migrations is not None else None)

    monkeypatch.setitem(opening.OPENERS, "sqlite", open_newer)


@pytest.mark.usefixtures("newer")
def test_a_refused_upgrade_leaves_the_bytes_of_the_store(recorded: Path) -> None:
    settings = ServerSettings(store=f"sqlite:///{recorded}", policy=POLICY, dimension=3)
    before = recorded.read_bytes()
    with pytest.raises(ValueError, match=r"served with alpha_d 0\.05, not with alpha_d 0\.5"):
        open_writer(replace(settings, policy=POLICY.with_constants(alpha_d=0.5)))
    with pytest.raises(ValueError, match="uploads of dimension 3"):
        open_writer(replace(settings, dimension=4, take_over=True))
    assert recorded.read_bytes() == before
    open_writer(settings).close()
    with closing(sqlite.open_sqlite(str(recorded), None)) as store:
        assert store.find_version() == len(NEXT)


@dataclass(frozen=True, kw_only=True)
class Patient(Determinant):
    """A trigger of a later version, with one constant more."""

    patience: int = constant(0, "Rounds to wait", added=True)


def test_a_new_constant_at_its_default_is_no_change_of_terms() -> None:
    later = replace(POLICIES["fedlinucb"], trigger=Patient(alpha_c=POLICIES["fedlinucb"].constants()["alpha_c"]))
    assert "patience" in later.constants()
    assert describe_terms(later, 3) == describe_terms(POLICIES["fedlinucb"], 3)
    assert describe_origin(later, 3) == describe_origin(POLICIES["fedlinucb"], 3)
    changed = later.with_constants(patience=5)
    assert describe_terms(changed, 3)["constants"]["patience"] == "5"
