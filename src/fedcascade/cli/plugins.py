"""``fedcascade plugins`` and ``fedcascade vectors``: what other packages add, and what agents must agree with."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from fedcascade.cli import terminal
from fedcascade.cli.options import Json, Whole, option
from fedcascade.federation.policies import get_policy
from fedcascade.plugins import Plugin, list_plugins

STORE_NOTE = "loads; its contract needs a database: inherit fedcascade.testing.stores:StoreContract in a test"


def plugins(
    *,
    check: Annotated[
        bool, option("Hold each of them to the contracts of fedcascade.testing.", show_default=False)
    ] = False,
    json_: Json = False,
) -> None:
    """List the policies, environments, oracles and stores that other packages add, and what is wrong with them.

    Example: fedcascade plugins --check
    """
    rows = [describe_plugin(plugin, check=check) for plugin in list_plugins()]
    if json_:
        print(json.dumps(rows))
    elif rows:
        columns = ("kind", "name", "package", "target", "state")
        cells = [[row[column] for column in columns] for row in rows]
        terminal.show(terminal.make_table("plug-ins of other packages", columns, cells, lines=True))
    else:
        print("no installed package adds a policy, environment, oracle or store")
    if not all(row["good"] for row in rows):
        sys.exit(1)


def describe_plugin(plugin: Plugin, *, check: bool) -> dict[str, Any]:
    """Return what a plug-in is and in which state, in one line; ``good`` says whether it can be used."""
    row = {"kind": plugin.kind, "name": plugin.name, "package": plugin.distribution, "target": plugin.target}
    try:
        state = _check(plugin) if check else _load(plugin)
    except Exception as error:  # a plug-in may raise anything, and the others are still to be listed
        return row | {"good": False, "state": " ".join(f"{error}".split()) or type(error).__name__}
    return row | {"good": True, "state": state}


def _load(plugin: Plugin) -> str:
    if plugin.kind == "policy":
        get_policy(plugin.name)
    else:
        plugin.load()
    return "loads"


def _check(plugin: Plugin) -> str:
    """Hold a plug-in to the contract of its kind; returns its state."""
    from fedcascade.testing import check_environment, check_oracle, check_policy

    match plugin.kind:
        case "policy":
            check_policy(get_policy(plugin.name))
        case "environment":
            check_environment(plugin.build(seed=0))
        case "oracle":
            check_oracle(plugin.build(length=4))
        case "store":
            plugin.load()
            return STORE_NOTE
        case _:
            raise ValueError(f"no contract for plug-ins of kind '{plugin.kind}'")
    return "keeps its contract"


def vectors(
    *,
    out: Annotated[Path, option("Folder to write to: one JSON file for each kind of case.")],
    seed: Annotated[Whole, option("Names the cases.")] = 1,
) -> None:
    """Write what the Python agent does, case by case, for agents in other languages to agree with.

    Example: fedcascade vectors --out vectors
    """
    from fedcascade.testing.vectors.files import write_vectors

    counts = write_vectors(out, seed)
    for kind, count in counts.items():
        print(f"{kind:<12} {count:>4}")
    print(f"{'in all':<12} {sum(counts.values()):>4}")
