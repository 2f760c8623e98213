"""Kernels of the CUDA engine: a block of threads plays the rounds of one agent until a trigger may fire.

The threads of a block form teams. If decisions stay fixed between exchanges, a team is one warp, and several teams play
the agent's next rounds in parallel. If each round changes the decision, all threads are one team. Results are added in
order of rounds, so that all decisions have the bits of the processor.

There are no warp-wide operations, which numba's CUDA simulator lacks. The simulator identifies shared arrays by their
lines and provides ``cuda`` to this module for a whole launch, so they are allocated here.
"""

import math
from functools import cache
from typing import Any

from numba import cuda, float32, float64, int32, uint64

from fedcascade.environments import draws
from fedcascade.numerics import streams
from fedcascade.simulation.exact.ranking import compute_attraction
from fedcascade.simulation.exact.screening import bound_error
from fedcascade_cuda import layout
from fedcascade_cuda.device import jit_kernel
from fedcascade_cuda.items import draw_item, make_score_item
from fedcascade_cuda.layout import (
    AgentProgress,
    BlockTask,
    DeviceArrays,
    Ranking,
    Rules,
    Shape,
    TeamMemory,
    Thread,
)
from fedcascade_cuda.selection import select
from fedcascade_cuda.updates import bound_score_error, learn


