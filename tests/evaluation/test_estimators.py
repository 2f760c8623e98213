"""Estimators against a slow transcription of the published formulas, against the truth, and refusals."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from estimator_study import LOGGERS, Shape, World, evaluate_log, simulate_log

from fedcascade.evaluation.estimators import ESTIMATORS, gather_evidence
from fedcascade.evaluation.evaluate import EvaluationOptions, evaluate_frozen, find_refusals
from fedcascade.evaluation.rating import rate_log
from fedcascade.learning.click_log import ClickLog

SHAPE = Shape(items=5, length=3, users=20, lists=4)


class SlowTarget:
    """Plackett-Luce by its definition, and the model of attraction, item by item."""

    def __init__(self, world: World, model: np.ndarray) -> None:
        policy = world.make_policy()
        self.scores = (world.items @ policy.theta[0]).tolist()
        self.temperature = policy.level
        self.weights = np.clip(world.items @ model, 0.0, 1.0).tolist()
        self.length = policy.length

    def chances(self, above: list[int]) -> dict[int, float]:
        """pi_e(a | a_1..a_(k-1)) of every item that is left."""
        left = [item for item in range(len(self.scores)) if item not in above]
        strengths = {item: np.exp(self.scores[item] / self.temperature) for item in left}
        return {item: strength / sum(strengths.values()) for item, strength in strengths.items()}

    def list_chance(self, chosen: list[int]) -> float:
        chance = 1.0
        for position, item in enumerate(chosen):
            chance *= self.chances(chosen[:position])[item]
        return chance

    def value(self, items: list[int]) -> float:
        """Q(a_1..a_k): the reward from position k on, with average items below."""
        *above, item = items
        missed = 1.0
        for listed in above:
            missed *= 1.0 - self.weights[listed]
        average = sum(chance * self.weights[other] for other, chance in self.chances(above).items())
        below = 1.0 - (1.0 - average) ** (self.length - len(items))
        return float(missed * (self.weights[item] + (1.0 - self.weights[item]) * below))

    def model_value(self) -> float:
        """What the model expects of the target, over all lists."""
        total = 0.0
        for chosen in permutations(range(len(self.scores)), self.length):
            missed = np.prod([1.0 - self.weights[item] for item in chosen])
            total += self.list_chance(list(chosen)) * (1.0 - missed)
        return float(total)


def slow_estimates(log: ClickLog, target: SlowTarget) -> dict[str, float]:
    """The published formulas, list by list."""
    assert log.propensities is not None
    sums = dict.fromkeys(("ips", "snips", "rips", "cascade-dr", "weights"), 0.0)
    for items, clicks, chances in zip(log.items.tolist(), log.clicks.tolist(), log.propensities.tolist(), strict=True):
        weights = [1.0]
        for position in range(len(items)):
            ratio = target.chances(items[:position])[items[position]] / chances[position]
            weights.append(weights[-1] * ratio)
        reward = float(any(clicks))
        sums["ips"] += weights[-1] * reward
        sums["weights"] += weights[-1]
        for position, click in enumerate(clicks):
            sums["rips"] += weights[position + 1] * click
            expected = sum(
                chance * target.value([*items[:position], item])
                for item, chance in target.chances(items[:position]).items()
            )
            own = target.value(items[: position + 1])
            sums["cascade-dr"] += weights[position + 1] * (click - own) + weights[position] * expected
    lists = len(log)
    return {
        "ips": sums["ips"] / lists,
        "snips": sums["ips"] / sums["weights"],
        "rips": sums["rips"] / lists,
        "cascade-dr": sums["cascade-dr"] / lists,
    }


@pytest.mark.parametrize("logger", LOGGERS)
def test_numbers_are_those_of_the_published_formulas(logger: str) -> None:
    world = World(SHAPE, seed=3)
    log = simulate_log(world, logger, seed=4)
    model = world.other[None] * 0.7
    fast = {row.estimator: row.value for row in evaluate_log(world, log, model).estimates[1:]}
    slow = slow_estimates(log, SlowTarget(world, model[0]))
    for name, value in slow.items():
        assert fast[name] == pytest.approx(value, rel=1e-9), name


def test_the_direct_method_averages_the_model_over_the_targets_lists() -> None:
    world = World(SHAPE, seed=3)
    log = simulate_log(world, "uniform", seed=4)
    tiled: dict[str, Any] = {
        name: None if column is None else np.tile(column, (50,) + (1,) * (column.ndim - 1))
        for name, column in vars(log).items()
    }
    log = ClickLog(**tiled)
    model = world.other[None] * 0.7
    ratings = rate_log(world.make_policy(), model, log, world.items)
    assert ratings.direct.mean() == pytest.approx(SlowTarget(world, model[0]).model_value(), abs=0.01)


def test_replay_accepts_as_often_as_the_target_shows_a_list() -> None:
    world = World(Shape(items=3, length=2, users=10, lists=200), seed=3)
    log = simulate_log(world, "uniform", seed=4)
    ratings = rate_log(world.make_policy(), world.taste[None], log, world.items)
    draws = np.random.default_rng(0).random(len(log))
    evidence = gather_evidence(log, ratings, draws)
    slow = SlowTarget(world, world.taste)
    expected = sum(slow.list_chance(items) for items in log.items.tolist())
    assert abs(int(evidence.accepted.sum()) - expected) < 4.5 * np.sqrt(expected)
    above, below = ESTIMATORS["replay"].sum_up(evidence)
    assert above.sum() == (evidence.accepted & log.clicks.any(axis=1)).sum()
    assert below.sum() == evidence.accepted.sum()


def test_lists_of_other_offers_and_lengths_are_rated_alike() -> None:
    """A log whose rows name their offers, with inline features, gives what a table gives."""
    world = World(SHAPE, seed=3)
    log = simulate_log(world, "warm", seed=4)
    order = np.random.default_rng(1).permutation(SHAPE.items)
    inline = ClickLog(
        users=log.users, items=log.items, clicks=log.clicks, propensities=log.propensities,
        offered=np.tile(order, (len(log), 1)), features=np.tile(world.items[order], (len(log), 1, 1)),
    )  # fmt: skip
    model = world.other[None]
    table = rate_log(world.make_policy(), model, log, world.items)
    own = rate_log(world.make_policy(), model, inline, None)
    assert np.allclose(table.target, own.target)
    assert np.allclose(table.baseline, own.baseline)
    assert np.allclose(table.expected, own.expected)


def test_what_a_log_lacks_is_said() -> None:
    world = World(SHAPE, seed=3)
    log = simulate_log(world, "sharp", seed=4)
    bare = ClickLog(users=log.users, items=log.items, clicks=log.clicks)
    refusals = find_refusals(bare, "any")
    assert set(refusals) == {"ips", "snips", "rips", "cascade-dr"}
    assert refusals["ips"] == "this log has no propensities: only replay and the direct method apply"
    whole = ClickLog(users=log.users, items=log.items, clicks=log.clicks, propensity=log.list_propensity)
    assert set(find_refusals(whole, "any")) == {"rips", "cascade-dr", "replay"}
    assert "not chosen uniformly" in find_refusals(log, "any")["replay"]
    assert "first click" in find_refusals(log, "clicks")["dm"]
    options = EvaluationOptions(estimators=["ips"])
    with pytest.raises(ValueError, match=r"ips: this log has no propensities: only replay and the direct method apply"):
        evaluate_frozen(iter([(0, bare)]), [world.make_policy()], world.taste[None], world.items, options)


def test_replay_is_refused_where_offers_were_not_chosen_from_uniformly() -> None:
    log = ClickLog(
        users=np.zeros(2, np.int64), items=np.array([[0, 1], [2, -1]]), clicks=np.zeros((2, 2), bool),
        propensities=np.array([[1 / 3, 1 / 2], [1 / 4, 1.0]]), offered=np.array([[0, 1, 2, -1], [0, 1, 2, 3]]),
    )  # fmt: skip
    assert "replay" not in find_refusals(log, "any")
    sharp = ClickLog(**vars(log) | {"propensities": np.array([[0.5, 0.5], [0.25, 1.0]])})
    assert "not chosen uniformly" in find_refusals(sharp, "any")["replay"]


def test_few_users_get_no_interval() -> None:
    world = World(Shape(items=4, length=2, users=5, lists=50), seed=3)
    for row in evaluate_log(world, simulate_log(world, "uniform", seed=1), world.taste[None]).estimates:
        assert np.isnan(row.low)
        assert np.isnan(row.high)


@pytest.mark.long
def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    from estimator_study import run_study, summarise

    rows = [row for logs, seed in ((200, 1), (400, 2), (400, 3)) for row in run_study(logs, seed)]
    table = summarise(rows)
    for name in ("ips", "snips", "rips", "cascade-dr"):
        assert 0.92 <= table[name][1] <= 0.98, (name, table[name])
