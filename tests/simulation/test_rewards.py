"""Rewards of clicks in simulations, and feedback that comes late or in batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedcascade import Budget, PerCategory, TopK
from fedcascade.environments.options import Change, Turnover
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.policies import POLICIES, PRIVATE_POPULATION, Policy
from fedcascade.federation.triggers import Doubling
from fedcascade.learning.exploration import PlackettLuce
from fedcascade.simulation import reference
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.reference import show_list
from fedcascade.simulation.scenario import Delay, Scenario
from fedcascade.simulation.trace import Trace

SIZES: dict[str, Any] = {"users": 6, "clusters": 2, "dimension": 6, "items": 12}
VALUED = Synthetic(**SIZES, rewards="beta", seed=3)
PLAIN = Synthetic(**SIZES, seed=3)


class ClicksAlone(Synthetic):
    """The same users and values, but agents see clicks alone."""

    def draw_reward(self, round_: int, item: int, mean: float) -> float:
        return 1.0


@pytest.mark.parametrize("mean", [0.0, 0.07, 0.5, 0.83, 1.0])
def test_a_reward_has_its_mean_and_depends_on_round_and_item_alone(mean: float) -> None:
    drawn = np.array([VALUED.draw_reward(t, t % 12, mean) for t in range(1, 8_001)])
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert drawn.mean() == pytest.approx(mean, abs=4.5 * (drawn.std() + 1e-12) / 8_000**0.5)
    assert VALUED.draw_reward(7, 3, mean) == Synthetic(**SIZES, rewards="beta", seed=3).draw_reward(7, 3, mean)


def test_the_expected_reward_of_a_list_is_the_mean_of_its_rewards() -> None:
    features, items = VALUED.items(1), np.array([2, 7, 4])
    expected = show_list(VALUED, 1, 0, features, items)[2](items)
    drawn = np.array([show_list(VALUED, t, 0, features, items)[0].reward for t in range(1, 6_001)])
    assert drawn.mean() == pytest.approx(expected, abs=4.5 * drawn.std() / 6_000**0.5)


def test_clicks_and_items_are_those_of_the_environment_without_values() -> None:
    for t in range(1, 50):
        np.testing.assert_array_equal(VALUED.items(t), PLAIN.items(t))
        items = np.array([1, 5, 9])
        seen, plain = (show_list(each, t, 2, each.items(t), items)[0] for each in (VALUED, PLAIN))
        assert (seen.examined, seen.clicks) == (plain.examined, plain.clicks)


QUICK = {"lambda_": 1.0, "alpha_c": 0.7, "alpha_d": 1.5, "beta": 0.7}  # groups split in few rounds
LATE: list[dict[str, Any]] = [
    {},
    {"delay": Delay(50, 50)},
    {"batch": 64},
    {"delay": Delay(5, 200)},
    {"delay": Delay(mean=30.0), "batch": 7},
]


def compare_engines(environment: Synthetic, policy: Policy, rounds: int = 500, **options: Any) -> Trace:
    """Play both engines, whose Traces must be equal to the bit; return that of the exact one."""
    oracle = options.pop("oracle", TopK(length=3))
    scenario = Scenario(environment, policy, rounds, oracle, keep_lists=True, **options)
    fast, slow = exact.simulate(scenario, threads=2, window=options.get("batch", 1) + 90), reference.simulate(scenario)
    np.testing.assert_array_equal(fast.lists, slow.lists)
    assert fast.ledger == slow.ledger
    assert fast.curve == slow.curve
    assert fast == replace(slow, engine="exact")
    return fast


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("late", LATE, ids=str)
def test_engines_agree_on_values_and_late_feedback(name: str, late: dict[str, Any]) -> None:
    policy = POLICIES[name].with_known_constants(QUICK)
    valued = compare_engines(VALUED, policy, **late)
    assert 0 < valued.reward < valued.clicked
    plain = compare_engines(PLAIN, policy, **late)
    assert plain.reward == plain.clicked


EVENTS = {"change": Change(at=120), "joins": Turnover(share=0.5, until=200), "leaves": Turnover(share=0.3, until=400)}


@pytest.mark.parametrize("name", ["population", "known-clusters", "fedc3ucb-h", "async-linucb", "club-cascade", "oful"])
@pytest.mark.parametrize("options", [EVENTS, {"drift": 200}, {"clicks": "dcm"}], ids=["events", "drift", "dcm"])
def test_engines_agree_on_late_feedback_of_changing_users_and_other_click_models(
    name: str, options: dict[str, Any]
) -> None:
    environment = Synthetic(**{**SIZES, "users": 9}, seed=5, **options)
    assert compare_engines(environment, POLICIES[name], delay=Delay(0, 90), batch=3).observations > 500


@pytest.mark.parametrize("environment", [PLAIN, VALUED], ids=["clicks", "values"])
@pytest.mark.parametrize(
    "policy",
    [
        PRIVATE_POPULATION.with_constants(epsilon=3.0),
        POLICIES["population"].with_constants(drift="restart"),
        replace(POLICIES["fedind"], changes=ChangeDetection(threshold=1.0, limit=2.0), trigger=Doubling()),
    ],
    ids=["private", "drift-restart", "restarts"],
)
@pytest.mark.parametrize("late", LATE[::2], ids=str)
def test_engines_agree_on_values_with_other_parts(environment: Synthetic, policy: Policy, late: dict[str, Any]) -> None:
    compare_engines(environment, policy, **late)


@pytest.mark.parametrize(
    "oracle", [PerCategory(length=3, limit=1), Budget(length=3, budget=0.9), PlackettLuce(length=3)]
)
def test_engines_agree_on_values_under_other_oracles(oracle: Any) -> None:
    environment = Synthetic(**SIZES, rewards="beta", categories=3, costs=True, seed=3)
    compare_engines(environment, POLICIES["fedc3ucb-h"], oracle=oracle, delay=Delay(20, 20))


def test_a_list_that_is_never_learned_changes_nothing() -> None:
    never = compare_engines(PLAIN, POLICIES["fedind"], delay=Delay(10**6, 10**6))
    some = compare_engines(PLAIN, POLICIES["fedind"], delay=Delay(0, 2_000))
    assert some.regret < never.regret


@pytest.mark.parametrize("policy", ["population", "fedind"])
def test_a_policy_that_sees_values_beats_one_that_sees_clicks(policy: str) -> None:
    sizes = {**SIZES, "items": 40}
    gains = []
    for seed in range(4):
        seen, unseen = (kind(**sizes, rewards="beta", seed=seed) for kind in (Synthetic, ClicksAlone))
        regrets = [simulate(each, POLICIES[policy], rounds=1_500, engine="reference").regret for each in (seen, unseen)]
        gains.append(regrets[1] - regrets[0])
    assert np.mean(gains) > 4 * np.std(gains, ddof=1) / 2


def play(policy: str, delay: Delay = Delay(), batch: int = 1, rounds: int = 400) -> Trace:  # noqa: B008 (frozen)
    world, parts = PLAIN, POLICIES[policy]
    return simulate(world, parts, rounds=rounds, engine="reference", keep_lists=True, delay=delay, batch=batch)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_plays_with_late_feedback(policy: str) -> None:
    at_once, late, batched = play(policy), play(policy, Delay(50, 50)), play(policy, batch=64)
    assert at_once.lists is not None
    for other, unlearned in ((late, 50), (batched, 64)):
        assert other.lists is not None
        blind = play(policy, Delay(10**6, 10**6))
        assert blind.lists is not None
        np.testing.assert_array_equal(other.lists[:unlearned], blind.lists[:unlearned])
    assert not blind.ledger or not POLICIES[policy].reply_rule.single_learner


def test_late_feedback_is_learned_once_and_in_order() -> None:
    """With an upload after each feedback, the server gets those that have arrived by the end."""
    for delay, batch, arrived in (
        (Delay(), 1, 400),
        (Delay(50, 50), 1, 350),
        (Delay(), 64, 384),
        (Delay(50, 50), 64, 334),
    ):
        assert play("club-cascade", delay, batch).communications() == arrived


def test_delays_are_drawn_from_their_distribution() -> None:
    drawn = [Delay.parse("10-20").draw(5, t) for t in range(1, 2_001)]
    assert set(drawn) == set(range(10, 21))
    waits = np.array([Delay.parse("exp:30").draw(5, t) for t in range(1, 8_001)])
    assert waits.mean() == pytest.approx(29.5, abs=2)  # rounded down
    assert Delay.parse("7") == Delay(7, 7)


@pytest.mark.parametrize("text", ["", "-1", "5-3", "exp:", "exp:-1", "exp:inf", "exp:nan", "soon", "1.5"])
def test_a_wrong_delay_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^delay must be rounds, a range like 0-200 or exp:MEAN, got '.*'$"):
        Delay.parse(text)


def test_values_need_users_that_stay_and_a_cascade() -> None:
    for options in ({"drift": 9}, {"clicks": "dcm"}):
        with pytest.raises(ValueError, match="rewards 'beta' need users that do not change"):
            Synthetic(**SIZES, rewards="beta", **options)
