"""What the CUDA engine compiles: a block of threads plays the rounds of one agent until it may want to speak.

The threads of a block form teams. Where agents are frozen between exchanges, a team of one warp plays a round
and several teams play the agent's next rounds side by side; where every round changes the decision, all threads
are one team. What was played is then added up in the order of rounds, so every number that decides something
has the bits that it has on the processor.

Nothing is written with warp-wide operations, so that numba's simulator of CUDA can run it too.
"""

import math
from functools import cache
from typing import Any

from numba import cuda, float32, float64, int32, uint64

from fedcascade.numerics import streams
from fedcascade.simulation.cuda.device import jit
from fedcascade.simulation.cuda.items import draw_item
from fedcascade.simulation.cuda.items import score_item as make_score_item
from fedcascade.simulation.cuda.layout import (
    BEGIN,
    BOUND,
    BUFFER,
    CLICKS,
    CURSOR,
    DOUBT,
    DOWNLOAD,
    END,
    EXAMINED,
    FIRED,
    FRESH,
    LAMBDA,
    LANES,
    LEVEL,
    NEAR,
    OWN,
    REGISTERS,
    ROUNDS,
    RUN,
    SLACK,
    SLOT,
    TAUGHT,
    Layout,
    Shape,
)  # fmt: skip
from fedcascade.simulation.cuda.selection import selection
from fedcascade.simulation.exact.ranking import weight
from fedcascade.simulation.exact.screening import may_be_off


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
    score_item, select = make_score_item(d, lifted), selection(shape)
    off_truth = 2.0 * may_be_off(d, 1.0)  # the users' thetas are no longer than 1

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
    def factorise(row: Any, lambda_: float, upper: Any, root: Any, logs: Any, tid: int, with_root: bool) -> float:
        """``linear.cholesky`` of download and buffer, ``invert_root`` if asked for; returns about ln det."""
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
