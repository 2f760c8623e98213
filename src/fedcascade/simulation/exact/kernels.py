"""Compiled rounds of the exact engine: one agent after another, each until its next upload.

All decisions use the compiled functions of the reference, in the same order, so lists, triggers and statistics are
equal to the bit.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments import draws
from fedcascade.environments.behaviours import CompiledBehaviour, apply_link, fade_weight, is_continued, is_examined
from fedcascade.federation.changes import CompiledDetection, follow_list
from fedcascade.federation.own_data import COUNTS, OwnData, Rows, add_list
from fedcascade.federation.triggers import compute_auxiliary_probability
from fedcascade.federation.trust import is_due, weigh_others
from fedcascade.learning.cascade import compute_expected_value
from fedcascade.learning.confidence import compute_beta
from fedcascade.learning.statistics import add_listed
from fedcascade.numerics import linear, streams
from fedcascade.numerics.grid import GRID
from fedcascade.numerics.jit import fetch_and_increment, jit_inline, jit_no_refcount
from fedcascade.simulation.exact import arrays
from fedcascade.simulation.exact.arrays import (
    AgentState,
    CompiledEnvironment,
    CompiledPolicy,
    CompiledSimulation,
    Window,
)
from fedcascade.simulation.exact.constrained import select_constrained
from fedcascade.simulation.exact.ranking import (
    compute_attraction,
    compute_best_reward,
    compute_mean,
    select_list,
    select_pair_list,
)
from fedcascade.simulation.exact.screening import Indices, Scratch, load_decision, screen_items

STEADY, WEIGHED, CHANGED = 0, 1, 2  # results of follow_user
Seen = tuple[int, int, float]  # the first click or -1, the number of examined items, and the reward of the click


@jit_no_refcount
def advance_agents(
    simulation: CompiledSimulation, window: Window, agents: Indices, taken: Indices, scratch: Scratch, slot: AgentState
) -> None:
    """Play the rounds of each of ``agents`` until its next upload or the end of the window.

    Threads share the agents by ``taken``, the number of agents that some thread has started. Each thread has its own
    ``scratch``, and a ``slot`` into which it unpacks an agent.
    """
    packed = simulation.packed
    environment, policy = simulation.environment, simulation.policy
    place = fetch_and_increment(taken)
    while place < agents.size:
        agent = agents[place]
        cursor, stop, fired = window.cursor[agent], window.stop[agent], -1
        state = arrays.unpack_agent(policy, packed, agent, slot, scratch)
        load_user(environment, agent, scratch)
        margin = prepare_decision(policy, state, scratch)
        while cursor < stop and fired < 0:
            t = window.rounds[cursor]
            cursor += 1
            seen = play_round(environment, policy, agent, state, window, scratch, t, margin)
            keep_first(simulation.first, agent, scratch, seen)
            followed = follow_user(
                simulation.own, policy.detection, policy.trust, simulation, agent, state, scratch, seen
            )
            fired = arrays.CHANGE
            if followed != CHANGED:
                fired = find_trigger(environment.seed, policy, state, scratch, t, t, state.counts[arrays.ARRIVALS])
            if followed == WEIGHED:
                linear.pack_sums(state.gram, state.moment, packed.download[agent])
            if policy.every_round or followed == WEIGHED:
                margin = prepare_decision(policy, state, scratch)
        linear.pack_sums(state.buffer_gram, state.buffer_moment, packed.buffer[agent])
        window.cursor[agent] = cursor
        window.upload_round[agent] = 0 if fired < 0 else window.rounds[cursor - 1]
        window.trigger[agent] = fired
        place = fetch_and_increment(taken)


@jit_inline
def load_user(environment: CompiledEnvironment, user: int, scratch: Scratch) -> None:
    """Load the theta of a user for ``screen_items``."""
    theta = environment.thetas[user]
    for k in range(theta.size):
        scratch.true_theta[k] = theta[k]


@jit_inline
def keep_first(first: Rows | None, agent: int, scratch: Scratch, seen: Seen) -> None:
    """Keep the first item of a list for a private upload."""
    if first is not None:
        add_list(first[agent], scratch.listed_features, 1, 0 if seen[0] == 0 else -1, seen[2])


@jit_inline
def follow_user(
    own: OwnData | None, detection: CompiledDetection | None, trust: float | None,
    simulation: CompiledSimulation, agent: int, state: AgentState, scratch: Scratch, seen: Seen,
) -> int:  # fmt: skip
    """Detect a change of the user after a round, and weigh other users' data, as ``Agent`` does."""
    if own is None:
        return STEADY
    mine = OwnData(
        own.total[agent],
        own.blocks[agent],
        own.levels[agent],
        own.used[agent],
        own.since[agent],
        own.others_gram[agent],
        own.others_moment[agent],
        own.cusum[agent],
        own.weight[agent],
        own.noise[agent],
        own.deviation[agent],
    )
    click, examined, reward = seen
    counts = mine.total.size - COUNTS
    if follow_list(mine, detection, scratch.listed_features, examined, click, reward, state.theta, state.root):
        return CHANGED
    moment = mine.total[counts - state.theta.size : counts]
    clicks = _add_other_clicks(simulation.environment.behaviour, moment, scratch, click, examined)
    mine.total[counts + 1] += clicks - int(click >= 0)
    mine.total[counts + 2] += max(1, clicks) - 1
    return _weigh_if_due(mine, trust, simulation.policy, state, scratch)


