"""Recommend ranked lists, learn from clicks on each user's device, and discover which users are alike.

The names below are loaded on first use, so that ``import fedcascade`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcascade.environments.ratings import Ratings
    from fedcascade.environments.synthetic import Synthetic
    from fedcascade.evaluation.evaluate import evaluate as evaluate
    from fedcascade.experiments.compare import compare as compare
    from fedcascade.federation.agent import Agent
    from fedcascade.federation.policies import POLICIES, Policy, get_policy
    from fedcascade.federation.server import Server
    from fedcascade.learning.knapsack import Budget
    from fedcascade.learning.oracles import PerCategory, TopK
    from fedcascade.numerics.grid import normalise
    from fedcascade.ranker import Ranker as Ranker
    from fedcascade.saved import load_agent, load_server, save_agent, save_server
    from fedcascade.service.agent.connection import AsyncAgentPool as AsyncAgentPool
    from fedcascade.service.agent.connection import connect as connect
    from fedcascade.service.agent.connection import connect_async as connect_async
    from fedcascade.service.agent.options import AgentOptions as AgentOptions
    from fedcascade.service.agent.pool import AgentPool as AgentPool
    from fedcascade.service.protocol.arms import choose_arm as choose_arm
    from fedcascade.simulation.engines import simulate
    from fedcascade.simulation.trace import Trace

__version__ = "0.3.0"

_HOME = {
    "load_agent": "saved", "load_server": "saved",
    "save_agent": "saved", "save_server": "saved",
    "Ratings": "environments.ratings", "Synthetic": "environments.synthetic",
    "evaluate": "evaluation.evaluate",
    "compare": "experiments.compare", "run_plan": "experiments.runner",
    "Agent": "federation.agent", "Server": "federation.server",
    "POLICIES": "federation.policies", "Policy": "federation.policies", "get_policy": "federation.policies",
    "Budget": "learning.knapsack", "normalise": "numerics.grid",
    "PerCategory": "learning.oracles", "TopK": "learning.oracles",
    "Ranker": "ranker",
    "connect": "service.agent.connection", "connect_async": "service.agent.connection",
    "AgentOptions": "service.agent.options", "AgentPool": "service.agent.pool",
    "AsyncAgentPool": "service.agent.connection",
    "choose_arm": "service.protocol.arms",
    "Trace": "simulation.trace", "simulate": "simulation.engines",
}  # fmt: skip

# What ``from fedcascade import *`` brings: the names that need no extra.
__all__ = ["POLICIES", "Agent", "Budget", "PerCategory", "Policy", "Ratings", "Server", "Synthetic", "TopK",
           "Trace", "__version__", "get_policy", "load_agent", "load_server", "normalise", "save_agent", "save_server",
           "simulate"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedcascade' has no attribute '{name}'")
    return getattr(import_module(f"fedcascade.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*_HOME, *__all__})
