"""Worlds as Gymnasium environments: its own checks, vectors, seeds, and the regret of a simulation to the bit."""

import runpy
import subprocess
import sys
from pathlib import Path
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
from fedcascade.gym import CascadeEnv, Player
from fedcascade.learning.click_log import ClickLog
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
    "values": Synthetic(**SMALL, seed=3, rewards="beta"),
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
            assert info["clicks"].sum() == 0 or info["looked"] > info["click"]
            assert info["best"] >= info["attraction"]
        assert truncated
        with pytest.raises(ValueError, match=r"there is no round to play: call reset\(\) first"):
            env.step(action)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ([1, 8], r"numbers in 0\.\.7, got \[1, 8\]"),
        ([-2, 1], "numbers in"),
        ([1, -1], "numbers in"),
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
    ("world", "action", "shown"),
    [
        ("synthetic", [5, 5, 5], [5, 0, 1]),
        ("synthetic", [0, 3, 0], [0, 3, 1]),
        ("synthetic", [2, 1, 0], [2, 1, 0]),
        ("few items", [-1, -1, -1], [0, -1, -1]),
        ("few items", [-1, 0, 0], [1, 0, 2]),
        ("few items", [4, -1, -1], [0, -1, -1]),
    ],
)
def test_items_that_are_repeated_or_not_on_offer_are_replaced(world: str, action: list[int], shown: list[int]) -> None:
    env = CascadeEnv(WORLDS[world], list_length=3)
    offered = 3 if world == "few items" else 8
    seed = next(seed for seed in range(50) if env.reset(seed=seed)[0]["offered"] == offered)
    env.reset(seed=seed)
    info = env.step(np.array(action))[4]
    assert info["shown"].tolist() == shown
    env.reset(seed=seed)
    again = env.step(np.array(shown))[4]
    assert (again["regret"], again["clicks"].tolist()) == (info["regret"], info["clicks"].tolist())


@pytest.mark.parametrize("world", ["synthetic", "dcm", "dbn", "few items"])
def test_looked_is_what_a_log_calls_looked(world: str) -> None:
    env = CascadeEnv(WORLDS[world], list_length=3, rounds=60)
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(60):
        info = env.step(env.action_space.sample())[4]
        row = ClickLog(users=np.zeros(1, int), items=info["shown"][None], clicks=info["clicks"][None] == 1)
        assert info["looked"] == row.count_looked()[0]


class StockAgent:
    """A policy gradient over independent positions (REINFORCE), which knows nothing of lists, as stock agents do."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        space = env.action_space
        assert isinstance(space, gymnasium.spaces.MultiDiscrete)
        observed: Any = env.observation_space
        self.random, self.average = np.random.default_rng(seed), 0.0
        self.weights = np.zeros((space.nvec.size, observed["items"].shape[1]))

    def act(self, observation: dict[str, Any]) -> Any:
        items = observation["items"]
        strengths = np.exp(items @ self.weights.T)
        self.chances = strengths / strengths.sum(axis=0)
        self.chosen = np.array([self.random.choice(len(items), p=column) for column in self.chances.T])
        self.items = items
        return self.chosen

    def learn(self, reward: float) -> None:
        surprise, self.average = reward - self.average, 0.99 * self.average + 0.01 * reward
        self.weights += 0.5 * surprise * (self.items[self.chosen] - self.chances.T @ self.items)


def play_episode(env: gymnasium.Env[Any, Any], act: Any, learn: Any) -> list[float]:
    """Play an episode, and return its rewards."""
    observation, _ = env.reset(seed=1)
    rewards, truncated = [], False
    while not truncated:
        following, reward, _, truncated, info = env.step(act(observation))
        learn(observation, reward, info)
        rewards.append(float(reward))
        observation = following
    return rewards


def test_a_stock_agent_that_repeats_items_runs_and_learns() -> None:
    env = gymnasium.make("fedcascade/Synthetic-v0", users=1, clusters=1, dimension=4, items=8, list_length=2,
                         rounds=3000, reward="attraction")  # fmt: skip
    env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    agent, repeated = StockAgent(env, seed=1), []

    def learn(_: Any, reward: float, info: Any) -> None:
        repeated.append(agent.chosen.tolist() != info["shown"].tolist())
        agent.learn(reward)

    rewards = play_episode(env, agent.act, learn)
    assert any(repeated)
    assert np.mean(rewards[-500:]) > np.mean(rewards[:100]) + 0.05


def test_the_example_of_linucb_learns() -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "gym_linucb.py"))
    learned, chance = example["play"](rounds=1000)
    assert learned < 0.5 * chance


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
