"""A/B tests: users are assigned by a hash, and the guardrail keeps its level however often it is read."""

import numpy as np
import pytest

from fedcascade.service.protocol.arms import BUCKETS, CONTROL, TREATMENT, ArmCount, Trial, choose_arm

LEVEL = 0.05
DAYS = 40


def run_trial(seed: int, effect: float, users: int = 1_500, share: float = 0.3) -> int | None:
    """Return the day on which the guardrail fires; None if it never does.

    Users differ much in how often they click and how often they come, and come back day after day.
    """
    random = np.random.default_rng(seed)
    arms = [choose_arm(f"user {user}", share=share, experiment=str(seed)) for user in range(users)]
    is_treated, buckets = np.array([arm == TREATMENT for arm, _ in arms]), np.array([bucket for _, bucket in arms])
    rates = np.clip(random.beta(0.6, 1.4, users) + np.where(is_treated, effect, 0.0), 0, 1)
    visits, trial = random.exponential(3.0, users), Trial.from_text(None)
    for day in range(DAYS):
        lists = random.poisson(visits)
        clicks = random.binomial(lists, rates)
        counts = []
        for arm in (CONTROL, TREATMENT):
            chosen = is_treated == (arm == TREATMENT)
            sums = [np.bincount(buckets[chosen], values[chosen], BUCKETS).astype(int) for values in (lists, clicks)]
            counts += [ArmCount(arm, bucket, int(sums[0][bucket]), int(sums[1][bucket])) for bucket in range(BUCKETS)]
        trial.add(counts, LEVEL)
        if trial.is_worse(0.0):
            return day
    return None


def test_the_guardrail_is_quiet_without_an_effect_as_often_as_stated() -> None:
    fired = sum(run_trial(seed, 0.0) is not None for seed in range(200))
    print(f"without an effect: {fired} alarms in 200 tests of {DAYS} days, stated at most {200 * LEVEL:g}")
    assert fired <= 200 * LEVEL


def test_the_guardrail_fires_on_a_known_harm_and_not_on_a_gain() -> None:
    days = [run_trial(seed, -0.1, users=4_000) for seed in range(30)]
    print(f"10 points worse: fires in {sum(day is not None for day in days)} of 30 tests")
    assert sum(day is not None for day in days) >= 28
    assert all(run_trial(seed, 0.1) is None for seed in range(10))


def test_users_are_assigned_in_the_share_that_is_asked_for_and_independently() -> None:
    users = [f"user {number}" for number in range(20_000)]
    arms = [choose_arm(user, share=0.2) for user in users]
    held = sum(arm == CONTROL for arm, _ in arms)
    assert 3_800 < held < 4_200
    assert np.bincount([bucket for _, bucket in arms], minlength=BUCKETS).min() > 50
    assert arms == [choose_arm(user, share=0.2) for user in users]
    others = [choose_arm(user, share=0.2, experiment="another") for user in users]
    both = sum(arm == other == CONTROL for (arm, _), (other, _) in zip(arms, others, strict=True))
    assert 650 < both < 950
    assert {choose_arm(user, share=0.0)[0] for user in users[:100]} == {TREATMENT}
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 2"):
        choose_arm("user", share=2)


def test_a_trial_survives_its_text_and_refuses_more_clicks_than_lists() -> None:
    trial = Trial.from_text(None)
    trial.add(
        [ArmCount(CONTROL, 3, 1_500, 700), ArmCount(TREATMENT, 4, 1_500, 650), ArmCount(TREATMENT, 5, 10, 0)], LEVEL
    )
    assert trial.looks == 1
    assert Trial.from_text(trial.to_text()) == trial
    with pytest.raises(ValueError, match="clicks must be at most the lists, got 3 of 2"):
        trial.add([ArmCount(CONTROL, 0, 2, 3)], LEVEL)
