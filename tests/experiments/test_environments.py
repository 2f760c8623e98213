from fedcascade.experiments.environments import RatingsSpec, build_environment


def test_systems_that_meet_the_same_users_share_one_factorisation_of_ratings() -> None:
    spec = RatingsSpec(users=20, clusters=4, dimension=6, items=20, top_users=60, top_items=60)
    assert build_environment(spec, 3) is build_environment(spec, 3)
    assert build_environment(spec, 3) is not build_environment(spec, 4)
