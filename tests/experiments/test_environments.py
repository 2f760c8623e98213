from fedcascade.experiments.plan import EnvironmentSpec


def test_policies_that_meet_the_same_users_share_one_factorisation_of_ratings() -> None:
    sizes = {"users": 20, "clusters": 4, "dimension": 6, "items": 20, "top_users": 60, "top_items": 60}
    spec = EnvironmentSpec("ratings", sizes)
    assert spec.build(3) is spec.build(3)
    assert spec.build(3) is not spec.build(4)
