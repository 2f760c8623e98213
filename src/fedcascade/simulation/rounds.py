"""One round of Algorithm 1, as the reference engine, the swarm of real agents and the contracts play it."""

from collections.abc import Callable
from dataclasses import dataclass

from fedcascade.environments.environment import Environment
from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Upload
from fedcascade.learning.cascade import compute_expected_reward, count_examined, find_first_click
from fedcascade.learning.oracles import Oracle


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round: the list, the position that was clicked, and the upload that followed, if any.

    ``regret`` is expected regret, from the true weights; ``examined`` counts the positions that the user looked at.
    """

    shown: ShownList
    click: int | None
    upload: Upload | None
    regret: float
    examined: int


def play_round(
    environment: Environment,
    oracle: Oracle,
    round_: int,
    user: int,
    recommend: Callable[..., ShownList],
    observe: Callable[..., Upload | None],
) -> Round:
    """Algorithm 1, lines 6 and 7: let the agent of ``user`` recommend and observe, and count the regret.

    Args:
        environment: what is on offer and what gets clicked.
        oracle: against whose best list regret is counted.
        round_: t.
        user: who arrives.
        recommend: ``Agent.recommend`` or its like.
        observe: ``Agent.observe`` or its like.
    """
    features = environment.items(round_)
    shown = recommend(features, ties=environment.ties(round_, len(features)))
    weights = environment.weights(round_, user, features)
    click = find_first_click(environment.attracted(round_, shown.items, weights[shown.items]))
    upload = observe(shown, click, round_=round_, draw=environment.draw(round_))
    best = compute_expected_reward(weights[oracle.best(weights)])
    regret = oracle.alpha * best - compute_expected_reward(weights[shown.items])
    return Round(shown, click, upload, regret, count_examined(shown.items.size, click))
