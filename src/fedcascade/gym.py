"""Gymnasium environments: a user arrives, sees a list, and clicks or not; and a player for our policies.

``gymnasium.make("fedcascade/Synthetic-v0")`` works after ``import fedcascade.gym``.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from fedcascade.checks import list_missing, require, require_extra, require_integer, require_known

if list_missing("gymnasium"):
    require_extra("gymnasium", "fedcascade.gym")

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fedcascade.data.readers import read_ratings
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.agent import ShownList
from fedcascade.federation.delivery import deliver_arrival
from fedcascade.federation.messages import Downloads
from fedcascade.federation.policies import Policy
from fedcascade.learning.cascade import examine
from fedcascade.learning.click_log import MISSING
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.ledger import ExchangeLedger
from fedcascade.simulation.reference import exchange, make_agents, show_list, start_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation

__all__ = ["IDS", "CascadeEnv", "Player"]

Action = NDArray[np.int64]
Observation = dict[str, Any]
REWARDS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {  # from the outcome of a list
    "click": lambda played: float(played["click"] != MISSING),
    "clicks": lambda played: float(played["clicks"].sum()),
    "attraction": lambda played: float(played["attraction"]),
    "value": lambda played: float(played["rewards"].sum()),
}


class CascadeEnv(gymnasium.Env[Observation, Action]):
    """An environment, round by round. An episode is truncated after ``rounds`` rounds; it never terminates.

    An observation has the ``user`` that arrives, the features of the ``items``, a row each, and the number ``offered``;
    rows beyond that are 0. An action is a list of items, best first, as row numbers. Agents that know nothing of lists
    repeat items: a repeated item, or one that is not on offer, is replaced by the first item that the list lacks.

    ``info`` of a step has the outcome of the list: ``shown`` (the list after replacement, -1 beyond its end), ``click``
    (the first clicked position, or -1), ``clicks`` (1 for each clicked position), ``rewards`` (their values),
    ``looked`` (how many positions the user examined, as in a log: up to the last click, or all), ``attraction`` (the
    probability of a click, or the expected reward if clicks have values), ``best`` (that of the best list) and
    ``regret``, which is 0 for poisoning users, as in a simulation. For the next observation it has ``round``, and the
    inputs of our agents: ``ties`` and ``draw``.

    Args:
        environment: any ``Environment``, for instance ``Synthetic()``; users click by its own model.
        list_length: K, the length of a list.
        rounds: the length of an episode.
        reward: "click": 1 after any click; "clicks": their number; "value": the sum of their rewards; "attraction":
            what ``info`` has under this name.
        render_mode: None; there is nothing to render.

    >>> from fedcascade import Synthetic
    >>> env = CascadeEnv(Synthetic(users=3, clusters=1, dimension=4, items=6), list_length=2)
    >>> observation, info = env.reset(seed=1)
    >>> observation["items"].shape, info["round"]
    ((6, 4), 1)
    >>> _, reward, terminated, truncated, info = env.step(np.array([5, 0]))
    >>> reward in (0.0, 1.0), terminated, truncated, info["regret"] >= 0.0
    (True, False, False, True)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(
        self,
        environment: Environment,
        *,
        list_length: int = 4,
        rounds: int = 10_000,
        reward: str = "click",
        render_mode: str | None = None,
    ) -> None:
        require_integer("rounds", rounds)
        require_known("reward", reward, REWARDS)
        require(render_mode is None, f"render_mode must be None: there is nothing to render, got '{render_mode}'")
        most = environment.most_items
        oracle = TopK(length=list_length)
        require(list_length <= most, f"list length must be <= items ({most}), got {list_length}")
        self.environment = self._original = environment
        self.rounds, self.oracle, self.render_mode = rounds, oracle, render_mode
        self._measure_reward, self._round = REWARDS[reward], 0
        roles = environment.history.user_roles if isinstance(environment, Clustered) else ()
        self._poisoning = frozenset(user for user, role in enumerate(roles) if role.kind == "poisoning")
        least = 0 if getattr(environment, "fewest_items", most) >= list_length else MISSING  # lists may be shorter
        sizes, start = np.full(list_length, most - least, np.int64), np.full(list_length, least, np.int64)
        self.action_space: spaces.MultiDiscrete = spaces.MultiDiscrete(sizes, start=start)
        self.observation_space = spaces.Dict(
            {
                "user": spaces.Discrete(environment.users),
                "items": spaces.Box(-1.0, 1.0, (most, environment.dimension), np.float32),
                "offered": spaces.Discrete(most, start=1),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        """Begin an episode with the same users, in the rounds of ``seed``.

        The seed of the environment itself gives the rounds of ``simulate``. An environment without
        ``with_other_rounds`` plays the same ones in every episode.
        """
        super().reset(seed=seed, options=options)
        drawn = int(self.np_random.integers(2**63)) if seed is None else seed
        begin = getattr(self._original, "with_other_rounds", None)
        self.environment = self._original if begin is None else begin(drawn)
        self._round = 0
        return self._observe()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Show a list to the user, and proceed to the next round; raise ValueError for what is no element of a list."""
        require(1 <= self._round <= self.rounds, "there is no round to play: call reset() first")
        environment, t = self.environment, self._round
        items = self._read_list(action)
        seen, merits, measure = show_list(environment, t, self._user, self._features, items)
        best, attraction, clicks = measure(self.oracle.best(merits)), measure(items), seen.clicks
        marks, shown = np.zeros(self.oracle.length, np.int8), np.full(self.oracle.length, MISSING)
        rewards = np.zeros(self.oracle.length)
        marks[list(clicks)], rewards[list(clicks)], shown[: items.size] = 1, seen.values, items
        played = {
            "shown": shown,
            "click": clicks[0] if clicks else MISSING,
            "clicks": marks,
            "rewards": rewards,
            "looked": seen.examined,
            "attraction": attraction,
            "best": best,
            "regret": 0.0 if self._user in self._poisoning else best - attraction,
        }
        observation, info = self._observe()
        return observation, self._measure_reward(played), False, t == self.rounds, played | info

    def _observe(self) -> tuple[Observation, dict[str, Any]]:
        """Proceed to the next round and return its user and items."""
        self._round += 1
        environment, t = self.environment, self._round
        self._user, self._features = environment.arrival(t), environment.items(t)
        offered = len(self._features)
        items = np.zeros((environment.most_items, environment.dimension), np.float32)
        ties = np.zeros(environment.most_items, np.uint32)
        items[:offered], ties[:offered] = self._features, environment.ties(t, offered)
        observation = {"user": np.int64(self._user), "items": items, "offered": np.int64(offered)}
        return observation, {"round": t, "ties": ties, "draw": environment.draw(t)}

    def _read_list(self, action: Any) -> NDArray[np.intp]:
        """Return the items of an action, without padding; replace items that are repeated or not on offer."""
        length, offered = self.oracle.length, len(self._features)
        row = np.asarray(action)
        is_row = row.shape == (length,) and row.dtype.kind in "iu"
        require(is_row, f"an action must be {length} integers, got {row.dtype} of shape {row.shape}")
        least, most = int(self.action_space.start.min()), self.environment.most_items
        is_good = row.min() >= least and row.max() < most
        require(is_good, f"an action must hold numbers in {least}..{most - 1}, got {row.tolist()}")
        ends = int(np.flatnonzero(row != MISSING).max(initial=0)) + 1  # -1 at the end shortens a list
        kept, seen = [], set[int]()
        for item in row[: min(ends, offered)].tolist():
            kept.append(item if 0 <= item < offered and item not in seen else MISSING)
            seen.add(item)
        spare = (item for item in range(offered) if item not in seen)
        return np.array([next(spare) if item == MISSING else item for item in kept], np.intp)


class Player:
    """A policy that plays an environment: the agents of all users and their server.

    Exchanges equal those of ``simulate`` to the bit. Make one player for each episode, after ``reset``.

    >>> from fedcascade import POLICIES, Synthetic
    >>> env = CascadeEnv(Synthetic(users=3, clusters=1, dimension=4, items=6), list_length=2, rounds=50)
    >>> observation, info = env.reset(seed=1)
    >>> player, truncated = Player(env, POLICIES["population"]), False
    >>> while not truncated:
    ...     observation, _, _, truncated, info = env.step(player.act(observation, info))
    ...     player.learn(info)
    >>> len(player.ledger) > 0
    True
    """

    def __init__(self, env: gymnasium.Env[Observation, Action], policy: Policy) -> None:
        cascade = env.unwrapped
        if not isinstance(cascade, CascadeEnv):
            raise ValueError(f"a player needs a CascadeEnv, got a {type(cascade).__name__}")
        self._scenario = Scenario(cascade.environment, policy, cascade.rounds, cascade.oracle, checkpoints=1)
        self._simulation = prepare_simulation(self._scenario)
        self._agents = make_agents(self._simulation, cascade.oracle)
        self._open: tuple[ShownList, int, float, int, Downloads] | None = None

    @property
    def ledger(self) -> ExchangeLedger:
        """The exchanges so far."""
        return self._simulation.recorder.ledger

    def act(self, observation: Observation, info: dict[str, Any]) -> Action:
        """Choose a list with the agent of the arriving user."""
        t, user, offered = int(info["round"]), int(observation["user"]), int(observation["offered"])
        start_round(self._scenario, self._simulation, self._agents, t)
        fetched = deliver_arrival(self._simulation.server, self._agents, user)
        shown = self._agents[user].recommend(observation["items"][:offered], info["ties"][:offered])
        self._open = shown, t, float(info["draw"]), user, fetched
        action = np.full(self._scenario.oracle.length, MISSING, np.int64)
        action[: shown.items.size] = shown.items
        return action

    def learn(self, info: dict[str, Any]) -> None:
        """Learn from the outcome of the last list, and exchange if the agent uploads."""
        if self._open is None:
            raise ValueError("there is no list to learn from: call act() first")
        (shown, t, draw, user, fetched), self._open = self._open, None
        clicks = tuple(np.flatnonzero(info["clicks"]).tolist())
        rewards = info["rewards"][list(clicks)].tolist()
        seen = examine(shown.items.size, clicks, reward=rewards or None)
        upload = self._agents[user].observe(shown, seen, round_=t, draw=draw)
        if upload is not None:
            exchange(self._simulation, self._agents, t, upload, fetched)


EPISODE_OPTIONS = ("list_length", "rounds", "reward", "render_mode")  # of CascadeEnv; others build the environment


def make_environment(environment: Environment | None = None, **options: Any) -> CascadeEnv:
    """Wrap an environment; options are those of ``CascadeEnv``."""
    if environment is None:
        raise ValueError("fedcascade/Environment-v0 needs an environment: make(..., environment=Synthetic())")
    return CascadeEnv(environment, **options)


def make_synthetic(**options: Any) -> CascadeEnv:
    """Build a synthetic environment; options are those of ``SyntheticOptions`` and ``CascadeEnv``."""
    return _build(Synthetic, options)


def make_ratings(*, ratings: str | PathLike[str] | Triplets | None = None, **options: Any) -> CascadeEnv:
    """Build the environment of a file of ratings; options are those of ``RatingsOptions`` and ``CascadeEnv``."""
    if ratings is None:
        raise ValueError("fedcascade/Ratings-v0 needs a file: make(..., ratings='ratings.csv')")
    triplets = ratings if isinstance(ratings, Triplets) else read_ratings(ratings)
    return _build(lambda **sizes: Ratings(triplets, **sizes), options)


def _build(build: Callable[..., Clustered], options: dict[str, Any]) -> CascadeEnv:
    episode = {name: options.pop(name) for name in EPISODE_OPTIONS if name in options}
    try:
        environment = build(**options)
    except TypeError as error:
        raise ValueError(f"cannot build the environment: {error}") from None
    return CascadeEnv(environment, **episode)


IDS: Mapping[str, Callable[..., CascadeEnv]] = {
    "fedcascade/Synthetic-v0": make_synthetic,
    "fedcascade/Ratings-v0": make_ratings,
    "fedcascade/Environment-v0": make_environment,
}

for _name, _maker in IDS.items():
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=f"{__name__}:{_maker.__name__}")
