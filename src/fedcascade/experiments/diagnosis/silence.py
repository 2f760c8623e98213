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
    arrivals, needed = world.arrivals(1, trace.rounds), math.ceil(math.sqrt(1 / delta))
    spoken = [(exchange.agent, exchange.round, exchange.cause is Cause.AUXILIARY) for exchange in trace.ledger]
    measured = []
    for start in starts:
        windows = {user: start + 1 + np.flatnonzero(arrivals[start:] == user)[:needed] for user in range(world.users)}
        last = {user: rounds[-1] for user, rounds in windows.items() if rounds.size == needed}
        if not last:
            continue
        heard = {user for user, t, _ in spoken if start < t <= last.get(user, 0)}
        heard_by_chance = {user for user, t, by_chance in spoken if by_chance and start < t <= last.get(user, 0)}
        rounds_of = np.array([windows[user] for user in last])
        chances = np.minimum(p_scale * np.log(rounds_of) / rounds_of, 1 - 1e-12)
        expected = float(np.mean(np.exp(np.log1p(-chances).sum(axis=1))))
        alone, none = 1 - len(heard_by_chance) / len(last), 1 - len(heard) / len(last)
        measured.append(Silence(start, needed, len(last), alone, none, expected, delta**1.5))
    return measured
