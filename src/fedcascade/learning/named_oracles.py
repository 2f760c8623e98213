"""Oracles by name, for the command line and for plans, plug-ins included."""

from collections.abc import Mapping
from typing import Any

from fedcascade.checks import require_known
from fedcascade.learning.exploration import EpsilonMixed, PlackettLuce
from fedcascade.learning.knapsack import Budget
from fedcascade.learning.oracles import Oracle, PerCategory, TopK
from fedcascade.plugins import get_plugin, list_plugins

ORACLES: dict[str, type[TopK | PerCategory | Budget | PlackettLuce | EpsilonMixed]] = {
    "top-k": TopK,
    "per-category": PerCategory,
    "budget": Budget,
    "plackett-luce": PlackettLuce,
    "epsilon": EpsilonMixed,
}


def build_oracle(name: str, length: int, arguments: Mapping[str, Any] | None = None) -> Oracle:
    """Build the oracle of that name for lists of ``length``, with further arguments.

    >>> build_oracle("per-category", 3, {"limit": 2})
    PerCategory(length=3, limit=2)
    """
    given = dict(arguments or {})
    if name in ORACLES:
        fields = [field for field in ORACLES[name].__dataclass_fields__ if field != "length"]
        for argument in given:
            require_known(f"argument of oracle {name}", argument, fields)
        return ORACLES[name](length=length, **given)
    require_known("oracle", name, [*ORACLES, *(plugin.name for plugin in list_plugins("oracle"))])
    oracle: Oracle = get_plugin("oracle", name).build(length=length, **given)
    return oracle
