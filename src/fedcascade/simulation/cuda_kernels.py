"""What the CUDA engine compiles: a block of threads plays the rounds of one agent until it may want to speak.

The threads of a block form teams. Where agents are frozen between exchanges, a team of one warp plays a round
and several teams play the agent's next rounds side by side; where every round changes the decision, all threads
are one team. What was played is then added up in the order of rounds, so every number that decides something
has the bits that it has on the processor.

Nothing is written with warp-wide operations, so that numba's simulator of CUDA can run it too.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, float64, int32, uint64

from fedcascade.environments import streams
from fedcascade.simulation import cuda_items
from fedcascade.simulation.cuda_device import jit
from fedcascade.simulation.cuda_items import draw_item, second_key
from fedcascade.simulation.lists import may_be_off, weight

LANES = 32  # of a team, so many choose the list among what all have scored
NEAR = 40  # matrices of up to so many dimensions are factorised in shared memory
REGISTERS = 32_768  # of a block, so that two fit into a multiprocessor
DOUBT = 1e-9  # logarithms differ in their last bits: what is closer to the level is for the processor to decide
SLOT, RUN, BEGIN, END, FRESH, DOWNLOAD = range(6)  # columns of ``inbox``; from DOWNLOAD on, a download if fresh
LEVEL, BOUND, SLACK, LAMBDA = range(4)  # columns of ``params``
FIRED, CURSOR, OWN = range(3)  # columns of ``outbox``; from OWN on, the agent's own part
TAUGHT, EXAMINED, CLICKS, ROUNDS, BUFFER = range(5)  # places in an agent's own part; from BUFFER on moment and gram
_INFINITE32, _ZERO32, _ONE32 = np.float32(np.inf), np.float32(0.0), np.float32(1.0)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)


class Layout(NamedTuple):
    """Where an agent's numbers are in its row: the download, then what it learned since, then its user's theta."""

    dimension: int

    @property
    def root(self) -> int:
        """Where the inverse root begins; theta is at 0."""
        return self.dimension

    @property
    def gram(self) -> int:
        """Where the gram of the download begins."""
        return self.root + self.dimension**2

    @property
    def moment(self) -> int:
        """Where the moment of the download begins."""
        return self.gram + self.dimension**2

    @property
    def numbers(self) -> int:
        """Where ln det and beta of the download are."""
        return self.moment + self.dimension

    @property
    def own(self) -> int:
        """Where the agent's own part begins."""
        return self.numbers + 2

    @property
    def truth(self) -> int:
        """Where the user's theta begins."""
        return self.own + self.own_size

    @property
    def own_size(self) -> int:
        """Numbers of the own part: four, moment and gram of the buffer."""
        return BUFFER + self.dimension + self.dimension**2

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return self.truth + self.dimension


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    dimension: int
    fewest_items: int
    most_items: int
    length: int
    lifted: bool
    every_round: bool
    teams: int
    width: int  # threads of a team


