"""Real agents against a real server, with simulated users: the load of a simulation over a network.

With ``lockstep`` every exchange ends before the next round begins, so that a swarm makes exactly the exchanges of
``fedcascade run`` with the same seed. Without it, exchanges run in the background as they do in life.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.environment import Environment
from fedcascade.federation.messages import Upload
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.agent.transport import Transport
from fedcascade.simulation.reference import play_round
from fedcascade.simulation.trace import Exchange, Recorder, Trace

REPORT_EVERY = 50
ANSWER_SECONDS = 60.0


def run_swarm(
    environment: Environment,
    policy: Policy,
    *,
    rounds: int,
    operator: OperatorClient,
    new_transport: Callable[[], Transport],
    folder: Path | None,
    list_length: int = 4,
    checkpoints: int = 10,
    lockstep: bool = True,
    min_observations: int = 0,
    progress: Callable[[int], None] | None = None,
    after_round: Callable[[int, Recorder], None] | None = None,
) -> Trace:
    """Play a simulation with agents that speak to a server.

    Args:
        environment: who arrives, what is on offer, what gets clicked.
        policy: what the agents run; the server's own.
        rounds: T.
        operator: enrols the agents, and asks the server for its groups at checkpoints.
        new_transport: how each agent reaches the server.
        folder: where the agents keep their files; in memory if None.
        list_length: K.
        checkpoints: at how many evenly spaced rounds totals are kept.
        lockstep: wait for every exchange.
        min_observations: the privacy floor of uploads; 0 makes the exchanges those of the simulator.
        progress: called now and then with the number of rounds that are done.
        after_round: called after every round with the totals so far; it may take its time, which sets the pace.
    """
    recorder = Recorder(rounds=rounds, checkpoints=checkpoints, truth=environment.clusters)
    oracle = TopK(length=list_length)
    problem = ProblemSize(
        users=environment.users, dimension=environment.dimension, list_length=list_length, rounds=rounds
    )
    agents = [
        connect(
            "",
            store=":memory:" if folder is None else str(folder / f"agent-{user}.db"),
            token=token,
            policy=policy,
            problem=problem,
            oracle=oracle,
            min_observations=min_observations,
            transport=new_transport(),
        )
        for user, token in enumerate(operator.create_tokens(environment.users))
    ]
    try:
        for t in range(1, rounds + 1):
            user = environment.arrival(t)
            outcome = play_round(environment, oracle, t, user, agents[user].recommend, agents[user].feedback)
            if outcome.upload is not None:
                if lockstep:
                    _wait_for_answers(agents[user])
                recorder.ledger.append(_build_exchange(t, user, outcome.upload))
            recorder.record_round(outcome.regret, outcome.click, outcome.examined)
            if t == recorder.stops[len(recorder.curve)]:
                recorder.record_checkpoint(t, _fetch_labels(agents, operator))
            if progress is not None and (t % REPORT_EVERY == 0 or t == rounds):
                progress(t)
            if after_round is not None:
                after_round(t, recorder)
        for agent in agents:
            _wait_for_answers(agent)
        return recorder.build_trace(policy.name, "swarm", _fetch_labels(agents, operator))
    finally:
        for agent in agents:
            agent.close()


def _wait_for_answers(agent: RemoteAgent) -> None:
    done = agent.flush(ANSWER_SECONDS)
    require(done, f"the server has not answered agent {agent.id} for {ANSWER_SECONDS:.0f} s: {agent.trouble}")


def _build_exchange(round_: int, user: int, upload: Upload) -> Exchange:
    """Build a line of the ledger; a download is as large as an upload."""
    return Exchange(round_, user, upload.cause, upload.bytes, upload.bytes)


def _fetch_labels(agents: list[RemoteAgent], operator: OperatorClient) -> NDArray[np.int64]:
    """Fetch the group of every user."""
    return order_labels([agent.id for agent in agents], operator.fetch_overview().labels)


def order_labels(agents: list[int], labels: Mapping[str, int]) -> NDArray[np.int64]:
    """Put the groups in the order of users; each agent that has never spoken gets a group of its own.

    >>> order_labels([7, 8, 9], {"7": 0, "9": 0}).tolist()
    [0, 1, 0]
    """
    fresh = max(labels.values(), default=-1) + 1
    silent = iter(range(fresh, fresh + len(agents)))
    return np.array([labels[str(agent)] if str(agent) in labels else next(silent) for agent in agents], np.int64)
