"""The names under which Gymnasium makes our worlds."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import gymnasium

from fedcascade.checks import require
from fedcascade.data.readers import read_ratings
from fedcascade.environments.behaviours import Behaviour
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.environments.life import Change, Life
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.gym.environment import CascadeEnv

OWN = ("list_length", "rounds", "reward", "render_mode")  # arguments of CascadeEnv; others are those of the world


def make_world(world: Environment | None = None, **options: Any) -> CascadeEnv:
    """The environment of a world that you have; options are those of ``CascadeEnv``."""
    require(world is not None, "fedcascade/World-v0 needs a world: make(..., world=Synthetic())")
    assert world is not None
    return CascadeEnv(world, **options)


def make_synthetic(**options: Any) -> CascadeEnv:
    """The environment of a synthetic world; options are those of ``Synthetic`` and ``CascadeEnv``."""
    return _wrap(Synthetic, options)


def make_living(*, life: Life | None = None, rounds: int = 10_000, **options: Any) -> CascadeEnv:
    """The environment of a population that lives; half of each cluster changes half-way through if ``life`` is None."""
    happening = Life(change=Change(at=max(2, rounds // 2))) if life is None else life
    return _wrap(Synthetic, {**options, "rounds": rounds, "life": happening})


def make_ratings(*, ratings: str | PathLike[str] | Triplets | None = None, **options: Any) -> CascadeEnv:
    """The environment of a file of ratings; options are those of ``Ratings`` and ``CascadeEnv``."""
    require(ratings is not None, "fedcascade/Ratings-v0 needs a file: make(..., ratings='ratings.csv')")
    assert ratings is not None
    triplets = ratings if isinstance(ratings, Triplets) else read_ratings(ratings)
    return _wrap(lambda **sizes: Ratings(triplets, **sizes), options)


def _wrap(build: Callable[..., Clustered], options: dict[str, Any]) -> CascadeEnv:
    """Build a world with those options that are not of the environment; ``clicks`` and ``level`` name a click model."""
    own = {name: options.pop(name) for name in OWN if name in options}
    model, level = options.pop("clicks", "cascade"), options.pop("level", 0.5)
    try:
        world = build(**options)
    except TypeError as error:
        raise ValueError(f"this world cannot be made: {error}") from None
    return CascadeEnv(world if model == "cascade" else world.with_behaviour(Behaviour(model=model, level=level)), **own)


IDS: Mapping[str, Callable[..., CascadeEnv]] = {
    "fedcascade/Synthetic-v0": make_synthetic,
    "fedcascade/Living-v0": make_living,
    "fedcascade/Ratings-v0": make_ratings,
    "fedcascade/World-v0": make_world,
}


def register_environments() -> None:
    """Let ``gymnasium.make`` know our worlds, once."""
    for name, maker in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{maker.__module__}:{maker.__name__}")