@cache
def kernel(shape: Shape) -> Any:
    """The kernel for one shape of problem."""
    d, fewest, items, length, lifted, every_round, teams, width = shape
    layout = Layout(d)
    size, triangle, threads = d * d, d * (d + 1) // 2, teams * width
    at_root, at_gram, at_moment, at_numbers = layout.root, layout.gram, layout.moment, layout.numbers
    at_own, at_truth, own_size = layout.own, layout.truth, layout.own_size
    at_moment_buffer, at_buffer = at_own + BUFFER, at_own + BUFFER + d
    near = d if d <= NEAR else 1
    near_if_anew = near if every_round else 1
    score_item = cuda_items.score_item(d, lifted)
    off_truth = 2.0 * may_be_off(d, 1.0)  # the users' thetas are no longer than 1

    @cuda.jit(device=True)
    def exact_score(row: Any, theta: Any, beta: float, x: Any) -> float:
        """U(i) of one item, in the order of ``linear.optimistic_scores``."""
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
    def margin_of(theta32: Any, root32: Any, sums: Any, tid: int, beta: float) -> float:
        """How far a score in single precision may be off, as ``lists.load`` has it."""
        for k in range(tid, d, threads):
            total = 0.0
            for c in range(k * (k + 1) // 2, (k + 1) * (k + 2) // 2):
                total += float64(root32[c]) * float64(root32[c])
            sums[k] = total
        cuda.syncthreads()
        square, frobenius = 0.0, 0.0
        for k in range(d):
            square += float64(theta32[k]) * float64(theta32[k])
            frobenius += sums[k]
        cuda.syncthreads()
        return float64(may_be_off(d, math.sqrt(square) + beta * math.sqrt(frobenius)))

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

    @cuda.jit(device=True)
    def factorise(row: Any, lambda_: float, upper: Any, root: Any, logs: Any, tid: int, with_root: bool) -> float:
        """``linear.cholesky`` of download and buffer, ``inverse_root`` if asked for; returns about ln det."""
        for e in range(tid, size, threads):
            value = row[at_gram + e] + row[at_buffer + e]
            if e // d == e % d:
                value += lambda_
            upper[e // d, e % d] = value
            if with_root:
                root[e // d, e % d] = 1.0 if e // d == e % d else 0.0
        cuda.syncthreads()
        for k in range(d):
            pivot = math.sqrt(upper[k, k])
            cuda.syncthreads()
            for j in range(k + tid, d, threads):
                upper[k, j] /= pivot
            cuda.syncthreads()
            if with_root:
                for c in range(tid, k + 1, threads):
                    root[k, c] /= upper[k, k]
                cuda.syncthreads()
            for e in range((k + 1) * d + tid, size, threads):
                i, j = e // d, e % d
                factor = upper[k, i]
                if j >= i:
                    upper[i, j] -= factor * upper[k, j]
                if with_root and j <= k:
                    root[i, j] -= factor * root[k, j]
            cuda.syncthreads()
        for k in range(tid, d, threads):
            logs[k] = math.log(upper[k, k])
        cuda.syncthreads()
        total = 0.0
        for k in range(d):
            total += logs[k]
        return 2.0 * total

    @cuda.jit(device=True)
    def decide(row: Any, root: Any, sums: Any, theta: Any, theta32: Any, root32: Any, tid: int) -> None:
        """``linear.solve`` of download and buffer; the decision goes into the row and into shared memory."""
        cuda.syncthreads()
        for k in range(tid, d, threads):
            theta[k] = row[at_moment + k] + row[at_moment_buffer + k]
        cuda.syncthreads()
        for j in range(tid, d, threads):
            value = 0.0
            for k in range(j + 1):
                value += root[j, k] * theta[k]
            sums[j] = value
        for e in range(tid, size, threads):
            row[at_root + e] = root[e // d, e % d]
            if e % d <= e // d:
                root32[e // d * (e // d + 1) // 2 + e % d] = float32(root[e // d, e % d])
        cuda.syncthreads()
        for k in range(tid, d, threads):
            value = 0.0
            for j in range(k, d):
                value += root[j, k] * sums[j]
            row[k] = value
            theta[k] = value
            theta32[k] = float32(value)
        cuda.syncthreads()

    @jit(registers=REGISTERS // threads)
    def advance(
        inbox: Any,
        rows: Any,
        factors: Any,
        seeds: Any,
        params: Any,
        order: Any,
        firsts: Any,
        regret: Any,
        outcome: Any,
        lists: Any,
        outbox: Any,
    ) -> None:
        theta = cuda.shared.array(d, float64)
        truth = cuda.shared.array(d, float64)
        sums = cuda.shared.array(d, float64)
        theta32 = cuda.shared.array(d, float32)
        truth32 = cuda.shared.array(d, float32)
        root32 = cuda.shared.array(triangle, float32)
        score = cuda.shared.array((teams, items), float32)
        true_score = cuda.shared.array((teams, items), float32)
        floors = cuda.shared.array(teams, float32)
        found = cuda.shared.array(teams, int32)
        candidates = cuda.shared.array((teams, LANES), int32)
        key = cuda.shared.array((teams, LANES), float64)
        second = cuda.shared.array((teams, LANES), uint64)
        chosen = cuda.shared.array((teams, length), int32)
        best = cuda.shared.array((teams, length), int32)
        values = cuda.shared.array((teams, length), float64)
        attraction = cuda.shared.array((teams, length), float64)
        widths = cuda.shared.array((teams, length), float32)
        lucky = cuda.shared.array((teams, length), int32)
        listed = cuda.shared.array((teams, length, d), float32)
        taught = cuda.shared.array(teams, float64)
        examined = cuda.shared.array(teams, int32)
        clicks = cuda.shared.array(teams, int32)
        near_upper = cuda.shared.array((near, near), float64)
        near_root = cuda.shared.array((near_if_anew, near_if_anew), float64)
        x = cuda.local.array((d, 1), float32)

        block, tid = cuda.blockIdx.x, cuda.threadIdx.x
        team, lane = tid // width, tid % width
        slot, run = int(inbox[block, SLOT]), int(inbox[block, RUN])
        cursor, end = int(inbox[block, BEGIN]), int(inbox[block, END])
        row = rows[slot]
        seed = seeds[run]
        first = firsts[run]
        level, bound = params[run, LEVEL], params[run, BOUND]
        slack, lambda_ = params[run, SLACK], params[run, LAMBDA]
        upper = near_upper if d <= NEAR else factors[block, 0]
        root = near_root if d <= NEAR else factors[block, 1]
        if inbox[block, FRESH] != 0.0:
            for e in range(tid, at_own, threads):
                row[e] = inbox[block, DOWNLOAD + e]
            for e in range(tid, own_size, threads):
                row[at_own + e] = 0.0
            cuda.syncthreads()
        for k in range(tid, d, threads):
            theta[k], truth[k] = row[k], row[at_truth + k]
            theta32[k], truth32[k] = float32(row[k]), float32(row[at_truth + k])
        for e in range(tid, size, threads):
            if e % d <= e // d:
                root32[e // d * (e // d + 1) // 2 + e % d] = float32(row[at_root + e])
        cuda.syncthreads()
        log_det, beta = row[at_numbers], row[at_numbers + 1]
        beta32 = float32(beta)
        total_taught, total_examined = row[at_own + TAUGHT], row[at_own + EXAMINED]
        total_clicks, total_rounds = row[at_own + CLICKS], row[at_own + ROUNDS]
        margin = margin_of(theta32, root32, sums, tid, beta)
        fired = False
        while cursor < end and not fired:
            # A team's round: draw, score, choose, click.
            t, shelf = int(first), 0
            if cursor + team < end:
                t = int(first + order[run, cursor + team])
                shelf = streams.shelf(seed, t, fewest, items)
            for i in range(lane, shelf, width):
                score[team, i], true_score[team, i], _ = score_item(seed, t, i, theta32, truth32, root32, beta32)
            cuda.syncthreads()
            select(False, seed, t, shelf, team, lane, score, margin, row, theta, beta, x,
                   floors, found, candidates, key, second, chosen, values)  # fmt: skip
            select(True, seed, t, shelf, team, lane, true_score, off_truth / 2.0, row, truth, beta, x,
                   floors, found, candidates, key, second, best, values)  # fmt: skip
            shown = min(length, shelf)
            for position in range(lane, shown, width):
                item = chosen[team, position]
                draw_item(seed, t, item, lifted, x)
                for k in range(d):
                    listed[team, position, k] = x[k, 0]
                attraction[team, position] = weight(truth, x, 0)
                _, _, widths[team, position] = score_item(seed, t, item, theta32, truth32, root32, beta32)
                lucky[team, position] = streams.uniform(seed, streams.CLICK, t, item) < attraction[team, position]
            cuda.syncthreads()
            if lane == 0 and shelf > 0:
                click, missed, best_missed = -1, 1.0, 1.0
                for position in range(shown):
                    missed *= 1.0 - attraction[team, position]
                    best_missed *= 1.0 - values[team, position]
                    if click < 0 and lucky[team, position] != 0:
                        click = position
                seen = shown if click < 0 else click + 1
                learned = 0.0
                for position in range(seen):
                    at_most = math.sqrt(float64(widths[team, position])) + slack
                    learned += at_most * at_most
                taught[team], examined[team], clicks[team] = learned, seen, click
                place = order[run, cursor + team]
                regret[run, place] = (1.0 - best_missed) - (1.0 - missed)
                outcome[run, place] = 2 * seen + (1 if click >= 0 else 0)
                if lists.shape[1] > 0:
                    for position in range(length):
                        lists[run, place, position] = chosen[team, position] if position < shown else -1
            cuda.syncthreads()

            # All threads: add up in the order of rounds, until the determinant may have grown enough.
            played, done = min(teams, end - cursor), 0
            while done < played and not fired:
                begin, look = done, False
                while done < played and not look:
                    total_taught += taught[done]
                    total_examined += examined[done]
                    total_clicks += 1.0 if clicks[done] >= 0 else 0.0
                    total_rounds += 1.0
                    done += 1
                    look = every_round or total_taught >= bound
                for e in range(tid, size, threads):
                    i, j = e // d, e % d
                    value = row[at_buffer + e]
                    for one in range(begin, done):
                        for position in range(examined[one]):
                            value += float64(listed[one, position, i]) * float64(listed[one, position, j])
                    row[at_buffer + e] = value
                for i in range(tid, d, threads):
                    value = row[at_moment_buffer + i]
                    for one in range(begin, done):
                        if clicks[one] >= 0:
                            value += float64(listed[one, clicks[one], i])
                    row[at_moment_buffer + i] = value
                if look:
                    cuda.syncthreads()
                    grown = factorise(row, lambda_, upper, root, sums, tid, every_round) - log_det
                    missing = level - grown
                    if level < math.inf:
                        total_taught = bound - (1.0 - 1e-9) * missing
                    fired = missing < DOUBT
                    if every_round:
                        decide(row, root, sums, theta, theta32, root32, tid)
                        margin = margin_of(theta32, root32, sums, tid, beta)
            cursor += done
            cuda.syncthreads()
        if tid == 0:
            row[at_own + TAUGHT], row[at_own + EXAMINED] = total_taught, total_examined
            row[at_own + CLICKS], row[at_own + ROUNDS] = total_clicks, total_rounds
            outbox[block, FIRED] = 1.0 if fired else 0.0
            outbox[block, CURSOR] = float64(cursor)
        cuda.syncthreads()
        for e in range(tid, own_size, threads):
            outbox[block, OWN + e] = row[at_own + e]

    return advance
