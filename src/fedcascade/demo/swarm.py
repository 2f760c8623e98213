"""Agents with simulated users against a server: a simulation over a network.

With ``lockstep``, every exchange ends before the next round, so that a swarm makes exactly the exchanges of
``fedcascade run`` with the same seed. Otherwise exchanges run in the background, as in a deployment.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.demo.options import SwarmOptions
from fedcascade.environments.environment import Environment
from fedcascade.federation.messages import count_payload_bytes
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.service.agent.client import OperatorClient, fetch_terms
from fedcascade.service.agent.options import build_policy
from fedcascade.service.agent.pool import AgentPool, PoolAgent
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol.errors import Refused
from fedcascade.simulation.ledger import LedgerEntry
from fedcascade.simulation.reference import play_round
from fedcascade.simulation.trace import Recorder, Trace

BEST_FOUR = TopK(length=4)
MOST_PER_PAGE = 1_000  # agents per page of a server
ANSWER_SECONDS = 60.0
MOST_TOKENS = 10_000
SERIES = "this run"
MEASURE_SECONDS = 0.5
MOST_PER_DOUBLING = 400  # reports while the time of a run doubles


OpenAgents = tuple[Sequence[PoolAgent], Callable[[], None]]  # and a function that waits for all answers
ConnectAgents = Callable[[list[str], ProblemSize], AbstractContextManager[OpenAgents]]
AfterRound = Callable[[int, Recorder], None]


def run_swarm(
    environment: Environment,
    options: SwarmOptions,
    *,
    operator: OperatorClient,
    transport: Transport,
    oracle: Oracle = BEST_FOUR,
    connect_agents: ConnectAgents | None = None,
    after_round: AfterRound | None = None,
    on_ready: Callable[[Sequence[PoolAgent]], None] | None = None,
) -> Trace:
    """Play a simulation with agents of a server, by the policy that the server announces.

    Args:
        environment: the simulated users.
        options: rounds, lockstep and files.
        operator: enrols the agents, and fetches the groups of the server at the checkpoints.
        transport: the agents' connection to the server.
        oracle: chooses lists; by default the best four items.
        connect_agents: enrols agents of another kind, with a token each.
        after_round: called after every round with the totals so far; the swarm waits for it.
        on_ready: called before the first round with the agents, one for each user.
    """
    write_log, terms = _prepare_log(options.log), fetch_terms(operator.transport)
    floor, asked = options.get_min_observations(terms.dimension), terms.min_observations
    remedy = "give --min-observations here, or start a server with --min-observations 0 for a simulation"
    require(floor >= asked, f"this server accepts uploads of {asked} observations or more: {remedy}")
    policy, users = build_policy(terms), environment.users
    recorder = Recorder(
        rounds=options.rounds,
        checkpoints=min(options.checkpoints, options.rounds),
        truth=environment.clusters,
        list_length=0 if options.log is None else oracle.length,
        has_propensities=hasattr(oracle, "propensities"),
    )
    problem = ProblemSize(users=users, dimension=terms.dimension, list_length=oracle.length, rounds=options.rounds)

    @contextmanager
    def open_pool(tokens: list[str], problem: ProblemSize) -> Iterator[OpenAgents]:
        store = ":memory:" if options.folder is None else str(options.folder / "agents.db")
        with AgentPool("", store=store, tokens=tokens, policy=policy, problem=problem, oracle=oracle,
                       min_observations=floor, transport=transport, in_memory=users) as pool:  # fmt: skip
            pool.enrol("0")  # receives the server's prior for all
            yield [pool.get(str(user)) for user in range(users)], lambda: wait_for_pool(pool)

    with (connect_agents or open_pool)(create_tokens(operator, users), problem) as (agents, wait_for_all):
        if on_ready is not None:
            on_ready(agents)
        for t in range(1, options.rounds + 1):
            _play_round(environment, oracle, agents, recorder, t, lockstep=options.lockstep)
            if t == recorder.stops[len(recorder.curve)]:
                recorder.record_checkpoint(t, fetch_labels(agents, operator))
            if after_round is not None:
                after_round(t, recorder)
        wait_for_all()
        trace = recorder.build_trace(policy.name, "swarm", fetch_labels(agents, operator))
    write_log(environment, trace)
    return trace


def _prepare_log(path: Path | None) -> Callable[[Environment, Trace], None]:
    """Check the path of a log, and return a function that writes it, or nothing without a path."""
    if path is None:
        return lambda *_: None
    from fedcascade.data.logs.writer import check_log_path
    from fedcascade.evaluation.simulated import write_simulated_log

    check_log_path(path)
    return partial(write_simulated_log, path)


def _play_round(
    environment: Environment,
    oracle: Oracle,
    agents: Sequence[PoolAgent],
    recorder: Recorder,
    t: int,
    *,
    lockstep: bool,
) -> None:
    user = environment.arrival(t)
    outcome = play_round(environment, oracle, t, user, agents[user].recommend, agents[user].feedback)
    if (upload := outcome.upload) is not None:
        if lockstep:
            wait_for_answers(agents[user])
        received = count_payload_bytes(environment.dimension)
        recorder.ledger.append(LedgerEntry(t, user, upload.cause, upload.bytes, received))
    recorder.record_round(t, user, outcome)


def create_tokens(operator: OperatorClient, count: int) -> list[str]:
    """Create a token for each agent, in batches that a server allows."""
    parts = [min(MOST_TOKENS, count - start) for start in range(0, count, MOST_TOKENS)]
    return [token for part in parts for token in operator.create_tokens(part)]


def wait_for_answers(agent: PoolAgent) -> None:
    """Wait until the uploads of an agent are answered."""
    done = agent.flush(ANSWER_SECONDS)
    require(done, f"the server has not answered agent {agent.id} for {ANSWER_SECONDS:.0f} s: {agent.trouble}")


def wait_for_pool(pool: AgentPool) -> None:
    """Wait until all uploads are answered, as long as answers arrive."""
    unsent = pool.unsent
    while not pool.flush(ANSWER_SECONDS):
        before, unsent = unsent, pool.unsent
        require(unsent < before, f"the server has not answered for {ANSWER_SECONDS:.0f} s: {pool.trouble}")


def fetch_labels(agents: Sequence[PoolAgent], operator: OperatorClient) -> NDArray[np.int64]:
    """Ask the server for the groups of agents, page by page."""
    page = operator.list_agents(0, MOST_PER_PAGE, "active")
    rows = list(page.agents)
    while page.more:
        page = operator.list_agents(rows[-1].agent, MOST_PER_PAGE, "active")
        rows += page.agents
    labels = {str(row.agent): row.cluster for row in rows if row.cluster is not None}
    return order_labels([agent.id for agent in agents], labels)


def order_labels(agents: Sequence[int], labels: Mapping[str, int]) -> NDArray[np.int64]:
    """Put the groups in the order of users; each agent without uploads gets a group of its own.

    >>> order_labels([7, 8, 9], {"7": 0, "9": 0}).tolist()
    [0, 1, 0]
    """
    fresh = max(labels.values(), default=-1) + 1
    silent = iter(range(fresh, fresh + len(agents)))
    return np.array([labels[str(agent)] if str(agent) in labels else next(silent) for agent in agents], np.int64)


class RegretReporter:
    """A reporter of a swarm's totals, twice a second; its first report drops those of earlier runs."""

    def __init__(self, operator: OperatorClient) -> None:
        self._operator = operator
        self._due, self._begun = 0.0, time.monotonic()
        self._accepted = self._send(fresh=True)

    def report_round(self, t: int, recorder: Recorder, measure: Callable[[], Mapping[str, float]] = dict) -> None:
        """Report the totals of a recorder after a round, and other measures by name."""
        if self._accepted and (t == recorder.rounds or time.monotonic() >= self._due):
            now = time.monotonic()
            self._due = now + max(MEASURE_SECONDS, (now - self._begun) / MOST_PER_DOUBLING)  # rarer in a long run
            measured = (SERIES, t, recorder.regret, recorder.clicked)
            self._send(measured, *((name, t, value, 0) for name, value in measure().items()))

    def _send(self, *measures: tuple[str, int, float, int], fresh: bool = False) -> bool:
        """Send a report; return False if the server refused it, without stopping the swarm."""
        try:
            self._operator.report_measures(measures, fresh=fresh)
        except (Refused, OSError):
            return False
        return True
