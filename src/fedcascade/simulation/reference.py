"""Algorithm 1 as a loop that anyone can read; it runs any policy, also one of your own."""

from collections.abc import Callable

from fedcascade.environments.environment import Environment
from fedcascade.federation.agent import Agent
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.policies import Policy
from fedcascade.learning.cascade import compute_expected_reward, count_examined, find_first_click
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.scenario import Simulation, prepare_simulation
from fedcascade.simulation.trace import Trace

Progress = Callable[[int], None]
REPORT_EVERY = 500


def simulate(
    environment: Environment,
    policy: Policy,
    *,
    rounds: int,
    oracle: Oracle | None = None,
    checkpoints: int = 10,
    keep_lists: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Run a policy in an environment, round by round.

    Args:
        environment: who arrives, what is on offer, what gets clicked.
        policy: the system, for instance ``POLICIES["fedc3ucb-h"]``.
        rounds: T.
        oracle: chooses the list from the scores; ``TopK(length=4)`` if None.
        checkpoints: at how many evenly spaced rounds totals are kept.
        keep_lists: also keep every list, which takes memory in proportion to the rounds.
        progress: called now and then with the number of rounds that are done.

    >>> from fedcascade.environments.synthetic import Synthetic
    >>> from fedcascade.federation.policies import POLICIES
    >>> world = Synthetic(users=4, clusters=2, dimension=5, items=10)
    >>> trace = simulate(world, POLICIES["fedc3ucb-h"], rounds=100)
    >>> trace.rounds, len(trace.curve), trace.communications() == len(trace.ledger)
    (100, 10, True)
    """
    oracle = oracle or TopK()
    stage = prepare_simulation(
        environment, policy, oracle, rounds=rounds, checkpoints=checkpoints, keep_lists=keep_lists
    )
    server, recorder = stage.server, stage.recorder
    agents = make_agents(stage, oracle)

    for t in range(1, rounds + 1):  # Algorithm 1, line 4
        user = environment.arrival(t)  # line 5
        fetched = deliver_arrival(server, agents, user)
        features = environment.items(t)
        shown = agents[user].recommend(features, environment.ties(t, len(features)))  # line 6: LocalAgent
        weights = environment.weights(t, user, features)
        click = find_first_click(environment.attracted(t, shown.items, weights[shown.items]))
        upload = agents[user].observe(shown, click, round_=t, draw=environment.draw(t))
        if upload is not None:  # line 7
            uploads, downloads = run_exchange(server, agents, upload)  # lines 8 to 11
            recorder.record_exchange(t, uploads, fetched + downloads, policy.reply_rule.download_cause)

        best = compute_expected_reward(weights[oracle.best(weights)])
        regret = oracle.alpha * best - compute_expected_reward(weights[shown.items])
        recorder.record_round(regret, click, count_examined(shown.items.size, click))
        recorder.record_list(t, shown.items)
        recorder.record_checkpoint(t, server.groups.labels)
        if progress is not None and (t % REPORT_EVERY == 0 or t == rounds):
            progress(t)

    return recorder.trace(policy.name, "reference", server.groups.labels)


def make_agents(stage: Simulation, oracle: Oracle) -> list[Agent]:
    """The agent of each user; where one learner serves everybody, it is the same for all."""
    users = len(stage.server.holdings)
    learners = 1 if stage.policy.reply_rule.single_learner else users
    agents = [Agent(id=one, policy=stage.policy, problem=stage.problem, oracle=oracle) for one in range(learners)]
    return agents * (users // learners)
