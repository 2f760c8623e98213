"""Gymnasium environments: ``gymnasium.make("fedcascade/Synthetic-v0")`` after ``import fedcascade.gym``."""

from fedcascade.checks import list_missing, require_extra

if list_missing("gymnasium"):
    require_extra("gymnasium", "fedcascade.gym")

from fedcascade.gym.environment import IDS, CascadeEnv, register_environments
from fedcascade.gym.player import Player

__all__ = ["IDS", "CascadeEnv", "Player"]

register_environments()
