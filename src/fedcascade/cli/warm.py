"""``fedcascade warm``: compile all code before its first use."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
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
    for words, step in _list_steps(policies):
        started = time.perf_counter()
        step()
        print_line(f"{words}: {time.perf_counter() - started:.1f} s")


def _list_steps(policies: Sequence[Policy]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each step and the function that compiles it."""
    yield "rounds of simulations", partial(compile_loops, policies)
    yield "servers in simulations", partial(compile_around, policies)
    yield "agents", partial(_precompile_agents, policies)
    if not list_missing("server"):
        yield "servers", partial(_precompile_servers, policies)


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
