"""Drift detection at the agent, from its own clicks alone."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcascade.checks import NONNEGATIVE, POSITIVE, PROBABILITY, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.own_data import COUNTS, MOST_BLOCKS, OwnData, Row, add_list, add_row, copy_row
from fedcascade.learning.statistics import estimate_noise
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.numerics.linear import Features, Matrix, Vector

MIN_OBSERVATIONS = 4  # before a change, for a test to fire
MIN_PROBABILITY, MAX_PROBABILITY = 0.05, 0.95  # range of click probabilities in the CUSUM


@dataclass(frozen=True, kw_only=True)
class ChangeDetection(Part):
    """Two tests for drift on an agent's own data. When one fires, the agent restarts with the data after the change.

    *Split*: own data are stored in blocks of rounds. After each block, every cut into older data p and newer data s is
    tested. With E of ``measure_evidence``, the test fires if E(p + s) - E(p) - E(s) < -``threshold``; the data after
    the best cut are kept. *CUSUM*: finds a sudden drop in clicks sooner. The sum adds, for each examined item, the
    log-odds of a click probability p0 - ``drop`` against p0 = <theta, x> - ``caution`` ||x||, and never falls below 0.
    The test fires beyond ``limit``; the data since the sum was last 0 are kept.
    """

    threshold: float = constant(10.0, meaning="log-odds for drift at which the split test fires", range=POSITIVE)
    limit: float = constant(9.0, meaning="log-odds for fewer clicks at which the CUSUM test fires", range=POSITIVE)
    drop: float = constant(0.15, meaning="drop in click probability that the CUSUM tests for", range=PROBABILITY)
    caution: float = constant(0.45, meaning="widths subtracted from the predicted click probability", range=NONNEGATIVE)
    block: int = constant(8, meaning="rounds between two split tests", range=whole_numbers(1))

    def compile(self) -> "CompiledDetection":
        """Return the constants for compiled code."""
        return CompiledDetection(*(float(getattr(self, name)) for name in CompiledDetection._fields))


class CompiledDetection(NamedTuple):
    """The constants of a ``ChangeDetection``."""

    threshold: float
    limit: float
    drop: float
    caution: float
    block: float


@jit
def follow_list(
    own: OwnData,
    rule: CompiledDetection | None,
    listed: Features,
    examined: int,
    click: int,
    reward: float,
    theta: Vector,
    root: Matrix,
) -> bool:
    """Add a list to an agent's own data, and return whether a test fires; ``reward`` is that of the click.

    If one does, ``own`` keeps the data after the change. ``theta`` and ``root`` are the estimate that chose the list.
    """
    add_list(own.total, listed, examined, click, reward)
    if rule is None:
        return False
    rounds = own.total.size - 2
    newest = own.used[0] - 1
    if newest < 0 or own.blocks[newest, rounds] >= rule.block:
        newest = _open_block(own)
    add_list(own.blocks[newest], listed, examined, click, reward)
    _follow_clicks(own, rule, listed, examined, click, reward, theta, root)
    if own.blocks[newest, rounds] >= rule.block:
        first = _find_cut(own, rule)
        if first > 0:
            _keep_blocks(own, first)
            return True
    count = own.total.size - COUNTS
    if own.cusum[0] > rule.limit and own.total[count] >= own.since[count] + MIN_OBSERVATIONS:
        copy_row(own.blocks[0], own.since)
        own.levels[0] = 0
        own.used[0] = 1
        _keep_blocks(own, 0)
        return True
    return False


@jit_inline
def _open_block(own: OwnData) -> int:
    """Append a block and return its index; of three blocks of one size, merge the two older ones."""
    level = 0
    while True:
        oldest, equal = 0, 0
        for i in range(own.used[0] - 1, -1, -1):
            if own.levels[i] == level:
                oldest = i
                equal += 1
        if equal <= 2:
            break
        _merge_blocks(own, oldest)
        level += 1
    if own.used[0] == MOST_BLOCKS:
        _merge_blocks(own, 0)
    place = int(own.used[0])
    own.blocks[place] = 0.0
    own.levels[place] = 0
    own.used[0] += 1
    return place


@jit_inline
def _merge_blocks(own: OwnData, place: int) -> None:
    add_row(own.blocks[place], own.blocks[place + 1])
    own.levels[place] += 1
    for i in range(place + 1, own.used[0] - 1):
        copy_row(own.blocks[i], own.blocks[i + 1])
        own.levels[i] = own.levels[i + 1]
    own.used[0] -= 1


@jit_inline
def _keep_blocks(own: OwnData, first: int) -> None:
    """Drop all blocks before ``first``, and recompute the total."""
    own.total[:] = 0.0
    for i in range(first, own.used[0]):
        copy_row(own.blocks[i - first], own.blocks[i])
        own.levels[i - first] = own.levels[i]
        add_row(own.total, own.blocks[i - first])
    own.used[0] -= first
    own.since[:] = 0.0
    own.cusum[0] = 0.0


@jit_no_refcount
def measure_evidence(total: Row, row: Row, sign: float, noise: float, upper: Matrix, solution: Vector) -> float:
    """Return the log marginal likelihood of ``total`` plus ``sign`` times ``row``, for theta ~ N(0, I / d)."""
    d, k, prior = solution.size, 0, noise * solution.size
    for i in range(d):
        for j in range(i, d):
            upper[i, j] = total[k] + sign * row[k]
            k += 1
        upper[i, i] += prior
    for j in range(d):
        solution[j] = total[k + j] + sign * row[k + j]
    linear.factorise(upper)
    fit = linear.solve_factor_into(upper, solution)
    return float(0.5 * (fit / noise - linear.compute_log_det(upper) + d * log(prior)))


@jit
def _find_cut(own: OwnData, rule: CompiledDetection) -> int:
    """Return the first block after the most likely change, or 0 if the evidence is too weak."""
    total, count = own.total, own.total.size - COUNTS
    upper, solution = np.zeros_like(own.others_gram), np.zeros_like(own.others_moment)
    newer = np.zeros_like(total)
    noise = estimate_noise(total[count], total[count + 1] - total[count + 3])
    whole = measure_evidence(total, total, 0.0, noise, upper, solution)
    least, cut = -rule.threshold, 0
    for first in range(own.used[0] - 1, 0, -1):
        add_row(newer, own.blocks[first])
        if total[count] - newer[count] < MIN_OBSERVATIONS:
            break
        apart = measure_evidence(total, newer, -1.0, noise, upper, solution)
        apart += measure_evidence(newer, newer, 0.0, noise, upper, solution)
        if whole - apart < least:
            least, cut = whole - apart, first
    return cut


@jit_inline
def _follow_clicks(
    own: OwnData, rule: CompiledDetection, listed: Features, examined: int, click: int, reward: float, theta: Vector,
    root: Matrix,
) -> None:  # fmt: skip
    """Update the CUSUM with a list, and ``since`` with the data since it was last 0.

    A reward y counts as y of a click and 1 - y of none.
    """
    is_zero = own.cusum[0] == 0.0
    for position in range(examined):
        mean, square = 0.0, 0.0
        for j in range(theta.size):
            mean += theta[j] * listed[position, j]
            part = 0.0
            for k in range(j + 1):
                part += root[j, k] * listed[position, k]
            square += part * part
        expected = min(MAX_PROBABILITY, mean - rule.caution * np.sqrt(square))
        lower = expected - rule.drop
        if lower < MIN_PROBABILITY:
            continue
        value = reward if position == click else 0.0
        odds = value * log(lower / expected) if value > 0.0 else 0.0
        if value < 1.0:
            odds += (1.0 - value) * log((1.0 - lower) / (1.0 - expected))
        own.cusum[0] = max(0.0, own.cusum[0] + odds)
        is_zero |= own.cusum[0] == 0.0
    if is_zero:
        own.since[:] = 0.0
    if own.cusum[0] > 0.0:
        add_list(own.since, listed, examined, click, reward)
