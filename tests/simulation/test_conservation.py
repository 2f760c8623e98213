"""Nothing is lost and nothing is counted twice: what agents saw is at the server or in a buffer, always."""

import networkx as nx
import numpy as np
import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.agent import Agent
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.grouping.partition import Everyone
from fedcascade.federation.grouping.phases import PhasePartition
from fedcascade.federation.policies import POLICIES, Order, Policy
from fedcascade.federation.server import Server
from fedcascade.learning.cascade import find_first_click
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.statistics import Statistics

ROUNDS = 1_500
K = 4
WANTED = {"lambda_": 1.0, "alpha_d": 1.0, "alpha_2": 0.5, "beta": 1.0}


class Witness:
    """Adds up what a user examined and clicked, in its own way."""

    def __init__(self, d: int) -> None:
        self.gram = np.zeros((d, d))
        self.moment = np.zeros(d)
        self.count = self.clicks = self.rounds = 0

    def see(self, features: np.ndarray, attracted: np.ndarray) -> None:
        """One list, scanned from the top until something attracts."""
        self.rounds += 1
        for x, attractive in zip(features.astype(np.float64), attracted, strict=True):
            self.count += 1
            self.gram += np.outer(x, x)
            if attractive:
                self.clicks += 1
                self.moment += x
                break


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("name", POLICIES)
def test_observed_is_held_or_buffered(name: str, order: Order) -> None:
    world = Synthetic(users=12, clusters=3, dimension=6, items=30, features="gaussian", seed=3)
    if order is Order.AGGREGATE_FIRST and POLICIES[name].keeps_own_data:
        with pytest.raises(ValueError, match="need the order upload-first"):
            _tuned(POLICIES[name], order)
        return
    policy = _tuned(POLICIES[name], order)
    problem = ProblemSize(users=world.users, dimension=world.dimension, list_length=K, rounds=ROUNDS)
    policy = policy.fit_to(problem)
    learners = 1 if policy.reply_rule.single_learner else world.users
    agents = [Agent(id=one, policy=policy, problem=problem, oracle=TopK(length=K)) for one in range(learners)]
    served_by = agents * (world.users // learners)
    server = Server(policy=policy, agents=world.users, dimension=world.dimension, truth=world.clusters)
    witnesses = [Witness(world.dimension) for _ in range(world.users)]
    exchanges = 0

    for t in range(1, ROUNDS + 1):
        user = world.arrival(t)
        features = world.items(t)
        deliver_arrival(server, agents, served_by[user].id)
        shown = served_by[user].recommend(features, world.ties(t, len(features)))
        weights = world.weights(t, user, features)
        attracted = world.attracted(t, shown.items, weights[shown.items])
        witnesses[served_by[user].id].see(features[shown.items], attracted)
        upload = served_by[user].observe(shown, find_first_click(attracted), round_=t, draw=world.draw(t))
        if upload is not None:
            exchanges += 1
            run_exchange(server, agents, upload)
            assert agents[user].state.buffer.count == 0
            _check_conserved(witnesses, agents, server)
            _check_groups(server)
    _check_conserved(witnesses, agents, server)
    assert server.rounds + sum(agent.state.buffer.rounds for agent in agents) == ROUNDS
    assert (exchanges > 0) == (name not in {"fedind", "oful", "c3-ucb"})
    assert (len(server.groups) > 1) == (not isinstance(policy.grouping, Everyone))


def _tuned(policy: Policy, order: Order) -> Policy:
    wanted = {name: value for name, value in WANTED.items() if name in policy.constants()}
    return policy.with_constants(order=order, **wanted)


def _check_conserved(witnesses: list[Witness], agents: list[Agent], server: Server) -> None:
    for agent in agents:
        seen = witnesses[agent.id]
        if agent.state.personal is None:
            _check_equal(server.holdings[agent.id] + agent.state.buffer, seen)
        else:  # rewards are split between what the agent keeps and what the server holds
            _check_counts(agent.state.personal.statistics, seen)
            _check_counts(server.holdings[agent.id] + agent.state.buffer, seen)


def _check_groups(server: Server) -> None:
    """Groups partition the agents, pool what is held of their members, and follow the graph where there is one."""
    labels = server.groups.labels
    assert len(server.groups) == np.unique(labels).size
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        total = sum((server.holdings[int(u)] for u in members), Statistics.zero(server.holdings.dimension))
        _check_equal(server.groups.pooled(int(members[0])), total)
    edges = getattr(server.groups, "edges", None)
    if edges is not None and not isinstance(server.groups, PhasePartition):
        components = {frozenset(part) for part in nx.connected_components(nx.from_numpy_array(edges))}
        assert components == {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def _check_counts(found: Statistics, expected: Statistics | Witness) -> None:
    assert (found.count, found.clicks, found.rounds) == (expected.count, expected.clicks, expected.rounds)
    assert np.abs(found.gram - expected.gram).max() <= 1e-9


def _check_equal(found: Statistics, expected: Statistics | Witness) -> None:
    _check_counts(found, expected)
    assert np.abs(found.moment - expected.moment).max() <= 1e-9
