"""Worlds as Gymnasium environments: its own checks, vectors, seeds, and the regret of a simulation to the bit."""

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fedcascade.gym
from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.environments.environment import Environment
from fedcascade.environments.matrices import generate_ratings, to_triplets
from fedcascade.environments.options import Change, Poisoning, Turnover
from fedcascade.environments.ratings import Ratings
from fedcascade.gym import CascadeEnv, Player, RankedLists
from fedcascade.learning.oracles import TopK

SMALL: dict[str, Any] = {"users": 6, "clusters": 2, "dimension": 4, "items": 8}
MATRIX = generate_ratings(60, 80)
LIFE: dict[str, Any] = {
    "change": Change(at=60),
    "poisoning": Poisoning(share=0.2),
    "joins": Turnover(share=0.3, until=50),
    "leaves": Turnover(share=0.2, since=70, until=90),
}
WORLDS: dict[str, Environment] = {
    "synthetic": Synthetic(**SMALL, seed=3),
    "few items": Synthetic(**SMALL | {"items": (1, 5)}, seed=3),
    "living": Synthetic(**SMALL | {"users": 12, "clusters": 2}, seed=3, **LIFE),
    "drifting": Synthetic(**SMALL | {"dimension": 5}, drift=50, seed=3),
    "ratings": Ratings.from_matrix(MATRIX, users=6, clusters=2, dimension=4, items=8, seed=3),
    "dcm": Synthetic(**SMALL, seed=3, clicks="dcm", click_level=0.7),
    "pbm": Synthetic(**SMALL, seed=3, clicks="pbm", click_level=0.7),
    "dbn": Synthetic(**SMALL, seed=3, clicks="dbn"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("world", WORLDS)
def test_gymnasium_finds_nothing_wrong_with_any_world(world: str) -> None:
    env = gymnasium.make("fedcascade/Environment-v0", environment=WORLDS[world], list_length=3)
    check_env(env.unwrapped)


MADE: dict[str, dict[str, Any]] = {
    "fedcascade/Synthetic-v0": {**SMALL, "clicks": "dcm", "click_level": 0.6, "seed": 5},
    "fedcascade/Ratings-v0": {**SMALL, "ratings": to_triplets(MATRIX)},
    "fedcascade/Environment-v0": {"environment": WORLDS["synthetic"]},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", fedcascade.gym.IDS)
def test_every_registered_name_makes_a_sound_environment(name: str) -> None:
    check_env(gymnasium.make(name, **MADE[name]).unwrapped)


def play(env: CascadeEnv, policy: str, seed: int) -> tuple[float, Player]:
    """Let agents play an episode through the environment; returns the regret, added up round by round."""
    observation, info = env.reset(seed=seed)
    player, truncated, regret = Player(env, POLICIES[policy]), False, 0.0
    while not truncated:
        observation, _, _, truncated, info = env.step(player.act(observation, info))
        regret += info["regret"]
        player.learn(info)
    return regret, player


@pytest.mark.parametrize("policy", ["fedc3ucb-h", "population", "known-clusters", "club-cascade", "oful"])
@pytest.mark.parametrize("world", ["synthetic", "few items", "living", "ratings"])
def test_agents_that_play_through_it_lose_what_a_simulation_says_to_the_bit(world: str, policy: str) -> None:
    regret, player = play(CascadeEnv(WORLDS[world], list_length=3, rounds=120), policy, seed=3)
    trace = simulate(WORLDS[world], POLICIES[policy], rounds=120, oracle=TopK(length=3), engine="reference")
    assert regret == trace.regret
    assert player.ledger == trace.ledger


@pytest.mark.parametrize("world", ["dcm", "pbm", "dbn"])
def test_other_click_models_are_those_of_the_simulation(world: str) -> None:
    env = CascadeEnv(WORLDS[world], list_length=3, rounds=120, reward="clicks")
    regret, _ = play(env, "population", seed=3)
    trace = simulate(WORLDS[world], POLICIES["population"], rounds=120, oracle=TopK(length=3), engine="reference")
    assert regret == trace.regret


def test_the_exact_engine_says_the_same() -> None:
    world = WORLDS["synthetic"]
    regret, _ = play(CascadeEnv(world, list_length=3, rounds=120), "fedc3ucb-h", seed=3)
    assert regret == simulate(world, POLICIES["fedc3ucb-h"], rounds=120, oracle=TopK(length=3)).regret


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectors_play_what_single_environments_play(mode: str) -> None:
    options = {**SMALL, "rounds": 5, "list_length": 2}
    vector = gymnasium.make_vec("fedcascade/Synthetic-v0", num_envs=3, vectorization_mode=mode, **options)
    singles = [gymnasium.make("fedcascade/Synthetic-v0", **options) for _ in range(3)]
    try:
        vector.action_space.seed(7)
        observations, _ = vector.reset(seed=4)
        starts = [env.reset(seed=4 + place)[0] for place, env in enumerate(singles)]
        for place, start in enumerate(starts):
            assert (observations["items"][place] == start["items"]).all()
        actions = vector.action_space.sample()
        assert actions in vector.action_space
        _, rewards, _, _, infos = vector.step(actions)
        for place, env in enumerate(singles):
            _, reward, _, _, info = env.step(actions[place])
            assert (rewards[place], infos["regret"][place]) == (reward, info["regret"])
    finally:
        vector.close()


def test_seeds_name_rounds_and_episodes_without_one_differ() -> None:
    env = CascadeEnv(WORLDS["synthetic"], list_length=2, rounds=4)
    first, again, other = (env.reset(seed=seed)[0]["items"] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    env.reset(seed=1)
    following = [env.reset()[0]["items"] for _ in range(2)]
    assert (following[0] != following[1]).any()
    env.reset(seed=1)
    assert (env.reset()[0]["items"] == following[0]).all()


def test_rewards_are_clicks_or_their_chance() -> None:
    action = np.array([2, 0])
    for reward in ("click", "clicks", "attraction"):
        env = CascadeEnv(WORLDS["dcm"], list_length=2, rounds=30, reward=reward)
        env.reset(seed=1)
        for _ in range(30):
            _, earned, _, truncated, info = env.step(action)
            expected = {"click": info["click"] >= 0, "clicks": info["clicks"].sum(), "attraction": info["attraction"]}
            assert earned == expected[reward]
            assert info["clicks"].sum() == 0 or info["looked_until"] >= info["click"]
            assert info["best"] >= info["attraction"]
        assert truncated
        with pytest.raises(ValueError, match=r"there is no round to play: call reset\(\) first"):
            env.step(action)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ([1, 1], r"distinct items in 0\.\.7, then -1, got \[1, 1\]"),
        ([1, 8], "distinct items"),
        ([-2, 1], "distinct items"),
        ([-1, 1], "distinct items"),
        ([1, -1], "must name 2 items, got 1"),
        ([1], "must be 2 integers"),
        ([0.0, 1.0], "must be 2 integers, got float64"),
        ("ab", "must be 2 integers"),
        (None, "must be 2 integers"),
    ],
)
def test_an_action_that_cannot_be_shown_is_refused_in_one_line_and_changes_nothing(action: Any, words: str) -> None:
    env = CascadeEnv(WORLDS["synthetic"], list_length=2)
    env.reset(seed=1)
    with pytest.raises(ValueError, match=words) as refused:
        env.step(action)
    assert "\n" not in str(refused.value)
    assert env.step(np.array([0, 1]))[4]["round"] == 2


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Synthetic-v0", {"user": 3}, "cannot build the environment: .*user"),
        ("Synthetic-v0", {"users": 0}, "users must be a whole number >= 1"),
        ("Synthetic-v0", {"items": 2, "list_length": 3}, r"list length must be <= items \(2\), got 3"),
        ("Synthetic-v0", {"reward": "money"}, "unknown reward 'money'"),
        ("Synthetic-v0", {"clicks": "dcn"}, "unknown clicks 'dcn': did you mean"),
        ("Ratings-v0", {}, "needs a file"),
        ("Ratings-v0", {"ratings": "none.csv"}, "there is no file none.csv"),
        ("Environment-v0", {}, "needs an environment"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        gymnasium.make(f"fedcascade/{name}", **options)
    assert "\n" not in str(refused.value)


def test_lists_are_drawn_distinct_and_from_what_is_on_offer() -> None:
    space = RankedLists(items=6, length=3, seed=2)
    drawn = [space.sample() for _ in range(50)]
    assert all(row in space for row in drawn)
    assert {item for row in drawn for item in row.tolist()} == set(range(6))
    assert all(set(space.sample(np.array([0, 1, 0, 1, 1, 0])).tolist()) == {1, 3, 4} for _ in range(5))
    few = RankedLists(items=6, length=3, fewest=2)
    assert few.sample()[2] == -1
    assert np.array([5, -1, -1]) in few
    assert np.array([-1, -1, -1]) not in few
    with pytest.raises(ValueError, match="probability must be None"):
        space.sample(probability=np.ones(6))


def test_a_world_that_cannot_draw_other_rounds_plays_its_own() -> None:
    class Fixed:
        """A world with nothing beyond the protocol."""

        def __init__(self) -> None:
            self._world = Synthetic(**SMALL)
            self.users, self.dimension, self.most_items = 6, 4, 8
            self.clusters = self._world.clusters
            for name in ("arrival", "items", "attributes", "weights", "attracted", "ties", "draw"):
                setattr(self, name, getattr(self._world, name))

    env: Any = CascadeEnv(Fixed(), list_length=2)  # type: ignore[arg-type]
    assert (env.reset(seed=1)[0]["items"] == env.reset(seed=2)[0]["items"]).all()


def test_without_gymnasium_one_line_says_what_to_install() -> None:
    block = "import sys; sys.modules['gymnasium'] = None\nimport importlib.util as u; u.find_spec = lambda name: None\n"
    code = block + "import fedcascade.gym"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: fedcascade.gym needs gymnasium: pip install 'fedcascade[gymnasium]'"
    )
