"""How a team of lanes chooses a list on the device: single precision says what cannot be in it, as in ``lists``."""

import math
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, uint64

from fedcascade.numerics import streams
from fedcascade.simulation.cuda.items import draw_item, second_key
from fedcascade.simulation.cuda.layout import LANES, Layout, Shape
from fedcascade.simulation.exact.ranking import weight

_INFINITE32, _LAST = np.float32(np.inf), np.uint64(0xFFFFFFFFFFFFFFFF)


def selection(shape: Shape) -> Any:
    """The device function that chooses, for one shape of problem."""
    d, items, length, lifted = shape.dimension, shape.most_items, shape.length, shape.lifted
    at_root = Layout(d).root

    @cuda.jit(device=True)
    def exact_score(row: Any, theta: Any, beta: float, x: Any) -> float:
        """U(i) of one item, in the order of ``linear.compute_ucb_scores``."""
        mean, total = 0.0, 0.0
        for k in range(d):
            mean += theta[k] * float64(x[k, 0])
        for j in range(d):
            part = 0.0
            for k in range(j + 1):
                part += row[at_root + j * d + k] * float64(x[k, 0])
            total += part * part
        return min(mean + beta * math.sqrt(total), 1.0)

    @cuda.jit(device=True)
    def value_of(
        best_list: bool,
        seed: Any,
        t: int,
        item: int,
        team: int,
        score: Any,
        margin: float,
        row: Any,
        theta: Any,
        beta: float,
        x: Any,
        candidates: Any,
        count: int,
    ) -> Any:
        """The exact value of a candidate and its tie-break; a score that no other one is close to may stay as it is."""
        if best_list:
            draw_item(seed, t, item, lifted, x)
            return float64(weight(theta, x, 0)), second_key(np.uint32(0), item)
        own = float64(score[team, item])
        clipped = own > 1.0 + margin
        if clipped:
            own = 1.0
        close = count > LANES
        for other in range(min(count, LANES)):
            there = float64(score[team, candidates[team, other]])
            if there > 1.0 + margin:
                there = 1.0
            if candidates[team, other] != item and abs(there - own) <= 2.0 * margin:
                close = True
        if close and not clipped:
            draw_item(seed, t, item, lifted, x)
            own = exact_score(row, theta, beta, x)
        tie = np.uint32(0)
        if close:
            tie = streams.philox(seed, streams.TIE, t, item, 0)[0]
        return own, second_key(tie, item)

    @cuda.jit(device=True)
    def choose_among_many(
        best_list: bool,
        seed: Any,
        t: int,
        shelf: int,
        team: int,
        lane: int,
        score: Any,
        low: Any,
        margin: float,
        row: Any,
        theta: Any,
        beta: float,
        x: Any,
        candidates: Any,
        key: Any,
        second: Any,
        chosen: Any,
        values: Any,
    ) -> None:
        """The list position by position: the best of what each lane has to offer, and that lane offers its next."""
        last, last_second = math.inf, _LAST
        own, own_second = -math.inf, uint64(0)
        stale = True
        for position in range(min(length, items)):
            if lane < LANES and stale:
                own, own_second = -math.inf, uint64(0)
                for i in range(lane, shelf, LANES):
                    if score[team, i] >= low:
                        value, after = value_of(
                            best_list, seed, t, i, team, score, margin, row, theta, beta, x, candidates, LANES + 1
                        )
                        if (value < last or (value == last and after < last_second)) and (
                            value > own or (value == own and after > own_second)
                        ):
                            own, own_second = value, after
                key[team, lane] = own
                second[team, lane] = own_second
                stale = False
            cuda.syncthreads()
            if lane < LANES and own > -math.inf:
                leads = True
                for other in range(LANES):
                    there = key[team, other]
                    if there > own or (there == own and second[team, other] > own_second):
                        leads = False
                if leads:
                    chosen[team, position] = int32(uint64(0xFFFFFFFF) - (own_second & uint64(0xFFFFFFFF)))
                    values[team, position] = own
                    last, last_second = own, own_second
                    stale = True
            cuda.syncthreads()

    @cuda.jit(device=True)
    def select(
        best_list: bool,
        seed: Any,
        t: int,
        shelf: int,
        team: int,
        lane: int,
        score: Any,
        margin: float,
        row: Any,
        theta: Any,
        beta: float,
        x: Any,
        floors: Any,
        found: Any,
        candidates: Any,
        key: Any,
        second: Any,
        chosen: Any,
        values: Any,
    ) -> None:
        """The best items of a team's round, exactly: by score and tie-break, or by the true weight."""
        mine = float32(-_INFINITE32)
        if lane < LANES:
            for i in range(lane, shelf, LANES):
                mine = max(mine, score[team, i])
            key[team, lane] = float64(mine)
        if lane == 0:
            floors[team] = -_INFINITE32
            found[team] = 0
        cuda.syncthreads()
        if lane < LANES and shelf > 0:
            rank = 0
            for other in range(LANES):
                there = float32(key[team, other])
                if there > mine or (there == mine and other < lane):
                    rank += 1
            if rank == min(length, shelf) - 1:
                floors[team] = mine
        cuda.syncthreads()
        floor = float64(floors[team])
        if not best_list:
            floor = min(floor, 1.0)
        floor = floor - 2.0 * margin
        low = float32(floor - 1e-6 * max(1.0, abs(floor)))  # rounding must not raise it
        # The candidates, one for each lane; where there are more of them, lanes choose again and again.
        if lane < LANES:
            for i in range(lane, shelf, LANES):
                if score[team, i] >= low:
                    place = cuda.atomic.add(found, team, 1)
                    if place < LANES:
                        candidates[team, place] = i
        cuda.syncthreads()
        count = found[team]
        own, own_second, item = -math.inf, uint64(0), 0
        if lane < count and count <= LANES:
            item = candidates[team, lane]
            own, own_second = value_of(
                best_list, seed, t, item, team, score, margin, row, theta, beta, x, candidates, count
            )
            key[team, lane] = own
            second[team, lane] = own_second
        cuda.syncthreads()
        if lane < count and count <= LANES:
            rank = 0
            for other in range(count):
                there = key[team, other]
                if there > own or (there == own and second[team, other] > own_second):
                    rank += 1
            if rank < length:
                chosen[team, rank] = item
                values[team, rank] = own
        if cuda.syncthreads_or(int32(1 if count > LANES else 0)) != 0:
            choose_among_many(
                best_list, seed, t, shelf if count > LANES else 0, team, lane, score, low, margin, row, theta, beta, x,
                candidates, key, second, chosen, values,
            )  # fmt: skip

    return select
