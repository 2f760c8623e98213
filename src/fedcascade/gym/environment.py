"""Any world of fedcascade as a Gymnasium environment: a user arrives, you show a list, the user clicks or not."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from os import PathLike
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer, require_known
from fedcascade.data.readers import read_ratings
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.learning.cascade import examine
from fedcascade.learning.click_log import NOBODY
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.reference import click_list

Action = NDArray[np.int64]
Observation = dict[str, Any]
REWARDS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {  # from what became of a list
    "click": lambda played: float(played["click"] != NOBODY),
    "clicks": lambda played: float(played["clicks"].sum()),
    "attraction": lambda played: float(played["attraction"]),
}


class RankedLists(spaces.MultiDiscrete):
    """Lists of ``length`` distinct items out of ``items``; where fewer may be on offer, filled up with -1 at the end.

    ``sample`` draws from the first ``fewest`` items, which are always on offer. With ``copies``, an element has so many
    lists, a row each: the space of a vector of environments.

    >>> space = RankedLists(items=5, length=3, seed=1)
    >>> space.contains(np.array([4, 0, 2])), space.contains(np.array([4, 0, 4])), len(set(space.sample().tolist()))
    (True, False, 3)
    """

    def __init__(
        self,
        *,
        items: int,
        length: int,
        fewest: int | None = None,
        copies: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.items, self.length, self.copies = items, length, copies
        self.fewest = items if fewest is None else fewest
        first = 0 if self.fewest >= length else NOBODY
        sizes = np.full((length,) if copies is None else (copies, length), items - first, np.int64)
        super().__init__(sizes, np.int64, seed, np.full_like(sizes, first))

    def sample(self, mask: Any = None, probability: Any = None) -> Action:
        """Draw a list; ``mask`` marks the items on offer with 1, where they are not the first ones."""
        require(probability is None, "a ranked list is drawn with a mask, or uniformly: give no probability")
        offered = np.arange(self.fewest) if mask is None else np.flatnonzero(np.asarray(mask))
        lists = np.full(self.nvec.shape, NOBODY, np.int64)
        for row in lists.reshape(-1, self.length):
            chosen = self.np_random.permutation(offered)[: self.length]
            row[: chosen.size] = chosen
        return lists

    def contains(self, x: Any) -> bool:
        """Whether each list names distinct items, with -1 at its end alone."""
        return bool(super().contains(x)) and all(map(is_list_of_distinct, np.reshape(x, (-1, self.length))))

    def __repr__(self) -> str:
        copies = "" if self.copies is None else f", copies={self.copies}"
        return f"RankedLists(items={self.items}, length={self.length}{copies})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankedLists) and super().__eq__(other) and self.fewest == other.fewest

    __hash__ = None  # type: ignore[assignment]


def is_list_of_distinct(row: Action) -> bool:
    """Whether a list has at least one item, names none twice, and is filled up at its end alone."""
    shown = row[row != NOBODY]
    return bool(shown.size > 0 and (row[: shown.size] != NOBODY).all() and np.unique(shown).size == shown.size)


@batch_space.register(RankedLists)
def _batch_lists(space: RankedLists, n: int = 1) -> RankedLists:
    random = deepcopy(space.np_random)
    return RankedLists(items=space.items, length=space.length, fewest=space.fewest, copies=n, seed=random)


class CascadeEnv(gymnasium.Env[Observation, Action]):
    """A world, round by round. An episode is ``rounds`` rounds long, and then truncated; it never terminates.

    An observation has the ``user`` who arrives, the features of the ``items``, a row each, and how many are on offer
    (``offered``); rows beyond that are 0. An action is a list of distinct items, best first, as numbers of rows.

    ``info`` of a step says what became of the list: ``click`` (the first position that was clicked, or -1), ``clicks``
    (1 for each position that was), ``looked_until`` (the last position that was looked at), ``attraction`` (the chance
    of a click), ``best`` (that of the best list) and ``regret``, which is 0 for poisoning users. For the
    observation that comes with it, it has ``round``, and what our own agents are given: ``ties`` and ``draw``.

    Args:
        world: any ``Environment``, for instance ``Synthetic()``; users click by its own model.
        list_length: K, how many items a list has.
        rounds: how long an episode is.
        reward: "click": 1 if anything was clicked; "clicks": how often; "attraction": the chance of a click, which
            is the expectation of the first.
        render_mode: None; there is nothing to draw.

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
        world: Environment,
        *,
        list_length: int = 4,
        rounds: int = 10_000,
        reward: str = "click",
        render_mode: str | None = None,
    ) -> None:
        require_integer("rounds", rounds)
        require_known("reward", reward, REWARDS)
        require(render_mode is None, f"render_mode must be None: there is nothing to draw, got '{render_mode}'")
        most = world.most_items
        oracle = TopK(length=list_length)
        require(list_length <= most, f"list length must be <= items ({most}), got {list_length}")
        self.world, self.rounds, self.oracle, self.render_mode = world, rounds, oracle, render_mode
        self._original, self._measure_reward, self._round = world, REWARDS[reward], 0
        roles = world.history.user_roles if isinstance(world, Clustered) else ()
        self._poisoning = frozenset(user for user, role in enumerate(roles) if role.kind == "poisoning")
        fewest = getattr(world, "fewest_items", most)
        self.action_space: RankedLists = RankedLists(items=most, length=list_length, fewest=fewest)
        self.observation_space = spaces.Dict(
            {
                "user": spaces.Discrete(world.users),
                "items": spaces.Box(-1.0, 1.0, (most, world.dimension), np.float32),
                "offered": spaces.Discrete(most, start=1),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        """Begin an episode: the same users with the same wishes, in rounds that ``seed`` names.

        The seed of the world itself gives the rounds that ``simulate`` plays. A world that cannot draw other rounds
        plays the same ones in every episode.
        """
        super().reset(seed=seed, options=options)
        drawn = int(self.np_random.integers(2**63)) if seed is None else seed
        begin = getattr(self._original, "with_other_rounds", None)
        self.world = self._original if begin is None else begin(drawn)
        self._round = 0
        return self._observe()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Show a list to the user, and go on to the next round; a list that cannot be shown is refused."""
        require(1 <= self._round <= self.rounds, "there is no round to play: call reset() first")
        world, t = self.world, self._round
        items = self._read_list(action)
        weights = world.weights(t, self._user, self._features)
        clicks, compute_reward = click_list(world, t, items, weights[items])
        best, attraction = compute_reward(weights[self.oracle.best(weights)]), compute_reward(weights[items])
        marks = np.zeros(self.oracle.length, np.int8)
        marks[list(clicks)] = 1
        played = {
            "click": clicks[0] if clicks else NOBODY,
            "clicks": marks,
            "looked_until": examine(items.size, clicks).examined - 1,
            "attraction": attraction,
            "best": best,
            "regret": 0.0 if self._user in self._poisoning else best - attraction,
        }
        observation, info = self._observe()
        return observation, self._measure_reward(played), False, t == self.rounds, played | info

    def _observe(self) -> tuple[Observation, dict[str, Any]]:
        """Go on to the next round: who arrives, and what is on offer."""
        self._round += 1
        world, t = self.world, self._round
        self._user, self._features = world.arrival(t), world.items(t)
        offered = len(self._features)
        items = np.zeros((world.most_items, world.dimension), np.float32)
        ties = np.zeros(world.most_items, np.uint32)
        items[:offered], ties[:offered] = self._features, world.ties(t, offered)
        observation = {"user": np.int64(self._user), "items": items, "offered": np.int64(offered)}
        return observation, {"round": t, "ties": ties, "draw": world.draw(t)}

    def _read_list(self, action: Any) -> NDArray[np.intp]:
        """The items of an action, without what fills it up."""
        length, offered = self.oracle.length, len(self._features)
        row = np.asarray(action)
        is_row = row.shape == (length,) and row.dtype.kind in "iu"
        require(is_row, f"an action must be {length} whole numbers, got {row.dtype} of shape {row.shape}")
        row = row.astype(np.int64)
        is_good = is_list_of_distinct(row) and row.min() >= NOBODY and row.max() < offered
        require(is_good, f"an action must name distinct items in 0..{offered - 1}, then -1, got {row.tolist()}")
        items: NDArray[np.intp] = row[row != NOBODY].astype(np.intp)
        is_long = items.size == length or self.action_space.fewest < length
        require(is_long, f"an action must name {length} items, got {items.size}")
        return items


OWN = ("list_length", "rounds", "reward", "render_mode")  # arguments of CascadeEnv; others are those of the world


def make_world(world: Environment | None = None, **options: Any) -> CascadeEnv:
    """Make the environment of a world that you have; options are those of ``CascadeEnv``."""
    require(world is not None, "fedcascade/World-v0 needs a world: make(..., world=Synthetic())")
    assert world is not None
    return CascadeEnv(world, **options)


def make_synthetic(**options: Any) -> CascadeEnv:
    """Make the environment of a synthetic world; options are those of ``SyntheticOptions`` and ``CascadeEnv``."""
    return _wrap(Synthetic, options)


def make_ratings(*, ratings: str | PathLike[str] | Triplets | None = None, **options: Any) -> CascadeEnv:
    """Make the environment of a file of ratings; options are those of ``RatingsOptions`` and ``CascadeEnv``."""
    require(ratings is not None, "fedcascade/Ratings-v0 needs a file: make(..., ratings='ratings.csv')")
    assert ratings is not None
    triplets = ratings if isinstance(ratings, Triplets) else read_ratings(ratings)
    return _wrap(lambda **sizes: Ratings(triplets, **sizes), options)


def _wrap(build: Callable[..., Clustered], options: dict[str, Any]) -> CascadeEnv:
    """Build a world with those options that are not of the environment."""
    own = {name: options.pop(name) for name in OWN if name in options}
    try:
        world = build(**options)
    except TypeError as error:
        raise ValueError(f"this world cannot be made: {error}") from None
    return CascadeEnv(world, **own)


IDS: Mapping[str, Callable[..., CascadeEnv]] = {
    "fedcascade/Synthetic-v0": make_synthetic,
    "fedcascade/Ratings-v0": make_ratings,
    "fedcascade/World-v0": make_world,
}


def register_environments() -> None:
    """Let ``gymnasium.make`` know our worlds, once."""
    for name, maker in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{maker.__module__}:{maker.__name__}")
