"""Selection of a list by a team of lanes: single precision rules out items, exact values rank the rest.

Numba's simulator removes ``cuda`` from this module when the first thread returns from a function called from another
module. So no function here uses ``cuda`` after its last barrier.
"""

import math
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, uint64

from fedcascade.numerics import streams
from fedcascade.simulation.exact.ranking import compute_attraction
from fedcascade_cuda.items import draw_item, make_tie_key
from fedcascade_cuda.layout import LANES, Ranking, SelectionMemory, Shape, TeamRound, Thread

_INFINITE32, _LAST = np.float32(np.inf), np.uint64(0xFFFFFFFFFFFFFFFF)


@cuda.jit(device=True)
def comes_before(value: Any, tie: Any, other_value: Any, other_tie: Any) -> Any:
    """Return whether an entry precedes another: the larger value does, for equal values the larger tie-break."""
    return value > other_value or (value == other_value and tie > other_tie)


@cuda.jit(device=True)
def select(shape: Shape, thread: Thread, round_: TeamRound, ranking: Ranking, memory: SelectionMemory) -> None:
    """Write the best items of a team's round and their exact values into ``ranking``, best first."""
    team, lane = thread.team, thread.lane
    low = find_threshold(shape, thread, round_, ranking, memory)
    if lane < LANES:
        for item in range(lane, round_.items, LANES):
            if ranking.score[team, item] >= low:
                place = cuda.atomic.add(memory.counts, team, 1)
                if place < LANES:
                    memory.candidates[team, place] = item
    cuda.syncthreads()
    count = memory.counts[team]
    # One candidate per lane; with more candidates, lanes choose repeatedly.
    rank_candidates(shape, thread, round_, ranking, memory, count)
    if cuda.syncthreads_or(int32(1 if count > LANES else 0)) != 0:
        many = TeamRound(round_.seed, round_.t, round_.items if count > LANES else 0)
        choose_among_many(shape, thread, many, ranking, memory, low)


@cuda.jit(device=True)
def find_threshold(shape: Shape, thread: Thread, round_: TeamRound, ranking: Ranking, memory: SelectionMemory) -> Any:
    """Return a single-precision score that every item of the list reaches."""
    team, lane = thread.team, thread.lane
    highest = float32(-_INFINITE32)
    if lane < LANES:
        for item in range(lane, round_.items, LANES):
            highest = max(highest, ranking.score[team, item])
        memory.values[team, lane] = float64(highest)
    if lane == 0:
        memory.floors[team], memory.counts[team] = -_INFINITE32, 0
    cuda.syncthreads()
    if lane < LANES and round_.items > 0:
        rank = 0
        for neighbour in range(LANES):
            if comes_before(float32(memory.values[team, neighbour]), -neighbour, highest, -lane):
                rank += 1
        if rank == min(shape.length, round_.items) - 1:
            memory.floors[team] = highest
    cuda.syncthreads()
    floor = float64(memory.floors[team])
    if not ranking.by_weight:
        floor = min(floor, 1.0)
    floor = floor - 2.0 * ranking.margin
    return float32(floor - 1e-6 * max(1.0, abs(floor)))  # rounding must not raise it


@cuda.jit(device=True)
def rank_candidates(
    shape: Shape, thread: Thread, round_: TeamRound, ranking: Ranking, memory: SelectionMemory, count: int
) -> None:
    """Let each lane evaluate one candidate and find its place in the list, unless there are more than lanes."""
    team, lane = thread.team, thread.lane
    value, tie, item = -math.inf, uint64(0), 0
    if lane < count and count <= LANES:
        item = memory.candidates[team, lane]
        value, tie = evaluate(shape, round_, ranking, memory, team, item, count)
        memory.values[team, lane], memory.ties[team, lane] = value, tie
    cuda.syncthreads()
    if lane < count and count <= LANES:
        rank = count_better(memory, team, count, value, tie)
        if rank < shape.length:
            ranking.chosen[team, rank], ranking.values[team, rank] = item, value


@cuda.jit(device=True)
def choose_among_many(
    shape: Shape, thread: Thread, round_: TeamRound, ranking: Ranking, memory: SelectionMemory, low: Any
) -> None:
    """Fill the list position by position: each lane offers its best item, and the winning lane its next."""
    team, lane = thread.team, thread.lane
    last, last_tie = math.inf, _LAST
    value, tie = -math.inf, uint64(0)
    stale = True
    for position in range(min(shape.length, shape.most_items)):
        if lane < LANES and stale:
            value, tie = -math.inf, uint64(0)
            for item in range(lane, round_.items, LANES):
                if ranking.score[team, item] >= low:
                    next_value, next_tie = evaluate(shape, round_, ranking, memory, team, item, LANES + 1)
                    if comes_before(last, last_tie, next_value, next_tie) and comes_before(
                        next_value, next_tie, value, tie
                    ):
                        value, tie = next_value, next_tie
            memory.values[team, lane], memory.ties[team, lane] = value, tie
            stale = False
        cuda.syncthreads()
        if lane < LANES and value > -math.inf and count_better(memory, team, LANES, value, tie) == 0:
            ranking.chosen[team, position] = int32(uint64(0xFFFFFFFF) - (tie & uint64(0xFFFFFFFF)))
            ranking.values[team, position] = value
            last, last_tie, stale = value, tie, True
        cuda.syncthreads()


@cuda.jit(device=True)
def count_better(memory: SelectionMemory, team: int, count: int, value: float, tie: Any) -> int:
    """Count the entries among the first ``count`` of a team that precede an entry."""
    better = 0
    for entry in range(count):
        if comes_before(memory.values[team, entry], memory.ties[team, entry], value, tie):
            better += 1
    return better


@cuda.jit(device=True)
def evaluate(
    shape: Shape, round_: TeamRound, ranking: Ranking, memory: SelectionMemory, team: int, item: int, count: int
) -> Any:
    """Return the value and tie-break of a candidate, exact if another candidate is close."""
    if ranking.by_weight:
        draw_item(round_.seed, round_.t, item, shape.lifted, memory.x)
        return float64(compute_attraction(ranking.theta, memory.x, 0)), make_tie_key(np.uint32(0), item)
    margin = ranking.margin
    value = float64(ranking.score[team, item])
    clipped = value > 1.0 + margin
    if clipped:
        value = 1.0
    close = count > LANES
    for entry in range(min(count, LANES)):
        neighbour = memory.candidates[team, entry]
        neighbour_value = float64(ranking.score[team, neighbour])
        if neighbour_value > 1.0 + margin:
            neighbour_value = 1.0
        if neighbour != item and abs(neighbour_value - value) <= 2.0 * margin:
            close = True
    if close and not clipped:
        draw_item(round_.seed, round_.t, item, shape.lifted, memory.x)
        value = compute_score(shape, ranking, memory.x)
    tie = np.uint32(0)
    if close:
        tie = streams.philox(round_.seed, streams.TIE, round_.t, item, 0)[0]
    return value, make_tie_key(tie, item)


@cuda.jit(device=True)
def compute_score(shape: Shape, ranking: Ranking, x: Any) -> float:
    """Return U(i) of one item in double precision, in the order of ``linear.compute_ucb_scores``."""
    d, begin = shape.dimension, shape.layout.root
    mean, total = 0.0, 0.0
    for k in range(d):
        mean += ranking.theta[k] * float64(x[k, 0])
    for j in range(d):
        part = 0.0
        for k in range(j + 1):
            part += ranking.row[begin + j * d + k] * float64(x[k, 0])
        total += part * part
    return min(mean + ranking.beta * math.sqrt(total), 1.0)
