"""Worlds as Gymnasium environments: ``gymnasium.make("fedcascade/Synthetic-v0")`` after ``import fedcascade.gym``."""

from importlib.util import find_spec

if find_spec("gymnasium") is None:
    raise ImportError("fedcascade.gym needs gymnasium: pip install 'fedcascade[gymnasium]'")

from fedcascade.gym.environment import IDS, CascadeEnv, RankedLists, register_environments
from fedcascade.gym.player import Player

__all__ = ["IDS", "CascadeEnv", "Player", "RankedLists"]

register_environments()
