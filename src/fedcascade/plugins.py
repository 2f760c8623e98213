"""Plug-ins: policies, environments, oracles and stores of other packages, found by entry point."""

import inspect
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedcascade.checks import require, require_known

GROUPS = {
    "policy": "fedcascade.policies",
    "environment": "fedcascade.environments",
    "oracle": "fedcascade.oracles",
    "store": "fedcascade.stores",
}


class PluginError(ValueError):
    """An unusable plug-in, with its package, the reason and the remedy."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of another package; ``target`` is where it lives, as in ``module:name``."""

    kind: str
    name: str
    distribution: str
    target: str
    entry: EntryPoint = field(repr=False)

    def load(self) -> Any:
        """Load the object of the entry point; raise PluginError for any failure."""
        try:
            return self.entry.load()
        except (Exception, SystemExit) as error:
            raise self.refuse(f"{type(error).__name__}: {error}") from error

    def list_arguments(self) -> dict[str, inspect.Parameter]:
        """Return the arguments of the object by name; all must be keyword-only."""
        factory = self.load()
        if not callable(factory):
            raise self.refuse(f"it is of type {type(factory).__name__}, which takes no arguments")
        parameters = inspect.signature(factory).parameters
        if positional := [name for name, each in parameters.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]:
            raise self.refuse(f"its arguments must be keyword-only, {', '.join(positional)} is not")
        return dict(parameters)

    def build(self, **arguments: Any) -> Any:
        """Call the object, after refusing unknown and missing arguments."""
        parameters = self.list_arguments()
        for name in arguments:
            require_known(f"argument of {self.kind} '{self.name}'", name, parameters)
        needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
        missing = ", ".join(sorted(needed - arguments.keys()))
        require(not missing, f"{self.kind} '{self.name}' needs the arguments {missing}")
        try:
            return self.load()(**arguments)
        except ValueError:
            raise
        except Exception as error:
            raise self.refuse(f"{type(error).__name__}: {error}") from error

    def refuse(self, reason: str) -> PluginError:
        """Make the error for an unusable plug-in."""
        source = f"{self.kind} plug-in '{self.name}' ({self.target}) of {self.distribution}"
        line = " ".join(reason.split())
        return PluginError(f"{source} cannot be used: {line}; update or uninstall that package")


def list_plugins(*kinds: str) -> list[Plugin]:
    """List the plug-ins of these kinds, or of all, without importing them."""
    return [
        Plugin(kind, entry.name, _name_distribution(entry), entry.value, entry)
        for kind in kinds or GROUPS
        for entry in sorted(entry_points(group=GROUPS[kind]), key=lambda entry: entry.name)
    ]


def get_plugin(kind: str, name: str) -> Plugin:
    """Return a plug-in without importing it; refuse an unknown name."""
    offered = {plugin.name: plugin for plugin in list_plugins(kind)}
    if not offered:
        raise ValueError(f"unknown {kind} plug-in '{name}': no installed package offers any")
    require_known(f"{kind} plug-in", name, offered)
    return offered[name]


def _name_distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
