"""Contracts for your own environments, oracles and policies; ``testing.stores`` has that of stores.

Ours pass the same ones.
"""

from typing import Any

import numpy as np

from fedcascade.checks import require, require_integer
from fedcascade.environments.environment import Environment
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import Policy
from fedcascade.learning.cascade import compute_expected_reward
from fedcascade.learning.oracles import ItemAttributes, Oracle, TopK, check_list
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.simulation.reference import make_agents, play_round, simulate
from fedcascade.simulation.scenario import Scenario, prepare_simulation


def check_environment(environment: Environment, *, rounds: int = 50) -> None:
    """Raise ValueError if an environment breaks the ``Environment`` protocol.

    Every value must be valid, and must not depend on the order of calls: rounds are visited forwards, then backwards.
    """
    require(len(environment.clusters) == environment.users, "clusters must name a cluster for each user")
    forwards = [_check_round(environment, t) for t in range(1, rounds + 1)]
    backwards = [_check_round(environment, t) for t in range(rounds, 0, -1)][::-1]
    for t, (first, second) in enumerate(zip(forwards, backwards, strict=True), start=1):
        for name in first:
            same = np.array_equal(first[name], second[name])
            require(same, f"{name} of round {t} must not depend on earlier calls")


def _check_round(environment: Environment, t: int) -> dict[str, Any]:
    user, features = environment.arrival(t), environment.items(t)
    require(0 <= user < environment.users, f"arrival({t}) must be in 0..{environment.users - 1}, got {user}")
    shape = (1 <= len(features) <= environment.most_items, features.shape[1] == environment.dimension)
    require(all(shape), f"items({t}) must have 1 to {environment.most_items} rows of {environment.dimension} features")
    require(bool(np.all(np.square(features, dtype=np.float64).sum(axis=1) <= 1)), f"items({t}) must have norm <= 1")
    on_grid = np.array_equal(features, round_to_grid(features))
    require(on_grid, f"items({t}) must be multiples of 2^-12: see fedcascade.numerics.grid.round_to_grid")
    weights = environment.weights(t, user, features)
    require(bool(np.all((weights >= 0) & (weights <= 1))), f"weights({t}) must be probabilities")
    attributes = environment.attributes(t, len(features))
    for known in (attributes.categories, attributes.costs):
        require(known is None or len(known) == len(features), f"attributes({t}) must have a value for each item")
    ties, draw = environment.ties(t, len(features)), environment.draw(t)
    require(len(ties) == len(features), f"ties({t}) must hold a word for each item")
    require(0 <= draw < 1, f"draw({t}) must be in [0, 1), got {draw}")
    attracted = environment.attracted(t, np.arange(len(features)), weights)
    return {"arrival": user, "items": features, "weights": weights, "attracted": attracted, "ties": ties, "draw": draw}


def check_oracle(oracle: Oracle, *, items: int = 12, trials: int = 50) -> None:
    """Raise ValueError if an oracle breaks the ``Oracle`` protocol.

    Its lists must be valid and repeatable, ``best`` must earn at least as much as ``choose``, and ``choose`` at least
    alpha times that. Each of the ``trials`` offers up to ``items`` items, with categories and costs below 1.
    """
    require(0 < oracle.alpha <= 1, f"alpha must be in (0, 1], got {oracle.alpha}")
    require_integer("length", oracle.length)
    random = np.random.Generator(np.random.Philox(key=7))
    for trial in range(trials):
        offered = 1 + trial % items
        weights, ties = random.random(offered), random.integers(0, 2**32, offered, dtype=np.uint32)
        attributes = ItemAttributes(random.integers(0, 3, offered), random.random(offered))
        chosen, best = oracle.choose(weights, ties, attributes), oracle.best(weights, attributes)
        for listed in (chosen, best):
            check_list(listed, offered, oracle.length)
        again = oracle.choose(weights.copy(), ties.copy(), attributes)
        require(np.array_equal(chosen, again), "choose must depend on scores, ties and attributes alone")
        reward, most = (compute_expected_reward(weights[listed]) for listed in (chosen, best))
        require(reward <= most + 1e-12, f"best must be optimal: it earns {most:.6g}, choose earns {reward:.6g}")
        promise = oracle.alpha * most
        require(reward >= promise - 1e-12, f"choose must earn alpha times the best, {promise:.6g}, got {reward:.6g}")


def check_policy(policy: Policy, *, rounds: int = 400) -> None:
    """Raise ValueError if a policy cannot be rebuilt from its constants, is not repeatable, or loses data.

    After every exchange in a small environment, the observations must equal the sums of server and buffers.
    """
    again = policy.with_constants(**policy.constants())
    require(again == policy, "with_constants(**constants()) must equal the policy")
    environment = Synthetic(users=6, clusters=2, dimension=5, items=12, seed=7)
    first, second = (simulate(Scenario(environment, policy, rounds)) for _ in range(2))
    require(first == second, "the same environment and rounds must give the same Trace")
    _check_conservation(policy, environment, rounds)


def _check_conservation(policy: Policy, environment: Synthetic, rounds: int) -> None:
    oracle = TopK(length=3)
    simulation = prepare_simulation(Scenario(environment, policy, rounds, oracle, checkpoints=1))
    server, agents = simulation.server, make_agents(simulation, oracle)
    observed = [Statistics.zero(environment.dimension)] * environment.users
    for t in range(1, rounds + 1):
        user = environment.arrival(t)
        deliver_arrival(server, agents, user)
        played = play_round(environment, oracle, t, user, agents[user].recommend, agents[user].observe)
        learner = agents[user].id
        observed[learner] = observed[learner].observe(played.shown.features, played.click)
        if played.upload and played.upload.cause is Cause.CHANGE:
            observed[learner] = played.upload.statistics
        if played.upload:
            run_exchange(server, agents, played.upload)
        if played.upload or t == rounds:
            for agent in set(agents):
                same = _is_same(observed[agent.id], server.holdings[agent.id] + agent.state.buffer)
                require(
                    same, f"round {t}: the sums of server and buffer must equal the observations of agent {agent.id}"
                )


def _is_same(observed: Statistics, accounted: Statistics) -> bool:
    counts = [(statistics.count, statistics.clicks, statistics.rounds) for statistics in (observed, accounted)]
    return counts[0] == counts[1] and np.array_equal(observed.gram, accounted.gram)
