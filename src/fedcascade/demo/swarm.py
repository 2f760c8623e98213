"""Real agents against a real server, with simulated users: the load of a simulation over a network.

With ``lockstep`` every exchange ends before the next round begins, so that a swarm makes exactly the exchanges of
``fedcascade run`` with the same seed. Without it, exchanges run in the background as they do in life.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.environment import Environment
from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Upload, count_payload_bytes
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.exploration import Explorer
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.pool import AgentPool
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import MOST_LABELS
from fedcascade.simulation.ledger import LedgerEntry
from fedcascade.simulation.reference import play_round
from fedcascade.simulation.trace import Recorder, Trace

REPORT_EVERY = 50
MOST_PER_PAGE = 1_000  # agents that a server lists at once
ANSWER_SECONDS = 60.0
MOST_TOKENS = 10_000
SERIES = "this run"
MEASURE_SECONDS = 0.5


class SwarmAgent(Protocol):
    """What a swarm asks of an agent; a ``PoolAgent`` has it, and so has an agent in another process."""

    @property
    def id(self) -> int: ...

    @property
    def trouble(self) -> str | None: ...

    @property
    def is_welcomed(self) -> bool: ...

    @property
    def recommend(self) -> Callable[..., ShownList]: ...

    @property
    def feedback(self) -> Callable[..., Upload | None]: ...

    def flush(self, timeout: float | None = None) -> bool: ...


class ClosableAgent(SwarmAgent, Protocol):
    """A ``SwarmAgent`` that belongs to no pool."""

    def close(self) -> None: ...


ConnectAgents = Callable[[list[str], ProblemSize], Sequence[ClosableAgent]]
OpenAgents = tuple[Sequence[SwarmAgent], Callable[[], None]]  # with a function that waits until all are answered


def run_swarm(
    environment: Environment,
    policy: Policy,
    *,
    rounds: int,
    operator: OperatorClient,
    transport: Transport,
    folder: Path | None,
    list_length: int = 4,
    oracle: Oracle | None = None,
    checkpoints: int = 10,
    keep_lists: bool = False,
    lockstep: bool = True,
    min_observations: int = 0,
    connect_agents: ConnectAgents | None = None,
    progress: Callable[[int], None] | None = None,
    after_round: Callable[[int, Recorder], None] | None = None,
    on_welcome: Callable[[int], None] | None = None,
) -> Trace:
    """Play a simulation with agents that speak to a server, which runs the same policy.

    The operator lets the agents in, and asks the server for its groups at ``checkpoints`` evenly spaced rounds. The
    agents share ``transport``, and a file in ``folder``, or in memory if it is None. ``min_observations`` is the
    privacy floor of uploads; 0 makes the exchanges those of the simulator. ``keep_lists`` also records every list.
    ``oracle`` chooses lists of ``list_length``; the best items if None.
    ``connect_agents`` enrols agents of another kind, with a token each. ``progress`` is called now and then with the
    number of rounds that are done, ``after_round`` after every round with the totals so far; it may take its time,
    which sets the pace. ``on_welcome`` is called before the first round with how many agents begin with what the server
    knows of anybody, from those who were there before.
    """
    oracle, kept = oracle or TopK(length=list_length), list_length if keep_lists else 0
    recorder = Recorder(rounds=rounds, checkpoints=checkpoints, truth=environment.clusters, list_length=kept,
                        has_propensities=isinstance(oracle, Explorer))  # fmt: skip
    users, dimension = environment.users, environment.dimension
    download_bytes = count_payload_bytes(dimension)
    problem = ProblemSize(users=users, dimension=dimension, list_length=list_length, rounds=rounds)
    tokens, store = create_tokens(operator, users), ":memory:" if folder is None else str(folder / "agents.db")

    def open_pool() -> AgentPool:
        return AgentPool("", store=store, tokens=tokens, policy=policy, problem=problem, oracle=oracle,
                         min_observations=min_observations, transport=transport, in_memory=users)  # fmt: skip

    if connect_agents is None:
        opened = _open_agents(open_pool, users)
    else:
        opened = _close_agents(connect_agents(tokens, problem))
    with opened as (agents, wait_for_all):
        if on_welcome is not None:
            on_welcome(sum(agent.is_welcomed for agent in agents))
        for t in range(1, rounds + 1):
            user = environment.arrival(t)
            outcome = play_round(environment, oracle, t, user, agents[user].recommend, agents[user].feedback)
            if (upload := outcome.upload) is not None:
                if lockstep:
                    _wait_for_answers(agents[user])
                recorder.ledger.append(LedgerEntry(t, user, upload.cause, upload.bytes, download_bytes))
            recorder.record_round(t, user, outcome)
            if t == recorder.stops[len(recorder.curve)]:
                recorder.record_checkpoint(t, fetch_labels([agent.id for agent in agents], operator))
            if progress is not None and (t % REPORT_EVERY == 0 or t == rounds):
                progress(t)
            if after_round is not None:
                after_round(t, recorder)
        wait_for_all()
        return recorder.build_trace(policy.name, "swarm", fetch_labels([agent.id for agent in agents], operator))


def create_tokens(operator: OperatorClient, count: int) -> list[str]:
    """Create as many tokens as there are agents; a server makes so many at once."""
    parts = [min(MOST_TOKENS, count - start) for start in range(0, count, MOST_TOKENS)]
    return [token for part in parts for token in operator.create_tokens(part)]


@contextmanager
def _open_agents(open_pool: Callable[[], AgentPool], users: int) -> Iterator[OpenAgents]:
    """Open a pool with an agent for each user; the first one enrols, and hears for all what the server knows."""
    with open_pool() as pool:
        pool.enrol("0")
        yield [pool.get(str(user)) for user in range(users)], lambda: wait_for_pool(pool)


@contextmanager
def _close_agents(agents: Sequence[ClosableAgent]) -> Iterator[OpenAgents]:
    """Close agents of another kind in the end."""

    def wait_for_all() -> None:
        for agent in agents:
            _wait_for_answers(agent)

    try:
        yield agents, wait_for_all
    finally:
        for agent in agents:
            agent.close()


def _wait_for_answers(agent: SwarmAgent) -> None:
    done = agent.flush(ANSWER_SECONDS)
    require(done, f"the server has not answered agent {agent.id} for {ANSWER_SECONDS:.0f} s: {agent.trouble}")


def wait_for_pool(pool: AgentPool) -> None:
    """Wait as long as answers come: the enrolment of many agents takes its time."""
    unsent = pool.unsent
    while not pool.flush(ANSWER_SECONDS):
        before, unsent = unsent, pool.unsent
        require(unsent < before, f"the server has answered nobody for {ANSWER_SECONDS:.0f} s: {pool.trouble}")


def fetch_labels(agents: Sequence[int], operator: OperatorClient) -> NDArray[np.int64]:
    """Ask the server for the groups of agents of these numbers."""
    overview = operator.fetch_overview()
    labels = overview.labels if overview.spoken <= MOST_LABELS else _list_labels(operator)
    return order_labels(agents, labels)


def _list_labels(operator: OperatorClient) -> dict[str, int]:
    """Ask for the groups of many agents page by page."""
    labels: dict[str, int] = {}
    page = operator.list_agents(0, MOST_PER_PAGE, "spoken")
    while page.agents:
        labels |= {str(row.agent): row.cluster for row in page.agents if row.cluster is not None}
        page = operator.list_agents(page.agents[-1].agent, MOST_PER_PAGE, "spoken")
    return labels


def order_labels(agents: Sequence[int], labels: Mapping[str, int]) -> NDArray[np.int64]:
    """Put the groups in the order of users; each agent that has never spoken gets a group of its own.

    >>> order_labels([7, 8, 9], {"7": 0, "9": 0}).tolist()
    [0, 1, 0]
    """
    fresh = max(labels.values(), default=-1) + 1
    silent = iter(range(fresh, fresh + len(agents)))
    return np.array([labels[str(agent)] if str(agent) in labels else next(silent) for agent in agents], np.int64)


class RegretReporter:
    """Reports the totals of a swarm twice a second; the first report drops those of earlier runs."""

    def __init__(self, operator: OperatorClient) -> None:
        self._operator = operator
        self._due = 0.0
        self._accepted = self._send(fresh=True)

    def report_round(self, t: int, recorder: Recorder, others: Mapping[str, float] = {}) -> None:
        """Report the totals of a recorder after a round; ``others`` are the regrets of systems beside it, by name."""
        if self._accepted and (t == recorder.rounds or time.monotonic() >= self._due):
            self._due = time.monotonic() + MEASURE_SECONDS
            measured = (SERIES, t, recorder.regret, recorder.reward)
            self._send(measured, *((name, t, lost, 0) for name, lost in others.items()))

    def _send(self, *measures: tuple[str, int, float, int], fresh: bool = False) -> bool:
        """Send a report; False if the server did not take it, which is no reason to stop."""
        try:
            self._operator.report_measures(measures, fresh=fresh)
        except (Refused, OSError):
            return False
        return True
