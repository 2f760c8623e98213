"""Off-policy evaluation on the command line."""

import json
from pathlib import Path

import pytest
from estimator_study import simulate_log

from fedcascade.cli import main
from fedcascade.data.logs import write_log
from fedcascade.learning.click_log import ClickLog
from fedcascade.saved import load_warm, save_warm

from ..evaluation.test_evaluate import WORLD
from ..evaluation.test_evaluate import files as files
from ..evaluation.test_fit import log as log


def test_the_command_prints_a_table_json_and_a_report(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--item-table", str(files[1]), "--resamples", "50", "--policy", "oful"]
    main(["evaluate", str(files[0]), *options, "--report", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    assert "95% interval" in printed
    assert "oful - logged" in printed
    assert "Believe cascade-dr" in printed
    page = (tmp_path / "report" / "evaluation.html").read_text()
    assert "cascade-dr" in page
    assert "<svg" in page
    main(["evaluate", str(files[0]), *options, "--json", "--estimators", "snips"])
    printed = capsys.readouterr().out
    rows, [difference] = (json.loads(printed)[name] for name in ("estimates", "differences"))
    assert (difference["policy"], difference["baseline"]) == ("oful", "logged")
    assert [row["estimator"] for row in rows] == ["average", "snips"]


def test_a_log_without_propensities_gets_no_wrong_number(
    tmp_path: Path, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = simulate_log(WORLD, "sharp", seed=1)
    bare = tmp_path / "bare.csv"
    write_log(bare, ClickLog(users=shown.users, items=shown.items, clicks=shown.clicks))
    options = ["--item-table", str(files[1]), "--resamples", "50", "--policy", "oful"]
    with pytest.raises(SystemExit):
        main(["evaluate", str(bare), *options, "--estimators", "ips"])
    error = capsys.readouterr().err
    assert error == "fedcascade: ips: this log has no propensities: only replay and the direct method apply\n"
    main(["evaluate", str(bare), *options])
    assert "only replay and the direct method apply" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", str(bare), "--policy", "oful"])
    assert "this log has no features: give a table of items" in capsys.readouterr().err


def test_the_command_fits_and_the_file_round_trips(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = log.with_name("warm.npz")
    main(["fit", str(log), "--out", str(out)])
    assert "4 lists of 3 users: 3 clicks" in capsys.readouterr().out
    state = load_warm(out)
    assert state.users == ("ann", "bob", "eve")
    again = log.with_name("again.npz")
    save_warm(again, state)
    assert again.read_bytes() == out.read_bytes()
    with pytest.raises(SystemExit):
        main(["fit", str(log), "--out", str(out)])
    assert "is already complete" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fit", str(log), "--policy", "async-linucb-am", "--out", str(log.with_name("none.npz"))])
    assert "async-linucb-am has a personal part, which a log cannot teach" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not a complete state file of fedcascade"):
        load_warm(log)