@jit_no_refcount
def _weigh_if_due(
    own: OwnData, trust: float | None, policy: CompiledPolicy, state: AgentState, scratch: Scratch
) -> int:
    if trust is None:
        return STEADY
    if not is_due(own, trust):
        return STEADY
    weigh_others(own, policy.lambda_, state.buffer_gram, state.buffer_moment, state.gram, state.moment)
    log_det = linear.solve_ridge_into(state.gram, state.moment, policy.lambda_, scratch.upper, state.root, state.theta)
    state.numbers[arrays.LOG_DET] = log_det
    state.numbers[arrays.BETA] = own.deviation[0] * compute_beta(policy.beta, log_det)
    state.numbers[arrays.SQUARED_WIDTHS] = np.inf
    return WEIGHED


@jit_inline
def prepare_decision(policy: CompiledPolicy, state: AgentState, scratch: Scratch) -> float:
    """Load an agent's decision; return the error margin of its single-precision scores."""
    if policy.every_round:
        solve_decision(policy, state, scratch)
    return load_decision(state.theta, state.root, state.numbers[arrays.BETA], scratch)


@jit_inline
def solve_decision(policy: CompiledPolicy, state: AgentState, scratch: Scratch) -> None:
    """Solve the ridge of download and buffer, in the steps of ``Ridge``."""
    gram, moment = scratch.upper, scratch.moment
    for k in range(moment.size):
        moment[k] = state.moment[k] + state.buffer_moment[k]
        for j in range(moment.size):
            gram[k, j] = state.gram[k, j] + state.buffer_gram[k, j]
    log_det = linear.solve_ridge_into(gram, moment, policy.lambda_, scratch.upper, state.root, state.theta)
    if policy.trust is None:
        state.numbers[arrays.BETA] = compute_beta(policy.beta, log_det)


@jit_inline
def compute_growth(lambda_: float, state: AgentState, upper: NDArray[np.float64]) -> float:
    """Return ln det(Sigma + Sigma_loc) - ln det(Sigma); ``upper`` gets the upper factor of the first matrix."""
    for k in range(upper.shape[0]):
        for j in range(upper.shape[0]):
            upper[k, j] = state.gram[k, j] + state.buffer_gram[k, j]
        upper[k, k] += lambda_
    linear.factorise(upper)
    return float(linear.compute_log_det(upper) - state.numbers[arrays.LOG_DET])


@jit_inline
def play_round(
    environment: CompiledEnvironment, policy: CompiledPolicy, user: int, state: AgentState, window: Window,
    scratch: Scratch, t: int, margin: float,
) -> Seen:  # fmt: skip
    """Play one round; SQUARED_WIDTHS remains an upper bound of the sum of the buffer's squared widths."""
    listed, best = choose_list(environment, policy, None, user, state, scratch, t, margin)
    seen = show_list(environment, policy, user, window, scratch, t, listed, best)
    for position in range(seen[1]):
        width = np.sqrt(np.float64(scratch.squared_width[scratch.selected[position]])) + policy.slack
        state.numbers[arrays.SQUARED_WIDTHS] += width * width
    learn_list(environment.behaviour, state, scratch, seen)
    return seen


