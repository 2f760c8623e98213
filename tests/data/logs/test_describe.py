"""What a log holds and what it can be used for."""

import json
from pathlib import Path

import pytest

from fedcascade.cli import main
from fedcascade.data.logs import read_log
from fedcascade.data.logs.describe import describe_log


def test_facts_and_uses(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks,propensity\na,1 2,0,0.5\na,1 2,0,0.5\nb,2 1,0 1,0.25\nb,2,,0.5\n")
    facts = describe_log(read_log(path))
    assert (facts["lists"], facts["users"], facts["items"], facts["lengths"]) == (4, 2, 2, [1, 2])
    assert (facts["clicked"], facts["several_clicks"], facts["repeated_rows"]) == (0.75, 0.25, 1)
    assert facts["positions"][1] == {"position": 1, "shown": 3, "clicked": 1 / 3}
    assert facts["least_propensity"] == 0.25
    assert facts["uses"]["ips, snips"] == "yes"
    assert facts["uses"]["rips"] == "no: it has no propensities of positions"
    assert facts["uses"]["warm start"].startswith("no: it has no features")


def test_the_command_knows_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks\na,1 2,0\n")
    main(["data", "describe", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["lists"] == 1
    main(["data", "describe", str(path)])
    assert "what it can be used for" in capsys.readouterr().out
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
