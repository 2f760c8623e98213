"""Where the time of a round goes in the exact engine: ``python benchmarks/profile_round.py``, all in one run.

Each line of the table is the difference between two compiled loops, one of which does one step more. All
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
from fedcascade.environments import draws
from fedcascade.numerics import streams
from fedcascade.numerics.jit import jit_inline
from fedcascade.simulation.exact import arrays, kernels, ranking, screening
from fedcascade.simulation.exact.driver import ExchangeDriver, make_states
from fedcascade.simulation.exact.event_driven import EventDrivenEngine
from fedcascade.simulation.exact.windows import make_batch, make_window
from fedcascade.simulation.scenario import Scenario, prepare_simulation

ROUNDS, TURNS = 4_096, 25
WARM_UP = 75 * ROUNDS  # when groups have settled, and most scores are below 1


@jit_inline
def draw_words(environment, first, scratch):
    """Draw the random words of all items."""
    count = scratch.columns.shape[1]
    for t in range(first, first + ROUNDS):
        streams.share_rounds(environment.seed, streams.ITEMS, t, 0, count, scratch.draft)
        for group in range((environment.thetas.shape[1] - environment.lifted + 3) // 4):
            streams.draw_group_words(environment.seed, t, group, count, scratch.draft)


@jit_inline
def draw_normals(environment, first, scratch):
    """Draw the normals of all items."""
    rows = scratch.columns[: environment.thetas.shape[1] - environment.lifted]
    for t in range(first, first + ROUNDS):
        streams.draw_normal_block(environment.seed, streams.ITEMS, t, 0, rows, scratch.draft)


@jit_inline
def draw_items(environment, first, scratch):
    """Draw the items."""
    columns = scratch.columns[: environment.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        draws.draw_unit_items_into(environment.seed, t, columns, environment.lifted, scratch.draft)


@jit_inline
def screen(environment, policy, first, scratch, beta):
    """Draw and screen the items."""
    columns = scratch.columns[: environment.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        draws.draw_unit_items_into(environment.seed, t, columns, environment.lifted, scratch.draft)
        screening.screen_items(environment.most_items, policy.length, beta, scratch)


@jit_inline
def select(environment, policy, state, first, scratch, margin):
    """Draw and screen the items, and select the list."""
    beta, columns = state.numbers[arrays.BETA], scratch.columns[: environment.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        draws.draw_unit_items_into(environment.seed, t, columns, environment.lifted, scratch.draft)
        screening.screen_items(environment.most_items, policy.length, beta, scratch)
        ranking.select_list(environment.seed, t, environment.most_items, state.theta, state.root, beta, margin, scratch)


@jit_inline
def count_regret(environment, policy, state, user, first, scratch, margin):
    """Do the same, and compute the reward of the best list."""
    beta, columns = state.numbers[arrays.BETA], scratch.columns[: environment.thetas.shape[1]]
    for t in range(first, first + ROUNDS):
        draws.draw_unit_items_into(environment.seed, t, columns, environment.lifted, scratch.draft)
        screening.screen_items(environment.most_items, policy.length, beta, scratch)
        ranking.select_list(environment.seed, t, environment.most_items, state.theta, state.root, beta, margin, scratch)
        ranking.compute_best_reward(None, environment, user, environment.most_items, policy.length, scratch)


@jit_inline
def play(environment, policy, state, user, window, scratch, margin):
    """Play whole rounds, with clicks and learning."""
    for t in range(window.first, window.first + ROUNDS):
        kernels.play_round(environment, policy, user, state, window, scratch, t, margin)


@jit_inline
def play_and_trigger(environment, policy, state, user, window, scratch, margin, every_round):
    """Play rounds and check triggers, which empty the buffer here; solve in each round if ``every_round``."""
    for t in range(window.first, window.first + ROUNDS):
        kernels.play_round(environment, policy, user, state, window, scratch, t, margin)
        if kernels.find_trigger(environment.seed, policy, state, scratch, t, t, t) >= 0:
            state.buffer_gram[:] = 0.0
            state.numbers[arrays.SQUARED_WIDTHS] = 0.0
        if every_round:
            margin = kernels.prepare_decision(policy, state, scratch)


def warm_engine(system: str, pool: ThreadPoolExecutor) -> EventDrivenEngine:
    """Return an engine with one thread, after a warm-up."""
    scenario = Scenario(Synthetic(), get_policy(system), rounds=2**40, oracle=TopK(), checkpoints=1)
    driver = ExchangeDriver(scenario, prepare_simulation(scenario), is_packed=True)
    engine = EventDrivenEngine(scenario, driver, pool, 1, None)
    for first in range(1, WARM_UP + 1, ROUNDS):
        play_engine(engine, first, min(ROUNDS, WARM_UP + 1 - first))
    return engine


def play_engine(engine: EventDrivenEngine, first: int, count: int) -> None:
    """Play one window with the engine itself."""
    batch = make_batch(engine.driver, first, count)
    engine.play_window(batch, make_batch(engine.driver, 1, 0))
    engine.settle(batch)


def list_loops(engine: EventDrivenEngine, first: int) -> dict[str, Callable[[], object]]:
    """Return all loops for ``ROUNDS`` rounds from ``first`` on; the engine comes last, because it learns."""
    driver = engine.driver
    environment, policy = driver.compiled_environment, driver.compiled_policy
    agent = first // ROUNDS % driver.environment.users  # another one in every turn: they do not all decide as easily
    dimension = environment.thetas.shape[1]
    scratch = screening.make_scratch(dimension, environment.most_items, policy.length)
    room = arrays.select_agent(make_states(1, dimension), 0)
    numbers, counts = driver.packed.numbers[agent].copy(), driver.packed.counts[agent].copy()
    state = room._replace(numbers=numbers, counts=counts)
    arrays.unpack_agent(policy, driver.packed, agent, state, scratch)
    kernels.load_user(environment, agent, scratch)
    margin = kernels.prepare_decision(policy, state, scratch)
    window = make_window(driver, first, np.zeros(ROUNDS, np.int64))
    arguments = (environment, policy, state, agent, window, scratch, margin)
    return {
        "drawing items: Philox": lambda: draw_words(environment, first, scratch),
        "drawing items: Box-Muller": lambda: draw_normals(environment, first, scratch),
        "drawing items: to length 1": lambda: draw_items(environment, first, scratch),
        "filter: all scores and true weights in single precision": lambda: screen(
            environment, policy, first, scratch, state.numbers[arrays.BETA]
        ),
        "list: candidates, exact scores of close ones, top K": lambda: select(
            environment, policy, state, first, scratch, margin
        ),
        "best list, for the regret": lambda: count_regret(environment, policy, state, agent, first, scratch, margin),
        "clicks and learning": lambda: play(*arguments),
        "triggers": lambda: play_and_trigger(*arguments, False),
        "new decision in every round": lambda: play_and_trigger(*arguments, policy.every_round),
        "windows, events, server, Python": lambda: play_engine(engine, first, ROUNDS),
    }


def measure(system: str) -> dict[str, float]:
    """Return the microseconds per round of every loop."""
    spent: dict[str, list[float]] = {}
    with ThreadPoolExecutor(1) as pool:
        engine = warm_engine(system, pool)
        for turn in range(TURNS + 1):
            for name, loop in list_loops(engine, WARM_UP + 1 + turn * ROUNDS).items():
                started = time.process_time()
                loop()
                spent.setdefault(name, []).append((time.process_time() - started) / ROUNDS * 1e6)
    return {name: median(times[1:]) for name, times in spent.items()}  # the first turn compiled


def main() -> None:
    """Print one table with a column per policy."""
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
