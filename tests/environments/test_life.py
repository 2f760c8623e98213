from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedcascade.environments.matrices import generate_ratings
from fedcascade.environments.options import STEPS, Change, Poisoning, Turnover
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.testing import check_environment

EVERYTHING: dict[str, Any] = {
    "change": Change(at=300, until=700),
    "poisoning": Poisoning(share=0.2, attack="near", since=400),
    "joins": Turnover(share=0.3, since=100, until=500),
    "leaves": Turnover(share=0.3, since=200, until=800),
}
HALF = Turnover(share=0.5, until=9)
LIVES: dict[str, dict[str, Any]] = {
    "abrupt": {"change": Change(at=300)},
    "gradual": {"change": Change(at=200, until=700, to="existing")},
    "recurring": {"change": Change(at=150, every=200, share=0.3)},
    "inverted": {"poisoning": Poisoning(share=0.3)},
    "promoted": {"poisoning": Poisoning(share=0.3, attack="promoted", since=250)},
    "everything": EVERYTHING,
}


def make_world(events: dict[str, Any], **options: Any) -> Synthetic:
    sizes = {"users": 20, "clusters": 4, "dimension": 8, "items": 20, "seed": 3} | options
    return Synthetic(**sizes, **events)


def make_ratings(events: dict[str, Any]) -> Ratings:
    return Ratings.from_matrix(
        generate_ratings(60, 80, seed=5), users=20, clusters=4, dimension=7, items=20, seed=6, **events
    )


@pytest.mark.parametrize("name", LIVES)
def test_a_living_world_keeps_the_promises_of_an_environment(name: str) -> None:
    check_environment(make_world(LIVES[name]))
    check_environment(make_ratings(LIVES[name]))


def test_a_change_takes_its_share_of_each_cluster_to_something_new() -> None:
    world = make_world({"change": Change(at=300, share=0.4)})
    before, after = world.find_moment(299), world.find_moment(300)
    changed = (before.thetas != after.thetas).any(axis=1)
    assert np.bincount(world.clusters[changed]).tolist() == [2, 2, 2, 2]
    assert (after.clusters[changed] == before.clusters[changed] + 4).all()
    assert [person.kind == "changing" for person in world.history.user_roles] == changed.tolist()
    for cluster in range(4):
        assert len(np.unique(after.thetas[changed & (world.clusters == cluster)], axis=0)) == 1
    np.testing.assert_allclose(np.linalg.norm(after.thetas, axis=1), 1.0)


def test_a_change_to_an_existing_cluster_gives_its_theta() -> None:
    world = make_world({"change": Change(at=300, to="existing")})
    after = world.find_moment(300)
    for cluster in range(4):
        assert len(np.unique(after.thetas[after.clusters == cluster], axis=0)) == 1


def test_a_gradual_change_goes_on_in_small_steps_and_a_recurring_one_comes_back() -> None:
    world = make_world({"change": Change(at=100, until=740)})
    moments = [world.get_thetas(t) for t in range(1, 900)]
    steps = [np.abs(later - now).max() for now, later in pairwise(moments)]
    assert np.count_nonzero(steps) == STEPS
    assert max(steps) < 0.1
    recurring = make_world({"change": Change(at=100, every=50)})
    np.testing.assert_array_equal(recurring.get_thetas(99), recurring.get_thetas(150))
    np.testing.assert_array_equal(recurring.get_thetas(100), recurring.get_thetas(200))


def test_windows_end_where_the_population_changes() -> None:
    world = make_world(EVERYTHING)
    for first in range(1, 900, 7):
        count = world.count_unchanged_rounds(first, 50)
        assert all(world.find_moment(t) is world.find_moment(first) for t in range(first, first + count))
    apart = [world.arrival(t) for t in range(1, 900)]
    assert world.arrivals(1, 899).tolist() == apart


def test_nobody_arrives_before_it_joins_or_after_it_left() -> None:
    world = make_world(EVERYTHING)
    arrivals = world.arrivals(1, 3_000)
    persons = world.history.user_roles
    assert sum(person.joined is not None for person in persons) == sum(p.left is not None for p in persons) == 6
    for user, person in enumerate(persons):
        rounds = 1 + np.flatnonzero(arrivals == user)
        assert rounds.size == 0 or person.joined is None or rounds[0] >= person.joined
        assert rounds.size == 0 or person.left is None or rounds[-1] < person.left


def test_inverted_clicks_are_the_others_ones() -> None:
    world, honest = make_world(LIVES["inverted"]), make_world({})
    lying = [person.kind == "poisoning" for person in world.history.user_roles]
    assert sum(lying) == 6
    features = world.items(1)
    for user, lies in enumerate(lying):
        weights, true = world.weights(1, user, features), honest.weights(1, user, features)
        np.testing.assert_allclose(weights, 1.0 - true if lies else true, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Change(at=0), "^at must be a whole number >= 1"),
        (lambda: Change(at=5, until=5), "until must be a round after 5, got 5"),
        (lambda: Change(at=5, until=9, every=3), "gradual .until. or recurring .every., not both"),
        (lambda: Poisoning(share=1.0), "^share must be in"),
        (
            lambda: make_world({"joins": Turnover(share=0.5, until=9), "leaves": Turnover(share=0.5, until=9)}),
            "must add up to less than 1, got 1",
        ),
        (lambda: make_world(EVERYTHING, drift=5), "drift cannot be combined with change, poisoning, joins or leaves"),
        (lambda: make_world({"change": Change(at=1, to="elsewhere")}), "unknown to "),  # type: ignore[arg-type]
    ],
)
def test_a_life_that_cannot_be_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_ratings_need_users_to_spare_for_new_tastes() -> None:
    with pytest.raises(ValueError, match="use fewer users"):
        Ratings.from_matrix(
            generate_ratings(30, 80, seed=5), users=28, clusters=4, dimension=7, items=20, **LIVES["abrupt"]
        )