@jit_inline
def learn_list(behaviour: CompiledBehaviour | None, state: AgentState, scratch: Scratch, seen: Seen) -> None:
    """Add a list to the buffer."""
    click, examined, reward = seen
    gram, moment = state.buffer_gram, state.buffer_moment
    add_listed(gram, moment, scratch.listed_features, examined, click, reward)
    clicks = _add_other_clicks(behaviour, moment, scratch, click, examined)
    count_round(state, seen, clicks)


@jit_inline
def choose_list(
    environment: CompiledEnvironment, policy: CompiledPolicy, own_root: linear.Matrix | None, user: int,
    state: AgentState, scratch: Scratch, t: int, margin: float,
) -> tuple[int, float]:  # fmt: skip
    """Draw the items of a round, and write the list of an agent into ``scratch.selected``.

    ``own_root`` belongs to the agent's personal part, if it has one. Return the length of the list and the reward of
    the best list.
    """
    seed, beta = environment.seed, state.numbers[arrays.BETA]
    items = draw_items(environment, scratch, t)
    state.counts[arrays.ARRIVALS] += 1
    listed, best = select_constrained(policy.limits, environment, state, own_root, user, scratch, t, items)
    if listed < 0:
        listed = min(policy.length, items)
        screen_items(items, listed, beta, scratch)
        if own_root is None:
            select_list(seed, t, items, state.theta, state.root, beta, margin, scratch)
        else:
            select_pair_list(seed, t, items, state.theta, state.root, own_root, beta, scratch)
        best = compute_best_reward(environment.values, environment, user, items, policy.length, scratch)
    return listed, best


@jit_inline
def draw_items(environment: CompiledEnvironment, scratch: Scratch, t: int) -> int:
    """Fill ``scratch.columns`` with the items of a round; return their number."""
    seed, columns = environment.seed, scratch.columns[: scratch.listed_features.shape[1]]
    draws.draw_items_into(seed, t, columns, environment.lifted, environment.catalogue, scratch.draft)
    return draws.count_items(seed, t, environment.fewest_items, environment.most_items)


@jit_inline
def show_list(
    environment: CompiledEnvironment, policy: CompiledPolicy, user: int, window: Window, scratch: Scratch,
    t: int, listed: int, best: float,
) -> Seen:  # fmt: skip
    """Show the list to the user.

    ``scratch.listed_features`` gets the features of examined items; ``best`` is the reward of the best list.
    """
    selected = scratch.selected[:listed]
    click, last, missed = _click_list(environment.behaviour, environment, user, scratch, t, listed)
    reward, expected = _draw_reward(environment.values, environment, user, scratch, t, listed, click, 1.0 - missed)
    examined = selected.size if click < 0 else last + 1
    for position in range(examined):
        for k in range(scratch.listed_features.shape[1]):
            scratch.listed_features[position, k] = scratch.columns[k, selected[position]]
    row = t - window.first
    window.regret[row] = policy.alpha * best - expected
    window.clicked[row] = click >= 0
    window.examined[row] = examined
    if window.reward.shape[0] > 0:
        window.reward[row] = reward if click >= 0 else 0.0
    if window.lists.shape[0] > 0:
        for position in range(selected.size):
            window.lists[row, position] = selected[position]
    if window.chances.shape[0] > 0:
        for position in range(selected.size):
            window.chances[row, position] = scratch.chances[position]
    return click, examined, reward


@jit_inline
def _click_list(
    behaviour: CompiledBehaviour | None, environment: CompiledEnvironment, user: int, scratch: Scratch,
    t: int, listed: int,
) -> tuple[int, int, float]:  # fmt: skip
    """Draw the clicks on a list; return the first and last click, or -1 and -1, and the probability of no click.

    For the cascade, ``behaviour`` is None, and numba compiles no other model. Other models write all clicks into
    ``scratch.clicked``, in the steps of ``mark_clicks``.
    """
    seed, link, theta = environment.seed, environment.link, environment.thetas[user]
    first, last, missed, stays = -1, -1, 1.0, True
    for position in range(listed):
        item = scratch.selected[position]
        weight = apply_link(link, compute_mean(theta, scratch.columns, item))
        missed *= 1.0 - fade_weight(behaviour, position, weight)
        if behaviour is None:
            if first < 0 and streams.uniform(seed, streams.CLICK, t, item) < weight:
                first = last = position
        else:
            is_clicked = stays and streams.uniform(seed, streams.CLICK, t, item) < weight
            is_clicked = is_clicked and is_examined(behaviour, seed, t, position)
            scratch.clicked[position] = is_clicked
            if is_clicked:
                first, last = position if first < 0 else first, position
                stays = is_continued(behaviour, seed, t, position, weight)
    return first, last, missed


