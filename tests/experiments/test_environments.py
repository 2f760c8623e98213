import numpy as np
import pytest

from fedcascade.environments.options import Change, Poisoning, SyntheticOptions
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import LOGISTIC, Synthetic
from fedcascade.experiments.plan import EnvironmentSpec
from fedcascade.experiments.plan_reader import read_plan


def test_policies_that_meet_the_same_users_share_one_factorisation_of_ratings() -> None:
    sizes = {"users": 20, "clusters": 4, "dimension": 6, "items": 20, "top_users": 60, "top_items": 60}
    spec = EnvironmentSpec("ratings", sizes)
    assert spec.build(3) is spec.build(3)
    assert spec.build(3) is not spec.build(4)


def test_a_plan_describes_a_life() -> None:
    plan = read_plan("""
        name = "living"
        rounds = 100
        [[environments]]
        name = "abrupt"
        kind = "synthetic"
        change = { at = 50, to = "existing" }
        poisoning = { share = 0.2, attack = "near", since = 30 }
        [[environments]]
        name = "ratings"
        kind = "ratings"
        top_users = 100
        top_items = 100
        items = 20
        change = { at = 50 }
        [[policies]]
        name = "fedind"
    """)
    first, second = (environment.spec for environment in plan.environments)
    assert first.declared == SyntheticOptions(
        change=Change(at=50, to="existing"), poisoning=Poisoning(share=0.2, attack="near", since=30)
    )
    world = second.build(1)
    assert isinstance(world, Ratings)
    assert world.history.find_next(1) == 50


def test_a_plan_with_an_impossible_life_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"line 7: .*share must be in"):
        read_plan(
            "name = 'living'\nrounds = 100\n[[environments]]\nname = 'a'\nkind = 'synthetic'\n"
            "\npoisoning = { share = 2.0 }\n[[policies]]\nname = 'fedind'\n"
        )


PLAN = """
name = "rare"
rounds = 100
[[environments]]
name = "rare"
kind = "synthetic"
features = "logistic"
scale = 0.2
[[environments]]
name = "usual"
kind = "synthetic"
[[policies]]
name = "fedind"
"""


def test_a_plan_says_how_rare_clicks_are() -> None:
    rare, usual = (environment.spec for environment in read_plan(PLAN).environments)
    world = rare.build(1)
    assert isinstance(world, Synthetic)
    assert world.link == LOGISTIC
    assert np.linalg.norm(world.thetas[0]) == pytest.approx(0.2)
    assert (rare.options["scale"], usual.options["scale"]) == (0.2, 1.0)  # a run's key has it


@pytest.mark.parametrize("scale", ["0", "1.5", '"small"'])
def test_a_plan_with_another_scale_is_refused(scale: str) -> None:
    with pytest.raises(ValueError, match=r"plan line 8: scale must be in \(0, 1\]"):
        read_plan(PLAN.replace("scale = 0.2", f"scale = {scale}"))
