"""Compiled clicks: what a user does with a list, by the cascade or by another click model.

Where users follow the cascade, ``behaviour`` is None. Numba then compiles the cascade alone, so that it neither
compiles nor pays for the rest.
"""

import numpy as np

from fedcascade.environments.behaviours import CompiledBehaviour, Logistic, apply_link, fade_weight, goes_on, looks_at
from fedcascade.numerics import streams
from fedcascade.numerics.jit import jit_inline
from fedcascade.numerics.linear import Vector
from fedcascade.simulation.exact.ranking import compute_mean
from fedcascade.simulation.exact.screening import Scratch


@jit_inline
def click_list(
    behaviour: CompiledBehaviour | None,
    link: Logistic | None,
    seed: np.uint64,
    theta: Vector,
    scratch: Scratch,
    t: int,
    listed: int,
) -> tuple[int, int, float]:
    """Let a user look at the list; returns the first and the last click, or -1 and -1, and the chance of none.

    Users with a ``behaviour`` leave their clicks in ``scratch.clicked``, by the steps of ``mark_clicks``.
    """
    first, last, missed, stays = -1, -1, 1.0, True
    for position in range(listed):
        item = scratch.selected[position]
        weight = apply_link(link, compute_mean(theta, scratch.columns, item))
        missed *= 1.0 - fade_weight(behaviour, position, weight)
        if behaviour is None:
            if first < 0 and streams.uniform(seed, streams.CLICK, t, item) < weight:
                first = last = position
        else:
            is_clicked = stays and streams.uniform(seed, streams.CLICK, t, item) < weight
            is_clicked = is_clicked and looks_at(behaviour, seed, t, position)
            scratch.clicked[position] = is_clicked
            if is_clicked:
                first, last = position if first < 0 else first, position
                stays = goes_on(behaviour, seed, t, position, weight)
    return first, last, missed


@jit_inline
def add_other_clicks(
    behaviour: CompiledBehaviour | None,
    moment: Vector,
    gammas: Vector | None,
    scratch: Scratch,
    first: int,
    examined: int,
) -> int:
    """Learn from all clicks after the ``first``, as ``Statistics.observe`` does; returns how many clicks there were."""
    clicks = int(first >= 0)
    if behaviour is not None:
        for position in range(first + 1, examined):
            if first >= 0 and scratch.clicked[position]:
                clicks += 1
                for k in range(moment.size):
                    value = scratch.listed_features[position, k]
                    moment[k] += value if gammas is None else gammas[position] * value
    return clicks