@jit_inline
def _draw_reward(
    values: NDArray[np.float64] | None, environment: CompiledEnvironment, user: int, scratch: Scratch, t: int,
    listed: int, click: int, chance: float,
) -> tuple[float, float]:  # fmt: skip
    """Draw the reward of a click on a list; return it and the expected reward of the list.

    Without ``values`` they are 1 and the ``chance`` of a click.
    """
    if values is None:
        return 1.0, chance
    reward, weights, means = 1.0, scratch.best[:listed], scratch.value[:listed]
    for position in range(listed):
        item = scratch.selected[position]
        weights[position] = apply_link(environment.link, compute_mean(environment.thetas[user], scratch.columns, item))
        means[position] = compute_attraction(values[user], scratch.columns, item)
        if position == click:
            reward = draws.draw_reward(environment.seed, t, item, means[position])
    return reward, compute_expected_value(weights, means)


@jit_inline
def _add_other_clicks(
    behaviour: CompiledBehaviour | None, moment: linear.Vector, scratch: Scratch, first: int, examined: int
) -> int:
    """Add all clicks after the ``first`` to ``moment``, as ``Statistics.observe`` does; return the number of clicks."""
    clicks = int(first >= 0)
    if behaviour is not None:
        for position in range(first + 1, examined):
            if first >= 0 and scratch.clicked[position]:
                clicks += 1
                for k in range(moment.size):
                    moment[k] += scratch.listed_features[position, k]
    return clicks


@jit_inline
def count_round(state: AgentState, seen: Seen, clicks: int) -> None:
    """Count a learned list; the rest of it after a click counts as another round (``Examination.rounds``)."""
    state.counts[arrays.EXAMINED] += seen[1]
    state.counts[arrays.CLICKS] += clicks
    state.counts[arrays.ROUNDS] += max(1, clicks)
    state.counts[arrays.SHORTFALL] += int((1.0 - seen[2]) / GRID)


@jit_inline
def find_trigger(
    seed: np.uint64, policy: CompiledPolicy, state: AgentState, scratch: Scratch, t: int, shown: int, arrivals: int
) -> int:
    """Return the kind of the first trigger that fires in round ``t``, or -1.

    The list whose feedback may fire it is that of round ``shown`` and of this number among ``arrivals``.
    """
    for place in range(policy.triggers.size):
        kind, level = int(policy.triggers[place]), policy.levels[place]
        if kind == arrays.DETERMINANT and _has_grown(policy, state, scratch, place):
            return kind
        if kind == arrays.AUXILIARY and is_drawn(seed, level, t, shown):
            return kind
        if kind == arrays.DOUBLING and arrivals & (arrivals - 1) == 0:
            return kind
        if kind == arrays.ALWAYS:
            return kind
    return -1


@jit_inline
def is_drawn(seed: np.uint64, p_scale: float, t: int, shown: int) -> bool:
    """Draw whether the feedback of round ``shown`` causes a random exchange in round t: p < p_t."""
    return bool(streams.uniform(seed, streams.AUXILIARY, shown, 0) < compute_auxiliary_probability(p_scale, t))


@jit_inline
def _has_grown(policy: CompiledPolicy, state: AgentState, scratch: Scratch, place: int) -> bool:
    """Return whether ln det(Sigma + Sigma_loc) - ln det(Sigma) > level.

    With M = Sigma^-1/2 Sigma_loc Sigma^-1/2, ln det(I + M) <= d ln(1 + tr M / d), and tr M is at most SQUARED_WIDTHS
    while decisions use the download. So the determinant is computed only when that bound may exceed the level. If it
    does not, each further item adds at most its squared width, and SQUARED_WIDTHS is set to the bound minus the missing
    growth.
    """
    if not policy.every_round and state.numbers[arrays.SQUARED_WIDTHS] < policy.bounds[place]:
        return False
    missing = policy.levels[place] - compute_growth(policy.lambda_, state, scratch.upper)
    state.numbers[arrays.SQUARED_WIDTHS] = policy.bounds[place] - (1.0 - 1e-9) * missing
    return bool(missing < 0.0)
