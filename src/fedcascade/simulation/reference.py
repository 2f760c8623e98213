"""The reference engine: Algorithm 1 as a plain loop, for any policy and environment."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.environment import Environment
from fedcascade.federation.agent import OPEN_LISTS, Agent, Click, ShownList
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.privacy import SimulatedNoise
from fedcascade.federation.warm_start import warm_up
from fedcascade.learning.cascade import (
    Examination,
    compute_expected_reward,
    compute_expected_value,
    examine,
    find_first_click,
    follow_cascade,
)
from fedcascade.learning.oracles import Oracle
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.scenario import (
    Progress,
    Scenario,
    Simulation,
    list_news,
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
    agents, queue = make_agents(simulation, oracle, rounds if scenario.is_late else OPEN_LISTS), FeedbackQueue(scenario)
    if scenario.warm is not None:
        warm_up(server, agents, scenario.warm)

    for t in range(1, rounds + 1):  # Algorithm 1, line 4
        start_round(scenario, simulation, agents, t)
        user = environment.arrival(t)  # line 5
        fetched = deliver_arrival(server, agents, user)
        # line 6: LocalAgent
        played = play_round(environment, oracle, t, user, agents[user].recommend, partial(queue.put, user, fetched))
        for late in queue.take(t):
            sent = agents[late.user].observe(late.shown, late.seen, round_=t, draw=late.draw)
            if sent is not None:  # line 7
                exchange(simulation, agents, t, sent, late.fetched)  # lines 8 to 11
        recorder.record_round(t, user, played)
        recorder.record_checkpoint(t, server.groups.labels)
        if progress is not None and (t % REPORT_EVERY == 0 or t == rounds):
            progress(t)

    return recorder.build_trace(scenario.policy.name, "reference", server.groups.labels)


def start_round(scenario: Scenario, simulation: Simulation, agents: Sequence[Agent], round_: int) -> None:
    """Report changed users to a server that knows true clusters, and send its prior to newcomers."""
    server = simulation.server
    changes, newcomers = list_news(scenario, server, round_)
    for changed, cluster in changes:
        server.groups.set_true_cluster(changed, cluster)
        agents[changed].restart(Statistics.zero(simulation.problem.dimension))
        upload = agents[changed].send_buffer(Cause.CHANGE)
        simulation.recorder.record_exchange(round_, *run_exchange(server, agents, upload))
    for newcomer in newcomers:
        agents[newcomer].receive(server.answer(newcomer))


def exchange(simulation: Simulation, agents: Sequence[Agent], round_: int, upload: Upload, fetched: Downloads) -> None:
    """Run an exchange, and record it with the downloads ``fetched`` before the round."""
    uploads, downloads = run_exchange(simulation.server, agents, upload)
    uploads, downloads = simulation.server.reply_state.select_counted(uploads, fetched + downloads)
    simulation.recorder.record_exchange(round_, uploads, downloads, simulation.policy.reply_rule.download_cause)


class LateFeedback(NamedTuple):
    """A list with its feedback, the random number of its round, and the downloads before it."""

    due: int
    round: int
    user: int
    fetched: Downloads
    shown: ShownList
    seen: Click
    draw: float


class FeedbackQueue:
    """Feedback on its way to the agents, by the round in which it arrives."""

    def __init__(self, scenario: Scenario) -> None:
        self._find_due, self._waiting = scenario.find_due_round, list[LateFeedback]()

    def put(self, user: int, fetched: Downloads, shown: ShownList, seen: Click, *, round_: int, draw: float) -> None:
        """Add the feedback of a round."""
        heappush(self._waiting, LateFeedback(self._find_due(round_), round_, user, fetched, shown, seen, draw))

    def take(self, round_: int) -> Iterator[LateFeedback]:
        """Yield the feedback that has arrived by a round, and remove it."""
        while self._waiting and self._waiting[0].due <= round_:
            yield heappop(self._waiting)


def make_agents(simulation: Simulation, oracle: Oracle, open_lists: int = OPEN_LISTS) -> list[Agent]:
    """Make the agent of each user; with a single learner, all users share one agent."""
    policy, users = simulation.policy, len(simulation.server.holdings)
    learners = 1 if policy.reply_rule.single_learner else users
    noise = SimulatedNoise(simulation.seed)
    agents = [
        Agent(id=user, policy=policy, problem=simulation.problem, oracle=oracle, noise=noise)
        for user in range(learners)
    ]
    for agent in agents:
        agent.open_lists = open_lists
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
    seen, merits, measure = show_list(environment, round_, user, features, shown.items)
    first = seen.clicks[0] if seen.clicks else None
    is_plain = len(seen.clicks) <= 1 and not seen.rewards
    upload = observe(shown, first if is_plain else seen, round_=round_, draw=environment.draw(round_))
    regret = oracle.alpha * measure(oracle.best(merits, attributes)) - measure(shown.items)
    return Round(shown, first, upload, regret, seen.examined, seen.reward if seen.rewards else None)


Outcome = tuple[Examination, NDArray[np.float64], Callable[[NDArray[np.intp]], float]]


def show_list(
    environment: Environment, round_: int, user: int, features: NDArray[np.float32], items: NDArray[np.intp]
) -> Outcome:
    """Return the feedback on a list, the expected reward of examining each item, and a function of a list's items.

    The function is the probability of a click, or the expected reward of the list if clicks have values.
    """
    weights = environment.weights(round_, user, features)
    attracted = environment.attracted(round_, items, weights[items])
    behaviour, expect = getattr(environment, "behaviour", None), getattr(environment, "expected_rewards", None)
    values = None if expect is None else expect(round_, user, features)
    if behaviour is not None:
        clicks = behaviour.click(environment.seed, round_, attracted, weights[items])  # type: ignore[attr-defined]
        return examine(items.size, clicks), weights, lambda chosen: behaviour.compute_reward(weights[chosen])
    click = find_first_click(attracted)
    if values is None:
        return follow_cascade(items.size, click), weights, lambda chosen: compute_expected_reward(weights[chosen])
    clicked = [] if click is None else [int(items[click])]
    rewards = [environment.draw_reward(round_, item, float(values[item])) for item in clicked]  # type: ignore[attr-defined]
    seen = examine(items.size, [] if click is None else [click], reward=rewards or None)
    return seen, weights * values, lambda chosen: compute_expected_value(weights[chosen], values[chosen])
