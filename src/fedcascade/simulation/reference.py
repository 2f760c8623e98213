"""The reference engine: Algorithm 1 as a plain loop, for any policy and environment."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.environment import Environment
from fedcascade.federation.agent import Agent, ShownList
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.warm_start import warm_up
from fedcascade.learning.cascade import compute_expected_reward, examine, find_first_click
from fedcascade.learning.oracles import Oracle
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.scenario import (
    Progress,
    Scenario,
    Simulation,
    list_cluster_changes,
    list_newcomers,
    prepare_simulation,
)
from fedcascade.simulation.trace import Round, Trace

REPORT_EVERY = 500


def simulate(scenario: Scenario, progress: Progress | None = None) -> Trace:
    """Run a policy in an environment, round by round.

    >>> from fedcascade.environments.synthetic import Synthetic
    >>> from fedcascade.federation.policies import POLICIES
    >>> environment = Synthetic(users=4, clusters=2, dimension=5, items=10)
    >>> trace = simulate(Scenario(environment, POLICIES["fedc3ucb-h"], rounds=100))
    >>> trace.rounds, len(trace.curve), trace.communications() == len(trace.ledger)
    (100, 10, True)
    """
    environment, oracle = scenario.environment, scenario.oracle
    rounds = scenario.rounds
    simulation = prepare_simulation(scenario)
    server, recorder = simulation.server, simulation.recorder
    agents = make_agents(simulation, oracle)
    if scenario.warm is not None:
        warm_up(server, agents, scenario.warm)

    for t in range(1, rounds + 1):  # Algorithm 1, line 4
        for changed, cluster in list_cluster_changes(server, environment, t):
            server.groups.set_true_cluster(changed, cluster)
            agents[changed].restart(Statistics.zero(environment.dimension))
            upload = agents[changed].send_buffer(Cause.CHANGE)
            recorder.record_exchange(t, *run_exchange(server, agents, upload))
        for newcomer in list_newcomers(scenario, t):
            agents[newcomer].receive(server.answer(newcomer))
        user = environment.arrival(t)  # line 5
        fetched = deliver_arrival(server, agents, user)
        # line 6: LocalAgent
        played = play_round(environment, oracle, t, user, agents[user].recommend, agents[user].observe)
        if played.upload is not None:  # line 7
            uploads, downloads = run_exchange(server, agents, played.upload)  # lines 8 to 11
            uploads, downloads = server.reply_state.select_counted(uploads, fetched + downloads)
            recorder.record_exchange(t, uploads, downloads, scenario.policy.reply_rule.download_cause)
        recorder.record_round(t, user, played)
        recorder.record_checkpoint(t, server.groups.labels)
        if progress is not None and (t % REPORT_EVERY == 0 or t == rounds):
            progress(t)

    return recorder.build_trace(scenario.policy.name, "reference", server.groups.labels)


def make_agents(simulation: Simulation, oracle: Oracle) -> list[Agent]:
    """Make the agent of each user; with a single learner, all users share one agent."""
    policy, users = simulation.policy, len(simulation.server.holdings)
    learners = 1 if policy.reply_rule.single_learner else users
    agents = [Agent(id=user, policy=policy, problem=simulation.problem, oracle=oracle) for user in range(learners)]
    return agents * (users // learners)


def play_round(
    environment: Environment,
    oracle: Oracle,
    round_: int,
    user: int,
    recommend: Callable[..., ShownList],
    observe: Callable[..., Upload | None],
) -> Round:
    """Play Algorithm 1, lines 6 and 7, for ``user``; regret is relative to the oracle's best list.

    ``recommend`` and ``observe`` are methods of an ``Agent``, or remote calls with the same signature.
    """
    features = environment.items(round_)
    attributes = environment.attributes(round_, len(features))
    ties = environment.ties(round_, len(features))
    shown = recommend(features, ties=ties, categories=attributes.categories, costs=attributes.costs)
    weights = environment.weights(round_, user, features)
    clicks, compute_reward = click_list(environment, round_, shown.items, weights[shown.items])
    seen = examine(shown.items.size, clicks)
    first = clicks[0] if clicks else None
    upload = observe(shown, seen if len(clicks) > 1 else first, round_=round_, draw=environment.draw(round_))
    best = compute_reward(weights[oracle.best(weights, attributes)])
    regret = oracle.alpha * best - compute_reward(weights[shown.items])
    return Round(shown, first, upload, regret, seen.examined)


def click_list(
    environment: Environment, round_: int, items: NDArray[np.intp], weights: NDArray[np.float64]
) -> tuple[tuple[int, ...], Callable[[NDArray[np.float64]], float]]:
    """Return the clicked positions of a list, and the function that computes the probability of a click."""
    attracted = environment.attracted(round_, items, weights)
    behaviour = getattr(environment, "behaviour", None)
    if behaviour is not None:
        return behaviour.click(environment.seed, round_, attracted, weights), behaviour.compute_reward  # type: ignore[attr-defined]
    click = find_first_click(attracted)
    return (() if click is None else (click,)), compute_expected_reward
