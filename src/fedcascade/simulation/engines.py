"""Which engine runs a simulation: the one that was asked for where it knows every part, else a simpler one."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, cast, get_args

from fedcascade.checks import require, require_known
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import Policy
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace

Engine = Literal["exact", "reference", "cuda"]


def simulate(
    environment: Environment,
    policy: Policy,
    *,
    rounds: int,
    oracle: Oracle | None = None,
    engine: Engine = "exact",
    threads: int | None = None,
    checkpoints: int = 10,
    keep_lists: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Run a policy in an environment.

    Args:
        environment: who arrives, what is on offer, what gets clicked.
        policy: the system, for instance ``POLICIES["fedc3ucb-h"]``.
        rounds: T.
        oracle: chooses the list from the scores; ``TopK(length=4)`` if None.
        engine: "exact" (compiled, on all cores), "reference" (readable) or "cuda" (on a GPU); all give the same
            Trace. A part that an engine does not know makes it fall back, from the GPU to the exact engine, from
            there to the reference, with a warning.
        threads: how many cores the exact engine uses; all if None.
        checkpoints: at how many evenly spaced rounds totals are kept.
        keep_lists: also keep every list, which takes memory in proportion to the rounds.
        progress: called now and then with the number of rounds that are done; the exact engine begins with 0, when
            its code is compiled or loaded.

    >>> from fedcascade import POLICIES, Synthetic, simulate
    >>> world = Synthetic(users=4, clusters=2, dimension=5, items=10)
    >>> fast = simulate(world, POLICIES["fedc3ucb-h"], rounds=500)
    >>> slow = simulate(world, POLICIES["fedc3ucb-h"], rounds=500, engine="reference")
    >>> fast.ledger == slow.ledger, fast.curve == slow.curve
    (True, True)
    """
    require_known("engine", engine, get_args(Engine))
    given = type(policy).__name__
    require(isinstance(policy, Policy), f"policy must be a Policy, such as POLICIES['fedc3ucb-h'], got a {given}")
    oracle = oracle or TopK()
    if engine == "cuda":
        case = Scenario(cast(Clustered, environment), policy, rounds, cast(TopK, oracle), checkpoints, keep_lists)
        return next(simulate_together([case], progress))[1]
    unknown = exact.unknown_part(environment, policy, oracle) if engine == "exact" else None
    if unknown is not None:
        warnings.warn(
            f"the exact engine does not know the {unknown} of {policy.name}: using the reference", stacklevel=2
        )
    if engine == "reference" or unknown is not None:
        return reference.simulate(
            environment,
            policy,
            rounds=rounds,
            oracle=oracle,
            checkpoints=checkpoints,
            keep_lists=keep_lists,
            progress=progress,
        )
    return exact.simulate(
        cast(Clustered, environment),
        policy,
        rounds=rounds,
        oracle=cast(TopK, oracle),
        checkpoints=checkpoints,
        keep_lists=keep_lists,
        progress=progress,
        threads=threads,
    )


def simulate_together(
    cases: Sequence[Scenario], tell: Callable[[int], None] | None = None
) -> Iterator[tuple[int, Trace]]:
    """Run many cases at once on a GPU; those with a part that the CUDA engine does not know follow on the processor.

    Args:
        cases: what to run.
        tell: called now and then with the number of rounds that are done, of all cases together.

    Yields:
        The number of a case and its Trace, as each ends.
    """
    # Nobody else needs numba's CUDA target.
    from fedcascade.simulation.cuda import engine as cuda
    from fedcascade.simulation.cuda.device import check_device

    check_device()
    unknown = {number: cuda.unknown_part(case) for number, case in enumerate(cases)}
    known_ones = [number for number, part in unknown.items() if part is None]
    for which, trace in cuda.simulate_all([cases[number] for number in known_ones], tell):
        yield known_ones[which], trace
    done = sum(cases[number].rounds for number in known_ones)
    for number in sorted(set(unknown) - set(known_ones)):
        case = cases[number]
        warnings.warn(
            f"the cuda engine does not know the {unknown[number]} of {case.policy.name}: using the processor",
            stacklevel=2,
        )
        yield number, _on_the_processor(case, None if tell is None else partial(_add, tell, done))
        done += case.rounds


def _add(tell: Callable[[int], None], done: int, rounds: int) -> None:
    tell(done + rounds)


def _on_the_processor(case: Scenario, progress: Callable[[int], None] | None) -> Trace:
    return simulate(
        case.environment,
        case.policy,
        rounds=case.rounds,
        oracle=case.oracle,
        checkpoints=case.checkpoints,
        keep_lists=case.keep_lists,
        progress=progress,
    )
