"""``fedcascade doctor`` says what is there, what is absent and what is broken; only the last is a failure."""

import json
from pathlib import Path

import pytest

import fedcascade
from fedcascade.cli import main
from fedcascade.numerics import code_cache


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, str]]:
    main(["doctor", "--json", *arguments])
    return {row["what"]: row for row in json.loads(capsys.readouterr().out)}


def test_it_knows_versions_cores_folder_and_extras(capsys: pytest.CaptureFixture[str]) -> None:
    found = examine(capsys)
    assert found["fedcascade"]["words"].startswith(fedcascade.__version__)
    assert {found[name]["state"] for name in ("Python", "numpy", "numba", "cores", "SQLite", "extra server")} == {
        "good"
    }
    assert Path(found["folder of compiled code"]["words"]).is_dir()
    assert found["GPU"]["state"] in {"good", "absent"}
    assert not any(row["state"] == "broken" for row in found.values())


def test_a_folder_of_compiled_code_that_cannot_be_had_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(code_cache.CodeCacheFiles, "_locator_classes", [])
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert "set NUMBA_CACHE_DIR" in " ".join(capsys.readouterr().out.split())
