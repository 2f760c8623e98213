"""A run as the CUDA engine's host sees it: when agents have to stop, and how long they are silent."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import arrays, kernels
from fedcascade.simulation.scenario import Scenario
from fedcascade_cuda.runs import DeviceRun, find_auxiliary_rounds


def test_auxiliary_rounds_are_those_in_which_the_trigger_fires() -> None:
    world = Synthetic(users=2, clusters=1, dimension=3, items=5, seed=3)
    run = DeviceRun(Scenario(world, POLICIES["fedc3ucb-h"], 400, TopK(length=2)), ImmediateExecutor())
    state, policy = arrays.select_agent(run.driver.states, 0), run.driver.compiled_policy
    state.numbers[arrays.SQUARED_WIDTHS] = -np.inf  # the determinant is not looked at
    rounds = np.arange(1, 401)
    fired = [
        t
        for t in rounds.tolist()
        if kernels.find_trigger(world.seed, policy, state, run.scratch, t, t, 0) == arrays.AUXILIARY
    ]
    assert rounds[find_auxiliary_rounds(world.seed, 3.0, rounds)].tolist() == fired
    assert 10 < len(fired) < 200


def test_an_agent_is_silent_for_as_long_as_no_items_can_teach_it_enough() -> None:
    rng = np.random.default_rng(1)
    world = Synthetic(users=2, clusters=1, dimension=6, items=9, seed=3)
    run = DeviceRun(Scenario(world, POLICIES["no-auxiliary"], 100, TopK(length=3)), ImmediateExecutor())
    run.uploads.append((1, 1, arrays.DETERMINANT))
    data = rng.standard_normal((400, 6)) * [5, 3, 1, 1, 1, 0.2]
    ridge = Ridge(Statistics(data.T @ data, np.zeros(6), 400, 0, 400), 4.0)
    run.driver.load_ridge(0, ridge)
    silent = run.count_silent_rounds(0)
    worst = np.linalg.eigh(data.T @ data)[1][:, 0]  # the direction of which least is known
    buffer = Statistics(3 * silent * np.outer(worst, worst), np.zeros(6), 0, 0, 0)
    assert silent > 0
    assert ridge.growth(buffer) < run.stop_rule.level


class ImmediateExecutor(Executor):
    """An executor that runs what is submitted at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **options))
        return future
