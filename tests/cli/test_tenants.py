"""Files of tenants that a server refuses: one line, exit code 2, and nothing is written."""

from pathlib import Path

import pytest

from fedcascade.cli import main

TOKEN = "a-token-of-a-tenant-in-tests"
TWO = "[home]\n{0}\n[search]\n{0}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "names no tenant"),
        ("[Home]", "a tenant's name must match"),
        ("[home]\nport = 1", "tenant 'home' in"),
        ("[home]\nset = 3", "set (dict)"),
        ("[home]\nretain = 'x'", "retain (float)"),
        ("[home]\ndimension = true", "dimension (int)"),
        ("[home]\ndimension = 0", "dimension must be"),
        ("home = 3", "must be a table of"),
        ("[home", "cannot read the tenants"),
        ("[home]\npolicy = 'none'", "unknown policy 'none'"),
        (TWO.format("store = 'sqlite:///one.db'"), "share one store"),
        (TWO.format("operator_token = 'one.token'"), "share one operator_token"),
        ("[home]\noperator_token = 'open.token'", "others can read it: run chmod o-rwx"),
    ],
)
def test_bad_tenants_get_one_line(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tenants.toml").write_text(text, encoding="utf-8")
    Path("open.token").write_text(TOKEN, encoding="ascii")
    Path("open.token").chmod(0o644)
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--tenants", "tenants.toml", "--port", "0"])
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["open.token", "tenants.toml"]


def test_a_refused_tenant_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tenant before it was opened already."""
    path = tmp_path / "tenants.toml"
    tables = [f"[{name}]\noperator_token = '{tmp_path}/{name}.token'\n" for name in ("home", "search")]
    path.write_text(f"{tables[0]}{tables[1]}store = 'sqlite:///{tmp_path}/tenants.toml'", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--tenants", str(path), "--port", "0", "--store", f"sqlite:///{tmp_path}/store.db"])
    assert "file is not a database" in capsys.readouterr().err
