"""A simulation leaves a log from which it can be told what it earned, and what others would."""

from pathlib import Path

import numpy as np

from fedcascade import POLICIES, Synthetic
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
