"""Device functions of all threads of a block: add rounds in order, factorise, solve for the decision.

As in ``selection``, no function here uses ``cuda`` after its last barrier.
"""

import math

from numba import cuda, float32, float64

from fedcascade.simulation.exact.screening import bound_error
from fedcascade_cuda.layout import DOUBT, AgentMemory, AgentProgress, Rules, Shape, TeamMemory, Thread


@cuda.jit(device=True)
def learn(
    shape: Shape,
    thread: Thread,
    rules: Rules,
    agent: AgentMemory,
    played: TeamMemory,
    progress: AgentProgress,
    end: int,
) -> AgentProgress:
    """Add the rounds that teams have played, in order, until the determinant may have grown enough."""
    fired, margin, width_sum = False, progress.margin, progress.width_sum
    examined, clicks, rounds = progress.examined, progress.clicks, progress.rounds
    count, done = min(shape.teams, end - progress.cursor), 0
    while done < count and not fired:
        begin, look = done, False
        while done < count and not look:
            width_sum += played.width_sums[done]
            examined += played.examined[done]
            clicks += 1.0 if played.clicks[done] >= 0 else 0.0
            rounds += 1.0
            done += 1
            look = shape.every_round or width_sum >= rules.bound
        add_examined(shape, thread, agent, played, begin, done)
        if look:
            cuda.syncthreads()
            growth = factorise(shape, thread, agent, rules.lambda_) - rules.log_det
            missing = rules.level - growth
            if rules.level < math.inf:
                width_sum = rules.bound - (1.0 - 1e-9) * missing
            fired = missing < DOUBT
            if shape.every_round:
                decide(shape, thread, agent)
                margin = bound_score_error(shape, thread, agent, rules.beta)
    return AgentProgress(progress.cursor + done, fired, margin, width_sum, examined, clicks, rounds)


@cuda.jit(device=True)
def add_examined(shape: Shape, thread: Thread, agent: AgentMemory, played: TeamMemory, begin: int, end: int) -> None:
    """Add the examined items of teams ``begin`` to ``end`` to the buffer."""
    d, row, listed, threads = shape.dimension, agent.row, played.listed, shape.teams * shape.width
    for e in range(thread.number, d * d, threads):
        i, j = e // d, e % d
        value = row[shape.layout.buffer_gram + e]
        for team in range(begin, end):
            for position in range(played.examined[team]):
                value += float64(listed[team, position, i]) * float64(listed[team, position, j])
        row[shape.layout.buffer_gram + e] = value
    for i in range(thread.number, d, threads):
        value = row[shape.layout.buffer_moment + i]
        for team in range(begin, end):
            if played.clicks[team] >= 0:
                value += float64(listed[team, played.clicks[team], i])
        row[shape.layout.buffer_moment + i] = value


@cuda.jit(device=True)
def factorise(shape: Shape, thread: Thread, agent: AgentMemory, lambda_: float) -> float:
    """Factorise download and buffer as ``linear.factorise`` does; return an approximation of ln det.

    If agents solve in each round, also invert the factor, as ``linear.invert_root_into`` does.
    """
    d, threads, with_root = shape.dimension, shape.teams * shape.width, shape.every_round
    upper, root = agent.upper, agent.root
    for e in range(thread.number, d * d, threads):
        value = agent.row[shape.layout.gram + e] + agent.row[shape.layout.buffer_gram + e]
        if e // d == e % d:
            value += lambda_
        upper[e // d, e % d] = value
        if with_root:
            root[e // d, e % d] = 1.0 if e // d == e % d else 0.0
    cuda.syncthreads()
    for k in range(d):
        pivot = math.sqrt(upper[k, k])
        cuda.syncthreads()
        for j in range(k + thread.number, d, threads):
            upper[k, j] /= pivot
        cuda.syncthreads()
        if with_root:
            for c in range(thread.number, k + 1, threads):
                root[k, c] /= upper[k, k]
            cuda.syncthreads()
        for e in range((k + 1) * d + thread.number, d * d, threads):
            i, j = e // d, e % d
            factor = upper[k, i]
            if j >= i:
                upper[i, j] -= factor * upper[k, j]
            if with_root and j <= k:
                root[i, j] -= factor * root[k, j]
        cuda.syncthreads()
    for k in range(thread.number, d, threads):
        agent.sums[k] = math.log(upper[k, k])
    cuda.syncthreads()
    total = 0.0
    for k in range(d):
        total += agent.sums[k]
    return 2.0 * total


@cuda.jit(device=True)
def decide(shape: Shape, thread: Thread, agent: AgentMemory) -> None:
    """Solve for theta as ``linear.solve_into`` does; write theta and root into the row and into shared memory."""
    d, threads, layout = shape.dimension, shape.teams * shape.width, shape.layout
    row, root = agent.row, agent.root
    cuda.syncthreads()
    for k in range(thread.number, d, threads):
        agent.theta[k] = row[layout.moment + k] + row[layout.buffer_moment + k]
    cuda.syncthreads()
    for j in range(thread.number, d, threads):
        value = 0.0
        for k in range(j + 1):
            value += root[j, k] * agent.theta[k]
        agent.sums[j] = value
    for e in range(thread.number, d * d, threads):
        row[layout.root + e] = root[e // d, e % d]
        if e % d <= e // d:
            agent.root32[e // d * (e // d + 1) // 2 + e % d] = float32(root[e // d, e % d])
    cuda.syncthreads()
    for k in range(thread.number, d, threads):
        value = 0.0
        for j in range(k, d):
            value += root[j, k] * agent.sums[j]
        row[k] = value
        agent.theta[k] = value
        agent.theta32[k] = float32(value)
    cuda.syncthreads()


@cuda.jit(device=True)
def bound_score_error(shape: Shape, thread: Thread, agent: AgentMemory, beta: float) -> float:
    """Return the error margin of a single-precision score, as ``screening.load_decision`` does."""
    d, theta32, root32 = shape.dimension, agent.theta32, agent.root32
    for k in range(thread.number, d, shape.teams * shape.width):
        total = 0.0
        for c in range(k * (k + 1) // 2, (k + 1) * (k + 2) // 2):
            total += float64(root32[c]) * float64(root32[c])
        agent.sums[k] = total
    cuda.syncthreads()
    square, frobenius = 0.0, 0.0
    for k in range(d):
        square += float64(theta32[k]) * float64(theta32[k])
        frobenius += agent.sums[k]
    cuda.syncthreads()
    return float64(bound_error(d, math.sqrt(square) + beta * math.sqrt(frobenius)))
