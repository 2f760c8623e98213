"""From a log in a file to estimates, by the library and by the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from estimator_study import Shape, World, simulate_log

from fedcascade import POLICIES
from fedcascade.cli import main
from fedcascade.data.logs import read_log, write_log
from fedcascade.data.logs.items import read_items
from fedcascade.evaluation.evaluate import EvaluationOptions, evaluate
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.oracles import TopK

WORLD = World(Shape(items=6, length=2, users=30, lists=20), seed=5)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    log, table = tmp_path / "log.parquet", tmp_path / "items.csv"
    shown = simulate_log(WORLD, "uniform", seed=1)
    order = np.random.default_rng(0).permutation(len(shown))
    write_log(log, shown.select(order))
    rows = [f"{item}," + ",".join(str(x) for x in row) for item, row in enumerate(WORLD.items.tolist())]
    table.write_text("item,a,b,c,d\n" + "\n".join(rows) + "\n")
    return log, table


def test_estimates_lie_where_the_policies_are(files: tuple[Path, Path]) -> None:
    log = read_log(files[0], items=read_items(files[1]))
    policies = [POLICIES["population"].with_beta(0.0), POLICIES["oful"].with_beta(0.0)]
    found = evaluate(log, policies, TopK(length=2))
    values = {(row.policy, row.estimator): row for row in found.estimates}
    logged = values["logged", "average"]
    assert logged.lists == 300
    for policy in ("population", "oful"):  # a learned list beats a random one
        assert values[policy, "cascade-dr"].value > logged.value
        assert values[policy, "dm"].value > logged.value
        assert values[policy, "ips"].low < values[policy, "snips"].value < values[policy, "ips"].high + 0.2
    assert not found.refusals
    alone = evaluate(log, policies, TopK(length=2), options=EvaluationOptions(threads=1))
    assert repr(alone) == repr(found)  # NaN is not NaN


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown reward 'click': did you mean 'clicks'"):
        EvaluationOptions(reward="click")
    with pytest.raises(ValueError, match="resamples must be a whole number >= 1"):
        EvaluationOptions(resamples=0)


def test_the_command_prints_a_table_json_and_a_report(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--item-table", str(files[1]), "--resamples", "50", "--policy", "oful"]
    main(["evaluate", str(files[0]), *options, "--report", str(tmp_path / "report")])
    assert "95% interval" in capsys.readouterr().out
    page = (tmp_path / "report" / "evaluation.html").read_text()
    assert "cascade-dr" in page
    assert "<svg" in page
    main(["evaluate", str(files[0]), *options, "--json", "--estimators", "snips"])
    rows = json.loads(capsys.readouterr().out)["estimates"]
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
