"""A simulation leaves a log from which it can be told what it earned, and what others would."""

from pathlib import Path

import numpy as np
import pytest

from fedcascade import POLICIES, Synthetic
from fedcascade.cli import main
from fedcascade.data.logs import read_log
from fedcascade.evaluation.evaluate import EvaluationOptions, evaluate
from fedcascade.evaluation.simulated import iterate_simulated_log, write_simulated_log
from fedcascade.learning.click_log import concatenate
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.simulation import reference
from fedcascade.simulation.scenario import Scenario

WORLD = Synthetic(users=12, clusters=2, dimension=4, items=5, seed=1)


def test_a_log_says_what_the_run_earned(tmp_path: Path) -> None:
    oracle = EpsilonMixed(length=2, epsilon=1.0)
    trace = reference.simulate(Scenario(WORLD, POLICIES["fedind"], 400, oracle, keep_lists=True))
    log = concatenate(list(iterate_simulated_log(WORLD, trace, rounds=150)))
    assert len(log) == 400
    assert int(log.clicks.any(axis=1).sum()) == trace.reward
    assert int(log.count_looked().sum()) == trace.observations
    assert log.list_propensity is not None
    assert np.allclose(log.list_propensity, 1 / 20)
    write_simulated_log(tmp_path / "log.parquet", WORLD, trace)
    read = read_log(tmp_path / "log.parquet")
    assert (read.read().clicks == log.clicks).all()
    found = evaluate(
        read, [POLICIES["fedind"].with_beta(0.1)], TopK(length=2), options=EvaluationOptions(resamples=100)
    )
    values = {row.estimator: row.value for row in found.estimates}
    assert values["cascade-dr"] > values["average"]
    sums = LogSums(4)
    sums.add(log, None)
    assert sums.total().count == trace.observations


def test_the_command_writes_a_log_of_one_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    world = ["--users", "4", "--clusters", "2", "--dimension", "3", "--items", "5", "--rounds", "20"]
    main(
        [
            "run",
            *world,
            "--policy",
            "fedind",
            "--oracle",
            "epsilon",
            "--list-length",
            "2",
            "--engine",
            "reference",
            "--log",
            str(path),
        ]
    )
    assert len(read_log(path).read()) == 20
    with pytest.raises(SystemExit):
        main(["run", *world, "--policy", "fedind", "--policy", "oful", "--log", str(path)])
    assert "--log holds the lists of one system" in capsys.readouterr().err
    for refused, words in (("log.xlsx", "must end in one of .parquet, .csv, .jsonl"), ("no/log.csv", "no folder")):
        with pytest.raises(SystemExit):  # before the first round
            main(["run", *world[:-1], "1e12", "--policy", "fedind", "--log", str(tmp_path / refused)])
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", *world, "--policy", "fedind", "--engine", "cuda", "--log", str(path)])
    assert "leave out --engine cuda" in capsys.readouterr().err
