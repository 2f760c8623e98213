"""``fedcascade data``: logs are described, and click models compared."""

import json
from pathlib import Path

import pytest
from click_model_recovery import simulate_clicks

from fedcascade.cli import main
from fedcascade.data.logs import write_log


def test_a_log_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks\na,1 2,0\n")
    main(["data", "describe", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["lists"] == 1
    main(["data", "describe", str(path)])
    assert "possible uses" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["data", "describe", str(path), "--column", "items=shown"])
    assert "has no column shown for items" in capsys.readouterr().err


def test_a_broken_log_is_told_from_ratings_by_its_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text('"user", items ,clicks\nann,a b,0\nb\0b,a b,0\n')
    with pytest.raises(SystemExit):
        main(["data", "describe", str(path)])
    assert capsys.readouterr().err == (
        f"fedcascade: {path}, line 3 holds a NUL byte: it is not UTF-8 text, or was cut by a crash\n"
    )


def test_click_models_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.parquet"
    write_log(path, simulate_clicks("pbm", seed=3, lists=5_000))
    main(["data", "clicks", str(path), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["models"][0]["model"] == "pbm"
    main(["data", "clicks", str(path)])
    assert "perplexity" in capsys.readouterr().out
