"""Lemma 1.1 in a run: how many agents stay silent for sqrt(1/delta) of their arrivals after some round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcascade.environments.clustered import Clustered
from fedcascade.federation.messages import Cause
from fedcascade.simulation.trace import Trace


@dataclass(frozen=True)
class Silence:
    """Of the agents that arrived ``arrivals`` times after round ``start``, the shares that had no exchange till then.

    ``by_chance`` looks at auxiliary exchanges alone, as the proof does; ``at_all`` at all of them. ``expected`` is what
    the probabilities p_t of those rounds give for ``by_chance``, and ``claimed`` is the lemma's delta^1.5.
    """

    start: int
    arrivals: int
    agents: int
    by_chance: float
    at_all: float
    expected: float
    claimed: float


def measure_silence(
    world: Clustered, trace: Trace, *, starts: Sequence[int], delta: float, p_scale: float
) -> list[Silence]:
    """Count the silent after each of ``starts``; agents without enough arrivals in the run are left out."""
    arrivals = world.arrivals(1, trace.rounds)
    rounds_of = [np.flatnonzero(arrivals == user) + 1 for user in range(world.users)]
    exchanges: dict[bool, dict[int, list[int]]] = {True: {}, False: {}}
    for exchange in trace.ledger:
        for by_chance in {exchange.cause is Cause.AUXILIARY, False}:
            exchanges[by_chance].setdefault(exchange.agent, []).append(exchange.round)
    needed = math.ceil(math.sqrt(1 / delta))
    measured = []
    for start in starts:
        windows = {user: rounds[rounds > start][:needed] for user, rounds in enumerate(rounds_of)}
        windows = {user: rounds for user, rounds in windows.items() if rounds.size == needed}
        silent = {
            by_chance: [
                not any(start < spoken <= rounds[-1] for spoken in exchanges[by_chance].get(user, ()))
                for user, rounds in windows.items()
            ]
            for by_chance in (True, False)
        }
        expected = [
            math.exp(np.log1p(-np.minimum(p_scale * np.log(rounds) / rounds, 1 - 1e-12)).sum())
            for rounds in windows.values()
        ]
        if windows:
            alone, none, mean = (float(np.mean(values)) for values in (silent[True], silent[False], expected))
            measured.append(Silence(start, needed, len(windows), alone, none, mean, delta**1.5))
    return measured
