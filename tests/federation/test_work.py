"""What an exchange costs, counted in work and not in seconds: no sum over users unless a group fell apart."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Self

import numpy as np

from fedcascade.federation.grouping.graph.complete import find_components
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

from .graphs import get_edges

AGENTS, D = 300, 6


class Work:
    """Counts calls of Python functions inside a ``with`` block, by watching the interpreter.

    Callbacks of the garbage collector, which other tests may register, would count too: it waits.
    """

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()

    def __enter__(self) -> Self:
        gc.disable()
        sys.setprofile(self._watch)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _watch(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.calls[frame.f_code] += 1

    def count(self, function: Callable[..., object]) -> int:
        return self.calls[function.__code__]


def seen(rng: np.random.Generator, preference: np.ndarray, rounds: int) -> Statistics:
    statistics = Statistics.zero(D)
    for _ in range(rounds):
        item = rng.standard_normal((1, D)).astype(np.float32)
        item /= 1.01 * np.linalg.norm(item)
        statistics = statistics.observe(item, 0 if float((item @ preference)[0]) > 0 else None)
    return statistics


def speak(server: Server, agent: int, statistics: Statistics) -> None:
    server.receive(Upload(agent=agent, sequence=1, cause=Cause.DETERMINANT, statistics=statistics))


def test_calls_are_counted() -> None:
    with Work() as work:
        seen(np.random.default_rng(0), np.ones(D), 3)
    seen(np.random.default_rng(0), np.ones(D), 3)
    assert work.count(Statistics.observe) == 3


def test_exchanges_that_refute_nothing_sum_and_search_nothing() -> None:
    rng = np.random.default_rng(0)
    server = Server(policy=POLICIES["fedc3ucb-h"], agents=AGENTS, dimension=D)
    with Work() as work:
        for agent in rng.integers(AGENTS, size=200):
            speak(server, int(agent), seen(rng, np.ones(D), 2))
    assert get_edges(server).sum() == AGENTS * (AGENTS - 1), "no edge went, or this test shows little"
    assert work.count(Server.receive) == 200
    assert (work.count(Holdings.total), work.count(find_components)) == (0, 0)


def test_an_exchange_makes_as_many_calls_with_few_users_as_with_many() -> None:
    calls = []
    for agents in (3, 3, AGENTS):  # the first time, functions are compiled or loaded
        rng = np.random.default_rng(0)
        server = Server(policy=POLICIES["fedc3ucb-h"], agents=agents, dimension=D)
        with Work() as work:
            for agent in range(3):
                speak(server, agent, seen(rng, np.ones(D), 2))
        calls.append(work.calls)
    assert calls[1] == calls[2]
    assert work.count(Ridge.__init__) == work.count(Holdings.add) == 3, (
        "theta is solved for once to check, once to keep"
    )


def test_a_component_is_searched_once_when_an_edge_of_it_went_and_summed_only_if_it_fell_apart() -> None:
    rng = np.random.default_rng(0)
    server = Server(policy=POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.8), agents=6, dimension=D)
    likes = [np.ones(D), -np.ones(D)]
    exchanges = split = searched = 0
    with Work() as work:
        for agent in list(range(6)) * 8:
            edges, groups = int(get_edges(server).sum()), len(server.groups)
            speak(server, agent, seen(rng, likes[agent % 2], 25))
            exchanges += 1
            searched += int(get_edges(server).sum()) < edges
            split += len(server.groups) - groups + (len(server.groups) > groups)  # every part of a split is summed
    assert len(server.groups) > 1, "the graph must have split, or this test shows little"
    assert work.count(find_components) == searched < exchanges
    assert work.count(Holdings.total) == split
