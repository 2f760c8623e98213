"""A swarm over several processes: each plays the rounds of its share of the users, and one trace comes of it.

Processes do not wait for each other, so exchanges of different users come in another order than in a simulation. What
each user is shown and clicks is that of its rounds all the same.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.demo.swarm import create_tokens, fetch_labels, wait_for_pool
from fedcascade.environments.environment import Environment
from fedcascade.federation.messages import count_payload_bytes
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.pool import AgentPool
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.simulation.ledger import Exchange
from fedcascade.simulation.reference import play_round
from fedcascade.simulation.trace import Recorder, Trace

REPORT_EVERY = 200  # rounds of a process
ENDING_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class SwarmPlan:
    """What all processes of a swarm know. ``build`` makes the environment, in each process by itself."""

    url: str
    build: Callable[[], Environment]
    policy: Policy
    oracle: Oracle
    rounds: int
    list_length: int
    folder: Path | None
    min_observations: int


@dataclass(frozen=True)
class Share:
    """What came of the rounds of one process; ``numbers`` has those of its agents at the server, by user."""

    rounds: NDArray[np.int64]
    regret: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    examined: NDArray[np.int64]
    exchanges: list[Exchange]
    numbers: dict[int, int]


def run_swarm_in_processes(
    plan: SwarmPlan,
    processes: int,
    operator: OperatorClient,
    *,
    progress: Callable[[int], None] | None = None,
    report: Callable[[int, float, int], None] | None = None,
) -> Trace:
    """Play a simulation with agents in several processes that speak to a server, which runs the same policy.

    ``progress`` is called now and then with the number of rounds that are done, ``report`` with these, the regret and
    the reward so far. The server is asked for its groups at the end alone. If this is interrupted, all processes end.
    """
    environment = plan.build()
    users = range(environment.users)
    recorder = Recorder(rounds=plan.rounds, checkpoints=1, truth=environment.clusters)
    context, started = multiprocessing.get_context("spawn"), list[tuple[BaseProcess, Connection]]()
    try:
        for number in range(processes):
            ours, theirs = context.Pipe()
            tokens = create_tokens(operator, len(users[number::processes]))
            process = context.Process(target=_play_share, args=(plan, number, processes, tokens, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        shares = _gather([ours for _, ours in started], progress, report)
    finally:
        for each, ours in started:
            ours.close()
            each.terminate()
        for each, _ in started:
            each.join(ENDING_SECONDS)
    return _merge(recorder, shares, plan.policy.name, partial(fetch_labels, operator=operator))


def _gather(
    connections: Sequence[Connection],
    progress: Callable[[int], None] | None,
    report: Callable[[int, float, int], None] | None,
) -> list[Share]:
    """Listen to all processes until each has handed over its share."""
    totals = dict.fromkeys(connections, (0, 0.0, 0))
    shares: dict[Any, Share] = {}
    while len(shares) < len(connections):
        for ready in wait([connection for connection in connections if connection not in shares]):
            message = _receive(ready)
            if isinstance(message, Share):
                shares[ready] = message
            else:
                totals[ready] = message  # type: ignore[index]
        done, regret, reward = (sum(column) for column in zip(*totals.values(), strict=True))
        if progress is not None:
            progress(int(done))
        if report is not None:
            report(int(done), float(regret), int(reward))
    return [shares[connection] for connection in connections]


def _receive(connection: Any) -> Any:
    try:
        message = connection.recv()
    except EOFError:
        raise ValueError("a process of the swarm has ended before its rounds: see its words above") from None
    if isinstance(message, str):
        raise ValueError(message)
    return message


def _play_share(plan: SwarmPlan, number: int, processes: int, tokens: list[str], connection: Connection) -> None:
    """Play the rounds of every so many-th user, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted ends this one
    try:
        connection.send(_play_rounds(plan, number, processes, tokens, connection))
    except (ValueError, OSError) as error:
        connection.send(f"a process of the swarm has stopped: {error}")


def _play_rounds(plan: SwarmPlan, number: int, processes: int, tokens: list[str], connection: Connection) -> Share:
    environment, exchanges, numbers = plan.build(), list[Exchange](), dict[int, int]()
    rounds = np.array([t for t in range(1, plan.rounds + 1) if environment.arrival(t) % processes == number], np.int64)
    regret, clicked, examined = np.zeros(rounds.size), np.zeros(rounds.size, np.bool_), np.zeros(rounds.size, np.int64)
    problem = ProblemSize(users=environment.users, dimension=environment.dimension, list_length=plan.list_length,
                          rounds=plan.rounds)  # fmt: skip
    store = ":memory:" if plan.folder is None else str(plan.folder / f"agents-{number}.db")
    download_bytes = count_payload_bytes(environment.dimension)
    with AgentPool("", store=store, tokens=tokens, policy=plan.policy, problem=problem, oracle=plan.oracle,
                   min_observations=plan.min_observations, transport=HttpTransport(plan.url)) as pool:  # fmt: skip
        for place, t in enumerate(rounds.tolist()):
            user = environment.arrival(t)
            agent = pool.get(str(user))
            outcome = play_round(environment, plan.oracle, t, user, agent.recommend, agent.feedback)
            if (upload := outcome.upload) is not None:
                exchanges.append(Exchange(t, user, upload.cause, upload.bytes, download_bytes))
            regret[place], clicked[place] = outcome.regret, outcome.click is not None
            examined[place] = outcome.examined
            if (place + 1) % REPORT_EVERY == 0 or place + 1 == rounds.size:
                connection.send((place + 1, float(regret.sum()), int(clicked.sum())))
        wait_for_pool(pool)
        for user in {exchange.agent for exchange in exchanges}:
            numbers[user] = pool.get(str(user)).id
    return Share(rounds, regret, clicked, examined, exchanges, numbers)


def _merge(
    recorder: Recorder,
    shares: Sequence[Share],
    name: str,
    fetch: Callable[[Sequence[int]], NDArray[np.int64]],
) -> Trace:
    """Put the rounds of all processes into their order, as one trace."""
    order = np.argsort(np.concatenate([share.rounds for share in shares]))
    require(order.size == recorder.rounds, f"the processes played {order.size} of {recorder.rounds} rounds")
    regret, clicked, examined = (
        np.concatenate([getattr(share, column) for share in shares])[order]
        for column in ("regret", "clicked", "examined")
    )
    numbers = {user: number for share in shares for user, number in share.numbers.items()}
    labels = fetch([numbers.get(user, -user - 1) for user in range(recorder.truth.size)])
    recorder.record_rounds(1, regret, clicked, examined, np.empty((0, 0), np.int32))
    recorder.ledger.extend(sorted((each for share in shares for each in share.exchanges), key=lambda each: each.round))
    recorder.record_checkpoint(recorder.rounds, labels)
    return recorder.build_trace(name, "swarm", labels)
