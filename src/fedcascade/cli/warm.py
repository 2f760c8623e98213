"""``fedcascade warm``: compile all code before its first use."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

from fedcascade.checks import list_missing
from fedcascade.cli.options import option
from fedcascade.cli.progress import print_line
from fedcascade.federation.policies import Policy, get_policy, load_policies
from fedcascade.federation.warm_start import precompile_agent
from fedcascade.simulation.exact.precompile import compile_around, compile_loops

DIMENSION = 3  # the compiled code serves any dimension


def warm(
    *,
    policy: Annotated[list[str], option("Policy to compile for. Repeatable. [default: all]", show_default=False)] = [],  # noqa: B006 (never changed)
) -> None:
    """Compile the code of simulations, servers and agents, once per installation."""
    policies = [get_policy(name) for name in policy] or list(load_policies().values())
    steps: dict[str, Callable[[Sequence[Policy]], None]] = {
        "rounds of simulations": compile_loops,
        "servers in simulations": compile_around,
        "agents": _precompile_agents,
    }
    if not list_missing("server"):
        steps["servers"] = _precompile_servers
    for words, precompile in steps.items():
        started = time.perf_counter()
        precompile(policies)
        print_line(f"{words}: {time.perf_counter() - started:.1f} s")


def _precompile_agents(policies: Sequence[Policy]) -> None:
    for each in policies:
        precompile_agent(each, DIMENSION)


def _precompile_servers(policies: Sequence[Policy]) -> None:
    from fedcascade.service.server import state, verifier
    from fedcascade.service.server.serve import ServerSettings

    verifier.precompile(DIMENSION)
    for each in policies:
        with suppress(ValueError):  # no server can run this policy
            state.warm_up(ServerSettings(store="", policy=each, dimension=DIMENSION).policy, DIMENSION)
