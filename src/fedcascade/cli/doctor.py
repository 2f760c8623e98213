"""``fedcascade doctor``: check the installation."""

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Any, Literal

from fedcascade import __version__
from fedcascade.checks import EXTRAS, list_missing
from fedcascade.cli import terminal
from fedcascade.cli.options import Json, option
from fedcascade.platforms import count_cores
from fedcascade.plugins import Plugin, list_plugins

STORE_NOTE = "its contract needs a database: inherit fedcascade.testing.stores:StoreContract in a test"
LIBRARIES = ("numpy", "numba", "llvmlite", "msgspec", "rich", "cyclopts")


@dataclass(frozen=True)
class Finding:
    """A component and its state; only some commands need an absent component."""

    what: str
    state: Literal["good", "absent", "broken"]
    words: str


def doctor(
    *,
    check: Annotated[
        bool, option("Also check each plug-in against the contracts of fedcascade.testing.", show_default=False)
    ] = False,
    json_: Json = False,
) -> None:
    """Check the installation: versions, extras, cores, compiled code, GPU, plug-ins.

    Exits with 1 if something is broken. Absent components are listed with the command that installs them.
    """
    findings = list(_examine(check=check))
    if json_:
        print(json.dumps([asdict(each) for each in findings]))
    else:
        rows = [(each.what, each.state, each.words) for each in findings]
        terminal.show(terminal.make_table("fedcascade doctor", ("component", "state", "details"), rows))
    if any(each.state == "broken" for each in findings):
        sys.exit(1)


def _examine(*, check: bool) -> Iterator[Finding]:
    yield Finding("fedcascade", "good", f"{__version__}, on {platform.system()} {platform.machine()}")
    yield Finding("Python", "good", f"{platform.python_version()} ({platform.python_implementation()})")
    yield from map(_find_library, LIBRARIES)
    yield from map(_find_extra, EXTRAS)
    yield Finding("cores", "good", f"{count_cores()} of {os.cpu_count()} usable")
    yield _find_code_folder()
    yield _find_gpu()
    yield Finding("SQLite", "good", sqlite3.sqlite_version)
    yield from (_examine_plugin(plugin, check=check) for plugin in list_plugins())


def _find_library(name: str) -> Finding:
    try:
        return Finding(name, "good", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "broken", f"not installed: pip install '{name}'")


def _find_extra(extra: str) -> Finding:
    if missing := list_missing(extra):
        return Finding(f"extra {extra}", "absent", f"no {', '.join(missing)}: pip install 'fedcascade[{extra}]'")
    return Finding(f"extra {extra}", "good", "installed")


def _find_code_folder() -> Finding:
    from fedcascade.numerics.code_cache import find_code_folder

    folder, is_writable = find_code_folder()
    if folder is None:
        advice = "none is writable, so every process recompiles: set NUMBA_CACHE_DIR to a writable folder"
        return Finding("folder of compiled code", "broken", advice)
    return Finding("folder of compiled code", "good", folder if is_writable else f"{folder} (read-only)")


def _find_gpu() -> Finding:
    from fedcascade.simulation.engines import load_gpu_engine

    try:
        return Finding("GPU", "good", load_gpu_engine().describe_device())
    except ValueError as error:
        return Finding("GPU", "absent", str(error))


def _examine_plugin(plugin: Plugin, *, check: bool) -> Finding:
    """Load a plug-in of another package; with ``check``, also run its contract."""
    from fedcascade.federation.policies import get_policy

    what, state = f"{plugin.kind} {plugin.name}", "loads"
    try:
        found = get_policy(plugin.name) if plugin.kind == "policy" else plugin.load()
        if check:
            state = _check_plugin(plugin, found)
    except Exception as error:  # a plug-in may raise anything
        return Finding(what, "broken", " ".join(f"{error}".split()) or type(error).__name__)
    return Finding(what, "good", f"{plugin.target} of {plugin.distribution}: {state}")


def _check_plugin(plugin: Plugin, found: Any) -> str:
    from fedcascade.testing import check_environment, check_oracle, check_policy

    match plugin.kind:
        case "policy":
            check_policy(found)
        case "environment":
            check_environment(plugin.build(seed=0))
        case "oracle":
            check_oracle(plugin.build(length=4))
        case _:
            return f"loads; {STORE_NOTE}"
    return "passes its contract"
