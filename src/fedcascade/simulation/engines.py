"""Selection of an engine: the requested one if it supports all parts of the scenario, else a simpler one."""

import warnings
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Literal, Unpack, get_args

from fedcascade.checks import require, require_known
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import Policy
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact.lowering import find_unsupported
from fedcascade.simulation.scenario import Progress, Scenario, ScenarioOptions
from fedcascade.simulation.trace import Trace

EngineName = Literal["exact", "reference", "cuda"]


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
        options: ``checkpoints``, ``keep_lists``, ``warm`` and ``own_rounds``, as in ``Scenario``.

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
    if engine == "reference":
        return reference.simulate(scenario, progress)
    return _simulate_on_processor(scenario, progress, threads)


def _simulate_on_processor(scenario: Scenario, progress: Progress | None, threads: int | None = None) -> Trace:
    """Run a scenario with the exact engine, or with the reference and a warning if a part has no compiled form."""
    unsupported = find_unsupported(scenario)
    if unsupported is None:
        return exact.simulate(scenario, progress=progress, threads=threads)
    message = f"the exact engine does not support the {unsupported} of {scenario.policy.name}: using the reference"
    warnings.warn(message, stacklevel=3)
    return reference.simulate(scenario, progress)


def simulate_in_turns(scenarios: Sequence[Scenario], progress: Progress | None = None) -> list[Trace]:
    """Run scenarios with the exact engine on one core; scenarios with the same items draw them once.

    ``progress`` counts the rounds of all scenarios.
    """
    parts: dict[Hashable, list[int]] = {}
    for number, scenario in enumerate(scenarios):
        parts.setdefault(exact.identify_items(scenario) or f"run {number}", []).append(number)
    traces: dict[int, Trace] = {}
    done = 0
    for part in parts.values():
        members = [scenarios[number] for number in part]
        report = progress and partial(_add_done, progress, done)
        if len(part) == 1:
            traces[part[0]] = _simulate_on_processor(members[0], report, threads=1)
        else:
            traces.update(zip(part, exact.simulate_in_turns(members, report), strict=True))
        done += sum(scenario.rounds for scenario in members)
    return [traces[number] for number in range(len(scenarios))]


def simulate_together(scenarios: Sequence[Scenario], progress: Progress | None = None) -> Iterator[tuple[int, Trace]]:
    """Run many scenarios at once on a GPU; those with an unsupported part follow on the processor.

    Yields the number of each scenario and its Trace as it ends. ``progress`` counts the rounds of all scenarios.
    """
    # Imported here, because only this engine needs numba's CUDA target.
    from fedcascade.simulation.cuda import engine as cuda
    from fedcascade.simulation.cuda import lowering
    from fedcascade.simulation.cuda.device import check_device

    check_device()
    unsupported = {number: lowering.find_unsupported(scenario) for number, scenario in enumerate(scenarios)}
    supported = [number for number, part in unsupported.items() if part is None]
    for place, trace in cuda.simulate_all([scenarios[number] for number in supported], progress):
        yield supported[place], trace
    done = sum(scenarios[number].rounds for number in supported)
    for number in sorted(set(unsupported) - set(supported)):
        scenario, part = scenarios[number], unsupported[number]
        message = f"the cuda engine does not support the {part} of {scenario.policy.name}: using the processor"
        warnings.warn(message, stacklevel=2)
        yield number, _simulate_on_processor(scenario, progress and partial(_add_done, progress, done))
        done += scenario.rounds


def _add_done(progress: Progress, done: int, rounds: int) -> None:
    progress(done + rounds)
