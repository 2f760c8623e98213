"""The commands that upgrade a store, and export the data of an agent."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from fedcascade.cli import main
from fedcascade.service.store.open import open_store, open_unmigrated

from ..service.store.migrations import NEXT
from ..service.store.test_upgrades import newer as newer
from ..service.store.test_upgrades import recorded as recorded


def test_the_command_checks_an_upgrade_and_then_does_it(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{recorded}"
    main(["upgrade", url, "--check"])
    assert "with the same terms; migrations to do: 0" in capsys.readouterr().out
    request.getfixturevalue("newer")
    monkeypatch.setattr("fedcascade.service.store.sql.MIGRATIONS", NEXT)
    before = recorded.read_bytes()
    main(["upgrade", url, "--check"])
    assert "migrations to do: 1" in capsys.readouterr().out
    assert recorded.read_bytes() == before
    main(["upgrade", url])
    assert "migrations done: 1" in capsys.readouterr().out
    main(["upgrade", url])
    assert "migrations done: 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        ({"policy": "of-tomorrow", "constants": {}}, "unknown policy 'of-tomorrow'"),
        ({"policy": "fedlinucb", "constants": {"wisdom": "2"}}, "served with wisdom, which this version does not have"),
    ],
)
def test_an_upgrade_is_refused_in_one_line(
    recorded: Path, terms: dict[str, object], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{recorded}"
    with closing(open_store(url)) as store, store.transaction():
        store.set_setting("terms", json.dumps({"dimension": 3, **terms}))
    before = recorded.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        main(["upgrade", url])
    assert line in capsys.readouterr().err
    assert recorded.read_bytes() == before


def test_a_missing_store_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    assert open_unmigrated(url) is None
    with pytest.raises(SystemExit, match="2"):
        main(["upgrade", url])
    assert "there is no store" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_all_that_is_held_of_an_agent_is_printed(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{recorded}"
    with closing(open_store(url)) as store:
        agent = store.list_agents(0, 1).records[0].agent
        totals = store.sum_uploads(agent)
    main(["export", str(agent), "--store", url])
    held = json.loads(capsys.readouterr().out)
    [row] = held["agent"]
    assert (row["id"], row["enrolled"]) == (agent, "1970-01-01T00:00:01.000+00:00")
    assert sum(upload["uploads"] for upload in held["upload"]) == totals.uploads
    assert sum(upload["rounds"] for upload in held["upload"]) == totals.rounds
    for upload in held["upload"]:
        gram = upload["numbers"]["gram"]
        assert sum(gram[place][place] for place in range(3)) == upload["count"]  # of unit vectors
    assert held["journal"]
    assert all(row["at"].startswith("1970-01-") for row in held["journal"])
    with pytest.raises(SystemExit, match="2"):
        main(["export", "17", "--store", url])
    assert "holds nothing of agent 17" in capsys.readouterr().err
