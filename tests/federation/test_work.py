"""What an exchange costs, counted in work and not in seconds: no sum over users unless a group fell apart."""

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

from fedcascade.federation.grouping import graph
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.linear import solve_ridge

AGENTS, D = 300, 6


class Work:
    """How often the server did what costs more than O(d^2 + degree d)."""

    def __init__(self) -> None:
        self.sums = 0
        self.searches = 0
        self.factorisations = 0


@pytest.fixture
def work() -> Iterator[Work]:
    counted = Work()

    def total(held: Holdings, members: np.ndarray, real=Holdings.total) -> Statistics:
        counted.sums += 1
        return real(held, members)

    def find_components(edges: np.ndarray, members: np.ndarray, real=graph.find_components) -> list[np.ndarray]:
        counted.searches += 1
        return real(edges, members)

    def factorise(*given: object, real=solve_ridge) -> tuple[np.ndarray, np.ndarray, float]:
        counted.factorisations += 1
        return real(*given)

    with (
        patch.object(Holdings, "total", total),
        patch.object(graph, "find_components", find_components),
        patch("fedcascade.numerics.linear.solve_ridge", factorise),
    ):
        yield counted


def seen(rng: np.random.Generator, preference: np.ndarray, rounds: int) -> Statistics:
    statistics = Statistics.zero(D)
    for _ in range(rounds):
        item = rng.standard_normal((1, D)).astype(np.float32)
        item /= 1.01 * np.linalg.norm(item)
        statistics = statistics.observe(item, 0 if float((item @ preference)[0]) > 0 else None)
    return statistics


def speak(server: Server, agent: int, statistics: Statistics) -> None:
    server.receive(Upload(agent=agent, sequence=1, cause=Cause.DETERMINANT, statistics=statistics))


def test_exchanges_that_refute_nothing_sum_and_search_nothing(work: Work) -> None:
    rng = np.random.default_rng(0)
    server = Server(policy=POLICIES["fedc3ucb-h"], agents=AGENTS, dimension=D)
    for agent in rng.integers(AGENTS, size=200):
        speak(server, int(agent), seen(rng, np.ones(D), 2))
    assert server.groups.edges.sum() == AGENTS * (AGENTS - 1), "no edge went, or this test shows little"
    assert (work.sums, work.searches) == (0, 0)


def test_an_exchange_factorises_as_often_with_few_users_as_with_many(work: Work) -> None:
    rng = np.random.default_rng(0)
    counts = []
    for agents in (3, AGENTS):
        server = Server(policy=POLICIES["fedc3ucb-h"], agents=agents, dimension=D)
        before = work.factorisations
        for agent in range(3):
            speak(server, agent, seen(rng, np.ones(D), 2))
        counts.append(work.factorisations - before)
    assert counts[0] == counts[1] > 0


def test_a_component_is_searched_once_when_an_edge_of_it_went_and_summed_only_if_it_fell_apart(work: Work) -> None:
    rng = np.random.default_rng(0)
    server = Server(policy=POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.8), agents=6, dimension=D)
    likes = [np.ones(D), -np.ones(D)]
    exchanges = split = searched = 0
    for _ in range(8):
        for agent in range(6):
            edges, groups = int(server.groups.edges.sum()), len(server.groups)
            speak(server, agent, seen(rng, likes[agent % 2], 25))
            exchanges += 1
            searched += int(server.groups.edges.sum()) < edges
            split += len(server.groups) - groups + (len(server.groups) > groups)  # every part of a split is summed
    assert len(server.groups) > 1, "the graph must have split, or this test shows little"
    assert work.searches == searched < exchanges
    assert work.sums == split
