"""Where the time of a round goes in the exact engine: ``python benchmarks/profile_round.py``, all in one run.

Each line of the table is the difference between two compiled loops, of which the longer one does one step more. All
loops play the same distinct rounds of the paper's shape, with the decisions that agents have after a warm-up, and take
turns; figures are medians of CPU time on one thread. The last loop is the engine itself.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from fedcascade import Synthetic, TopK, get_policy
from fedcascade.numerics import streams
from fedcascade.numerics.jit import jit_inline
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact import kernels, ranking, screening
from fedcascade.simulation.scenario import prepare_simulation

ROUNDS, TURNS = 4_096, 25
WARM_UP = 75 * ROUNDS  # when groups have settled, and most scores are below 1


@jit_inline
def philox(world, first, scratch):
    """The random words of every item."""
    count = scratch.columns.shape[1]
    for t in range(first, first + ROUNDS):
        streams._share(world.seed, streams.ITEMS, t, 0, count, scratch.draft)
        for group in range((world.thetas.shape[1] - world.lifted + 3) // 4):
            streams._words_into(world.seed, t, group, count, scratch.draft)


@jit_inline
def normals(world, first, scratch):
    """The same and Box-Muller."""
    rows = scratch.columns[: world.thetas.shape[1] - world.lifted]
    for t in range(first, first + ROUNDS):
        streams._block_into(world.seed, streams.ITEMS, t, 0, rows, scratch.draft)


@jit_inline
def items(world, first, scratch):
    """The same, of length 1."""
    columns = scratch.columns[: world.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        streams.unit_items_into(world.seed, t, columns, world.lifted, scratch.draft)


@jit_inline
def filtered(world, rules, first, scratch, beta, margin):
    """The same, scored in single precision."""
    columns = scratch.columns[: world.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        streams.unit_items_into(world.seed, t, columns, world.lifted, scratch.draft)
        screening.filter_items(world.most_items, rules.length, beta, margin, scratch)


@jit_inline
def chosen(world, rules, one, first, scratch, margin):
    """The same, and the list."""
    beta, columns = one.numbers[kernels.BETA], scratch.columns[: world.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        streams.unit_items_into(world.seed, t, columns, world.lifted, scratch.draft)
        screening.filter_items(world.most_items, rules.length, beta, margin, scratch)
        ranking.choose(world.seed, t, world.most_items, rules.length, one.theta, one.root, beta, margin, scratch)


@jit_inline
def judged(world, rules, one, theta, first, scratch, margin):
    """The same, and the best list."""
    beta, columns = one.numbers[kernels.BETA], scratch.columns[: world.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        streams.unit_items_into(world.seed, t, columns, world.lifted, scratch.draft)
        screening.filter_items(world.most_items, rules.length, beta, margin, scratch)
        ranking.choose(world.seed, t, world.most_items, rules.length, one.theta, one.root, beta, margin, scratch)
        ranking.best_reward(theta, world.most_items, rules.length, scratch)


@jit_inline
def played(world, rules, one, theta, window, scratch, margin):
    """The same, clicked and learned."""
    for t in range(window.first, window.first + ROUNDS):
        kernels._play(world, rules, theta, one, window, scratch, t, margin)


@jit_inline
def triggered(world, rules, one, theta, window, scratch, margin, anew):
    """The same, whether the agent speaks (which empties its buffer here), and perhaps what it decides with next."""
    for t in range(window.first, window.first + ROUNDS):
        kernels._play(world, rules, theta, one, window, scratch, t, margin)
        if kernels._fires(world.seed, rules, one, scratch, t) >= 0:
            one.buffer_gram[:] = 0.0
            one.numbers[kernels.TAUGHT] = 0.0
        if anew:
            margin = kernels._prepare(rules, one, scratch)


def warm_engine(system: str, pool: ThreadPoolExecutor) -> exact.Engine:
    """An engine after a warm-up, with one thread."""
    world, row, oracle = Synthetic(), get_policy(system), TopK()
    stage = prepare_simulation(world, row, oracle, rounds=2**40, checkpoints=1, keep_lists=False)
    engine = exact.Engine(world, oracle, stage, pool, 1)
    for first in range(1, WARM_UP + 1, ROUNDS):
        whole(engine, first, min(ROUNDS, WARM_UP + 1 - first))
    return engine


def whole(engine: exact.Engine, first: int, count: int) -> None:
    """The engine itself, for one window."""
    batch = engine.batch(first, count)
    engine.play_ahead(batch, engine.batch(1, 0))
    engine.settle(batch)


def loops(engine: exact.Engine, first: int) -> dict[str, Callable[[], object]]:
    """Every loop, for ``ROUNDS`` rounds from ``first`` on; the engine comes last because it learns from them."""
    world, rules = engine.world, engine.rules
    agent = first // ROUNDS % engine.environment.users  # another one in every turn: they do not all decide as easily
    one, theta = kernels.one_of(engine.fleet, agent), world.thetas[agent]
    one = kernels.Fleet(*(array.copy() for array in one))
    scratch = screening.make_scratch(theta.size, world.most_items, rules.length)
    scratch.true_theta[: theta.size] = theta
    margin = kernels._prepare(rules, one, scratch)
    window = engine._window(first, np.zeros(ROUNDS, np.int64))
    state = (world, rules, one, theta, window, scratch, margin)
    return {
        "drawing items: Philox": lambda: philox(world, first, scratch),
        "drawing items: Box-Muller": lambda: normals(world, first, scratch),
        "drawing items: to length 1": lambda: items(world, first, scratch),
        "filter: all scores and true weights in single precision": lambda: filtered(
            world, rules, first, scratch, one.numbers[kernels.BETA], margin
        ),
        "list: candidates, exact scores of close ones, top K": lambda: chosen(
            world, rules, one, first, scratch, margin
        ),
        "best list, for the regret": lambda: judged(world, rules, one, theta, first, scratch, margin),
        "clicks and learning": lambda: played(*state),
        "triggers": lambda: triggered(*state, False),
        "new decision in every round": lambda: triggered(*state, rules.every_round),
        "windows, events, server, Python": lambda: whole(engine, first, ROUNDS),
    }


def measure(system: str) -> dict[str, float]:
    """Microseconds per round of every loop."""
    spent: dict[str, list[float]] = {}
    with ThreadPoolExecutor(1) as pool:
        engine = warm_engine(system, pool)
        for turn in range(TURNS + 1):
            for name, loop in loops(engine, WARM_UP + 1 + turn * ROUNDS).items():
                started = time.process_time()
                loop()
                spent.setdefault(name, []).append((time.process_time() - started) / ROUNDS * 1e6)
    return {name: median(times[1:]) for name, times in spent.items()}  # the first turn compiled


def main() -> None:
    """One table, a column per system."""
    systems = ("fedc3ucb-h", "fedind")
    measured = [measure(system) for system in systems]
    table = Table(title="CPU time of a round, one thread: 40 users, d 20, 200 items, K 4", title_justify="left")
    table.add_column("step")
    for system in systems:
        table.add_column(f"{system}, us", justify="right")
    before = [0.0] * len(systems)
    for name in measured[0]:
        now = [column[name] for column in measured]
        table.add_row(name, *(f"{after - earlier:.2f}" for after, earlier in zip(now, before, strict=True)))
        before = now
    table.add_section()
    table.add_row("a whole round", *(f"{total:.2f}" for total in before))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
