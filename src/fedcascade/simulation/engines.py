"""Selection of an engine: the requested one if it supports all parts of the scenario, else a simpler one."""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Literal, Unpack, get_args

from fedcascade.checks import require, require_known
from fedcascade.environments.environment import Environment
from fedcascade.federation.decisions import ItemShares
from fedcascade.federation.policies import Policy
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation import popularity, reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact.lowering import find_unsupported
from fedcascade.simulation.scenario import Progress, Scenario, ScenarioOptions
from fedcascade.simulation.trace import Trace

EngineName = Literal["exact", "reference", "cuda"]
ENGINES = "fedcascade.engines"  # the entry points of engines in other packages


def simulate(
    environment: Environment,
    policy: Policy,
    *,
    rounds: int,
    oracle: Oracle | None = None,
    engine: EngineName = "exact",
    threads: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[ScenarioOptions],
) -> Trace:
    """Run a policy in an environment.

    Args:
        environment: users, items and clicks, such as ``Synthetic()``.
        policy: for instance ``POLICIES["fedc3ucb-h"]``.
        rounds: T.
        oracle: chooses the list from the scores; ``TopK(length=4)`` if None.
        engine: "exact" (compiled, on all cores), "reference" (plain Python) or "cuda" (on a GPU), with the same Trace.
            With a part that it does not support, cuda falls back to exact, and exact to reference, with a warning.
        threads: cores of the exact engine; all if None.
        progress: called from time to time with the number of rounds done; the exact engine calls it with 0 after
            compilation.
        options: ``checkpoints``, ``keep_lists`` and ``warm``, as in ``Scenario``.

    >>> from fedcascade import POLICIES, Synthetic, simulate
    >>> environment = Synthetic(users=4, clusters=2, dimension=5, items=10)
    >>> fast = simulate(environment, POLICIES["fedc3ucb-h"], rounds=500)
    >>> slow = simulate(environment, POLICIES["fedc3ucb-h"], rounds=500, engine="reference")
    >>> fast.ledger == slow.ledger, fast.curve == slow.curve
    (True, True)
    """
    require_known("engine", engine, get_args(EngineName))
    got = type(policy).__name__
    require(isinstance(policy, Policy), f"policy must be a Policy, such as POLICIES['fedc3ucb-h'], got a {got}")
    chosen = TopK() if oracle is None else oracle
    is_oracle = hasattr(chosen, "length") and hasattr(chosen, "choose")
    require(is_oracle, f"oracle must be an Oracle, such as TopK(length=4), got a {type(oracle).__name__}")
    scenario = Scenario(environment, policy, rounds, chosen, **options)
    if engine == "cuda":
        return next(simulate_together([scenario], progress))[1]
    if engine == "reference" and not isinstance(policy.decision, ItemShares):
        return reference.simulate(scenario, progress)
    return simulate_scenario(scenario, progress, threads)


def simulate_scenario(scenario: Scenario, progress: Progress | None, threads: int | None = None) -> Trace:
    """Run a scenario with the exact engine, or with the reference and a warning if a part has no compiled form."""
    if isinstance(scenario.policy.decision, ItemShares):
        return popularity.simulate(scenario, progress)
    unsupported = find_unsupported(scenario)
    if unsupported is None:
        return exact.simulate(scenario, progress=progress, threads=threads)
    message = f"the exact engine does not support the {unsupported} of {scenario.policy.name}: using the reference"
    warnings.warn(message, stacklevel=3)
    return reference.simulate(scenario, progress)


def simulate_together(scenarios: Sequence[Scenario], progress: Progress | None = None) -> Iterator[tuple[int, Trace]]:
    """Run many scenarios at once on a GPU; those with an unsupported part follow on the processor.

    Yields the number of each scenario and its Trace as it ends. ``progress`` counts the rounds of all scenarios.
    """
    cuda = load_gpu_engine()
    cuda.check_device()
    unsupported = {number: cuda.find_unsupported(scenario) for number, scenario in enumerate(scenarios)}
    supported = [number for number, part in unsupported.items() if part is None]
    for place, trace in cuda.simulate_all([scenarios[number] for number in supported], progress):
        yield supported[place], trace
    done = sum(scenarios[number].rounds for number in supported)
    for number in sorted(set(unsupported) - set(supported)):
        scenario, part = scenarios[number], unsupported[number]
        message = f"the cuda engine does not support the {part} of {scenario.policy.name}: using the processor"
        warnings.warn(message, stacklevel=2)
        yield number, simulate_scenario(scenario, progress and partial(_add_done, progress, done))
        done += scenario.rounds


def load_gpu_engine() -> Any:
    """Load the engine of the package ``fedcascade-cuda``; raise a ValueError if it is not installed."""
    found = list(entry_points(group=ENGINES, name="cuda"))
    advice = "pip install 'fedcascade[gpu]'; --engine exact gives the same result on the processor"
    require(bool(found), f"the cuda engine needs the package fedcascade-cuda: {advice}")
    return found[0].load()


def _add_done(progress: Progress, done: int, rounds: int) -> None:
    progress(done + rounds)