@cache
def make_kernel(shape: Shape) -> Any:
    """Build the kernel for one shape; its argument is a ``DeviceArrays``."""
    d, width = shape.dimension, shape.width
    allocate_agent, allocate_teams = make_allocate_agent(shape), make_allocate_teams(shape)
    allocate_selection, play = make_allocate_selection(shape.teams), make_play(shape)

    @jit_kernel(registers=layout.REGISTERS // shape.threads)
    def advance(arrays: DeviceArrays) -> None:
        x = cuda.local.array((d, 1), float32)
        block, number = cuda.blockIdx.x, cuda.threadIdx.x
        thread = Thread(number, number // width, number % width)
        agent, played, selection = allocate_agent(arrays, block), allocate_teams(), allocate_selection(x)
        run, end = int(arrays.inbox[block, layout.RUN]), int(arrays.inbox[block, layout.END])
        task = BlockTask(run, arrays.seeds[run], arrays.firsts[run], end)
        load_agent(shape, thread, arrays, block, agent)
        rules = read_rules(shape, arrays, run, agent.row)
        margin = bound_score_error(shape, thread, agent, rules.beta)
        progress = read_progress(shape, arrays, block, agent.row, margin)
        while progress.cursor < end and not progress.fired:
            play(thread, arrays, task, rules, agent, played, selection, progress)
            cuda.syncthreads()
            progress = learn(shape, thread, rules, agent, played, progress, end)
            cuda.syncthreads()
        store_progress(shape, thread, arrays, block, agent.row, progress)

    return advance


def make_allocate_agent(shape: Shape) -> Any:
    """Build the device function that allocates the shared memory of a block's agent."""
    d, triangle = shape.dimension, shape.dimension * (shape.dimension + 1) // 2
    near = d if d <= layout.NEAR else 1
    near_root = near if shape.every_round else 1

    @cuda.jit(device=True)
    def allocate_agent(arrays: DeviceArrays, block: int) -> layout.AgentMemory:
        theta = cuda.shared.array(d, float64)
        truth = cuda.shared.array(d, float64)
        sums = cuda.shared.array(d, float64)
        theta32 = cuda.shared.array(d, float32)
        truth32 = cuda.shared.array(d, float32)
        root32 = cuda.shared.array(triangle, float32)
        upper = cuda.shared.array((near, near), float64)
        root = cuda.shared.array((near_root, near_root), float64)
        if d > layout.NEAR:
            upper, root = arrays.factors[block, 0], arrays.factors[block, 1]
        row = arrays.rows[int(arrays.inbox[block, layout.SLOT])]
        return layout.AgentMemory(row, theta, truth, sums, theta32, truth32, root32, upper, root)

    return allocate_agent


def make_allocate_teams(shape: Shape) -> Any:
    """Build the device function that allocates the shared memory of the teams' rounds."""
    d, teams, items, length = shape.dimension, shape.teams, shape.most_items, shape.length

    @cuda.jit(device=True)
    def allocate_teams() -> TeamMemory:
        score = cuda.shared.array((teams, items), float32)
        true_score = cuda.shared.array((teams, items), float32)
        chosen = cuda.shared.array((teams, length), int32)
        best = cuda.shared.array((teams, length), int32)
        values = cuda.shared.array((teams, length), float64)
        attraction = cuda.shared.array((teams, length), float64)
        widths = cuda.shared.array((teams, length), float32)
        attracted = cuda.shared.array((teams, length), int32)
        listed = cuda.shared.array((teams, length, d), float32)
        width_sums = cuda.shared.array(teams, float64)
        examined = cuda.shared.array(teams, int32)
        clicks = cuda.shared.array(teams, int32)
        return TeamMemory(
            score, true_score, chosen, best, values, attraction, widths, attracted, listed, width_sums, examined, clicks
        )

    return allocate_teams


def make_allocate_selection(teams: int) -> Any:
    """Build the device function that allocates the shared memory for the selection of lists."""
    lanes = layout.LANES

    @cuda.jit(device=True)
    def allocate_selection(x: Any) -> layout.SelectionMemory:
        floors = cuda.shared.array(teams, float32)
        counts = cuda.shared.array(teams, int32)
        candidates = cuda.shared.array((teams, lanes), int32)
        values = cuda.shared.array((teams, lanes), float64)
        ties = cuda.shared.array((teams, lanes), uint64)
        return layout.SelectionMemory(floors, counts, candidates, values, ties, x)

    return allocate_selection


@cuda.jit(device=True)
def load_agent(shape: Shape, thread: Thread, arrays: DeviceArrays, block: int, agent: layout.AgentMemory) -> None:
    """Copy a new download into the agent's row, and the decision into shared memory."""
    d, threads = shape.dimension, shape.teams * shape.width
    offsets, row = shape.layout, agent.row
    if arrays.inbox[block, layout.FRESH] != 0.0:
        for e in range(thread.number, offsets.own, threads):
            row[e] = arrays.inbox[block, layout.DOWNLOAD + e]
        for e in range(thread.number, offsets.truth - offsets.own, threads):
            row[offsets.own + e] = 0.0
        cuda.syncthreads()
    for k in range(thread.number, d, threads):
        agent.theta[k], agent.truth[k] = row[k], row[offsets.truth + k]
        agent.theta32[k], agent.truth32[k] = float32(row[k]), float32(row[offsets.truth + k])
    for e in range(thread.number, d * d, threads):
        if e % d <= e // d:
            agent.root32[e // d * (e // d + 1) // 2 + e % d] = float32(row[offsets.root + e])
    cuda.syncthreads()


@cuda.jit(device=True)
def read_rules(shape: Shape, arrays: DeviceArrays, run: int, row: Any) -> Rules:
    """Return the constants of a run's policy, with ln det and beta of the agent's download."""
    level, bound = arrays.params[run, layout.LEVEL], arrays.params[run, layout.BOUND]
    slack, lambda_ = arrays.params[run, layout.SLACK], arrays.params[run, layout.LAMBDA]
    return Rules(level, bound, slack, lambda_, row[shape.layout.numbers], row[shape.layout.numbers + 1])


@cuda.jit(device=True)
def read_progress(shape: Shape, arrays: DeviceArrays, block: int, row: Any, margin: float) -> AgentProgress:
    """Return the position of an agent, with its totals since the download."""
    begin, own = int(arrays.inbox[block, layout.BEGIN]), shape.layout.own
    width_sum, examined = row[own + layout.WIDTHS], row[own + layout.EXAMINED]
    return AgentProgress(begin, False, margin, width_sum, examined, row[own + layout.CLICKS], row[own + layout.ROUNDS])


def make_play(shape: Shape) -> Any:
    """Build the device function in which each team plays a round."""
    d, length, lifted, width = shape.dimension, shape.length, shape.lifted, shape.width
    score_item, true_margin = make_score_item(d, lifted), bound_error(d, 1.0)  # ||theta|| <= 1 for users

    @cuda.jit(device=True)
    def play(
        thread: Thread, arrays: DeviceArrays, task: BlockTask, rules: Rules, agent: layout.AgentMemory,
        played: TeamMemory, selection: layout.SelectionMemory, progress: AgentProgress,
    ) -> None:  # fmt: skip
        team, lane, x = thread.team, thread.lane, selection.x
        place = progress.cursor + team
        seed, beta = task.seed, float32(rules.beta)
        t, items = int(task.first), 0
        if place < task.end:
            t = int(task.first + arrays.order[task.run, place])
            items = draws.count_items(seed, t, shape.fewest_items, shape.most_items)
        round_ = layout.TeamRound(seed, t, items)
        for item in range(lane, items, width):
            score, true_score, _ = score_item(round_, item, agent, beta, x)
            played.score[team, item], played.true_score[team, item] = score, true_score
        cuda.syncthreads()
        theta, truth, row, beta64 = agent.theta, agent.truth, agent.row, rules.beta
        by_score = Ranking(False, played.score, progress.margin, theta, row, beta64, played.chosen, played.values)
        select(shape, thread, round_, by_score, selection)
        by_weight = Ranking(True, played.true_score, true_margin, truth, row, beta64, played.best, played.values)
        select(shape, thread, round_, by_weight, selection)
        for position in range(lane, min(length, items), width):
            item = played.chosen[team, position]
            draw_item(seed, t, item, lifted, x)
            for k in range(d):
                played.listed[team, position, k] = x[k, 0]
            attraction = compute_attraction(agent.truth, x, 0)
            played.attraction[team, position] = attraction
            played.attracted[team, position] = streams.uniform(seed, streams.CLICK, t, item) < attraction
            _, _, played.widths[team, position] = score_item(round_, item, agent, beta, x)
        cuda.syncthreads()
        if lane == 0 and items > 0:
            finish_round(shape, arrays, task, rules, played, team, place, min(length, items))

    return play


@cuda.jit(device=True)
def finish_round(
    shape: Shape,
    arrays: DeviceArrays,
    task: BlockTask,
    rules: Rules,
    played: TeamMemory,
    team: int,
    place: int,
    shown: int,
) -> None:
    """Find the click of a team's round, and write regret, outcome and list."""
    click, missed, best_missed = -1, 1.0, 1.0
    for position in range(shown):
        missed *= 1.0 - played.attraction[team, position]
        best_missed *= 1.0 - played.values[team, position]
        if click < 0 and played.attracted[team, position] != 0:
            click = position
    seen = shown if click < 0 else click + 1
    width_sum = 0.0
    for position in range(seen):
        width = math.sqrt(float64(played.widths[team, position])) + rules.slack
        width_sum += width * width
    played.width_sums[team] = width_sum
    played.examined[team] = seen
    played.clicks[team] = click
    run, column = task.run, arrays.order[task.run, place]
    arrays.regret[run, column] = (1.0 - best_missed) - (1.0 - missed)
    arrays.outcome[run, column] = 2 * seen + (1 if click >= 0 else 0)
    if arrays.lists.shape[1] > 0:
        for position in range(shape.length):
            arrays.lists[run, column, position] = played.chosen[team, position] if position < shown else -1


@cuda.jit(device=True)
def store_progress(
    shape: Shape, thread: Thread, arrays: DeviceArrays, block: int, row: Any, progress: AgentProgress
) -> None:
    """Write the agent's progress into its row, and copy its own part to the outbox."""
    own = shape.layout.own
    if thread.number == 0:
        row[own + layout.WIDTHS], row[own + layout.EXAMINED] = progress.width_sum, progress.examined
        row[own + layout.CLICKS], row[own + layout.ROUNDS] = progress.clicks, progress.rounds
        arrays.outbox[block, layout.FIRED] = 1.0 if progress.fired else 0.0
        arrays.outbox[block, layout.CURSOR] = float64(progress.cursor)
    cuda.syncthreads()
    for e in range(thread.number, shape.layout.truth - own, shape.teams * shape.width):
        arrays.outbox[block, layout.OWN + e] = row[own + e]
