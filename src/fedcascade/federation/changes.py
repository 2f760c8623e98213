"""Change detection at the agent: its own clicks, and nothing else, say that its user has changed."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcascade.checks import NONNEGATIVE, POSITIVE, PROBABILITY, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.own_data import MOST_BLOCKS, OwnData, add_list, add_row, copy_row
from fedcascade.federation.rows import COUNTS, Row
from fedcascade.learning.noise import estimate_noise
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.numerics.linear import Features, Matrix, Vector

FEWEST = 4  # observations before a change that a test needs
LEAST_LIKELY, MOST_LIKELY = 0.05, 0.95  # probabilities of a click between which the CUSUM looks at an item


@dataclass(frozen=True, kw_only=True)
class ChangeDetection(Part):
    """Two tests of an agent's own data; when one fires, the agent restarts with the data of the changed user.

    *Split*: own data lie in blocks of rounds. After each block, for every way to cut them into older data p and newer
    data s: with E that of ``measure_evidence``, E(p + s) - E(p) - E(s) below -``threshold`` says that two
    users clicked. The data after the best cut are kept. *CUSUM*: a user that suddenly clicks less than its agent
    predicts is found sooner. The sum grows by the log-odds that each examined item was clicked with a probability of
    p0 - ``drop`` against p0 = <theta, x> - ``caution`` ||x||, and never falls below 0. Beyond ``limit`` the data since
    it was last 0 are kept.
    """

    threshold: float = constant(10.0, meaning="log-odds for two users instead of one, beyond which it is two",
                                range=POSITIVE)  # fmt: skip
    limit: float = constant(9.0, meaning="log-odds for fewer clicks than predicted, beyond which the user is another",
                            range=POSITIVE)  # fmt: skip
    drop: float = constant(0.15, meaning="by how much less clicks are tested against what was predicted",
                           range=PROBABILITY)  # fmt: skip
    caution: float = constant(0.45, meaning="how many widths below the estimate a prediction is", range=NONNEGATIVE)
    block: int = constant(8, meaning="rounds of its own between two tests of an agent", range=whole_numbers(1))

    def compile(self) -> "CompiledDetection":
        """Return the constants as compiled code reads them."""
        return CompiledDetection(
            float(self.threshold), float(self.limit), float(self.drop), float(self.caution), float(self.block)
        )


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
    theta: Vector,
    root: Matrix,
) -> bool:
    """Add a list to an agent's own data; returns whether they say that the user has changed.

    If so, ``own`` holds what of them belongs to the new user. ``theta`` and ``root`` are what the list was chosen with.
    """
    add_list(own.total, listed, examined, click)
    if rule is None:
        return False
    rounds = own.total.size - 1
    newest = own.used[0] - 1
    if newest < 0 or own.blocks[newest, rounds] >= rule.block:
        newest = _open_block(own)
    add_list(own.blocks[newest], listed, examined, click)
    _follow_clicks(own, rule, listed, examined, click, theta, root)
    if own.blocks[newest, rounds] >= rule.block:
        first = _find_cut(own, rule)
        if first > 0:
            _keep_blocks(own, first)
            return True
    count = own.total.size - COUNTS
    if own.cusum[0] > rule.limit and own.total[count] >= own.since[count] + FEWEST:
        copy_row(own.blocks[0], own.since)
        own.levels[0] = 0
        own.used[0] = 1
        _keep_blocks(own, 0)
        return True
    return False


@jit_inline
def _open_block(own: OwnData) -> int:
    """Begin a new block, and return its place; of three blocks of one size, the two older ones become one."""
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
    """Make one block of that at ``place`` and the next one."""
    add_row(own.blocks[place], own.blocks[place + 1])
    own.levels[place] += 1
    for i in range(place + 1, own.used[0] - 1):
        copy_row(own.blocks[i], own.blocks[i + 1])
        own.levels[i] = own.levels[i + 1]
    own.used[0] -= 1


@jit_inline
def _keep_blocks(own: OwnData, first: int) -> None:
    """Forget all blocks before ``first``; what is left is all that the agent has."""
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
    """Return the log marginal likelihood of a sum plus ``sign`` times another row, for theta ~ N(0, I / d).

    ``upper`` and ``solution`` are scratch memory.
    """
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
    """The first block of the new user, where the evidence for two users is the strongest; 0 if it is too weak."""
    total, count = own.total, own.total.size - COUNTS
    upper, solution = np.zeros_like(own.others_gram), np.zeros_like(own.others_moment)
    newer = np.zeros_like(total)
    noise = estimate_noise(total[count], total[count + 1])
    whole = measure_evidence(total, total, 0.0, noise, upper, solution)
    least, cut = -rule.threshold, 0
    for first in range(own.used[0] - 1, 0, -1):
        add_row(newer, own.blocks[first])
        if total[count] - newer[count] < FEWEST:
            break
        apart = measure_evidence(total, newer, -1.0, noise, upper, solution)
        apart += measure_evidence(newer, newer, 0.0, noise, upper, solution)
        if whole - apart < least:
            least, cut = whole - apart, first
    return cut


@jit_inline
def _follow_clicks(
    own: OwnData, rule: CompiledDetection, listed: Features, examined: int, click: int, theta: Vector, root: Matrix
) -> None:
    """Let the CUSUM see a list; ``since`` then holds the lists from the one on after which it was last 0."""
    is_zero = own.cusum[0] == 0.0
    for position in range(examined):
        mean, square = 0.0, 0.0
        for j in range(theta.size):
            mean += theta[j] * listed[position, j]
            part = 0.0
            for k in range(j + 1):
                part += root[j, k] * listed[position, k]
            square += part * part
        expected = min(MOST_LIKELY, mean - rule.caution * np.sqrt(square))
        lower = expected - rule.drop
        if lower < LEAST_LIKELY:
            continue
        odds = log(lower / expected) if position == click else log((1.0 - lower) / (1.0 - expected))
        own.cusum[0] = max(0.0, own.cusum[0] + odds)
        is_zero |= own.cusum[0] == 0.0
    if is_zero:
        own.since[:] = 0.0
    if own.cusum[0] > 0.0:
        add_list(own.since, listed, examined, click)
