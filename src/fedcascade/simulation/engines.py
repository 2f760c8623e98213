"""Which engine runs a simulation: the exact one where it knows every part, else the reference."""

import warnings
from collections.abc import Callable
from typing import Literal, cast, get_args

from fedcascade.checks import known
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import Policy
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation import exact, reference
from fedcascade.simulation.trace import Trace

Engine = Literal["exact", "reference"]


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
        engine: "exact" (compiled, on all cores) or "reference" (readable); both give the same Trace. A part
            that the exact engine does not know makes it fall back to the reference, with a warning.
        threads: how many cores the exact engine uses; all if None.
        checkpoints: at how many evenly spaced rounds totals are kept.
        keep_lists: also keep every list, which takes memory in proportion to the rounds.
        progress: called now and then with the number of rounds that are done.

    >>> from fedcascade import POLICIES, Synthetic, simulate
    >>> world = Synthetic(users=4, clusters=2, dimension=5, items=10)
    >>> fast = simulate(world, POLICIES["fedc3ucb-h"], rounds=500)
    >>> slow = simulate(world, POLICIES["fedc3ucb-h"], rounds=500, engine="reference")
    >>> fast.ledger == slow.ledger, fast.curve == slow.curve
    (True, True)
    """
    known("engine", engine, get_args(Engine))
    oracle = oracle or TopK()
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
