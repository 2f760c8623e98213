"""The baseline ``popularity``: the items that users click most, the same for all of them, learned online.

It is ``oful`` with one feature per item, which is 1: an item is scored by its clicks over lambda plus the times that it
was examined, with a width of beta over the root of that number. Agents do not see the numbers of items, so that only
simulations play it.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.agent import ShownList
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.oracles import read_attributes
from fedcascade.simulation.reference import REPORT_EVERY, FeedbackQueue, play_round
from fedcascade.simulation.scenario import Progress, Scenario, prepare_simulation
from fedcascade.simulation.trace import Trace


def simulate(scenario: Scenario, progress: Progress | None = None) -> Trace:
    """Run ``popularity`` in an environment with a catalogue."""
    environment, oracle, name = scenario.clustered, scenario.oracle, scenario.policy.name
    items = environment.catalogue.shape[1]
    require(items > 0, f"{name} needs a catalogue, and items of this environment are new in each round: use --ratings")
    require(scenario.warm is None, f"{name} cannot start from a log")
    simulation = prepare_simulation(scenario)
    recorder, labels = simulation.recorder, simulation.server.groups.labels
    examined, clicked = np.full(items, float(simulation.policy.lambda_)), np.zeros(items)
    beta, queue = float(simulation.policy.constants()["beta"]), FeedbackQueue(scenario)

    def recommend(features: NDArray[np.float32], ties: NDArray[np.uint32], **given: Any) -> ShownList:
        scores = np.minimum(clicked[numbers] / examined[numbers] + beta / np.sqrt(examined[numbers]), 1.0)
        chosen = oracle.choose(scores, ties, read_attributes(len(features), given["categories"], given["costs"]))
        return ShownList(0, t, chosen, features[chosen])

    for t in range(1, scenario.rounds + 1):
        user, numbers = environment.arrival(t), environment.item_numbers(t)
        played = play_round(environment, oracle, t, user, recommend, partial(queue.put, user, ()))
        for late in queue.take(t):
            seen = late.seen if isinstance(late.seen, Examination) else follow_cascade(late.shown.items.size, late.seen)
            listed = environment.item_numbers(late.round)[late.shown.items]
            examined[listed[: seen.examined]] += 1.0
            clicked[listed[list(seen.clicks)]] += 1.0
        recorder.record_round(t, user, played)
        recorder.record_checkpoint(t, labels)
        if progress is not None and (t % REPORT_EVERY == 0 or t == scenario.rounds):
            progress(t)
    return recorder.build_trace(name, "reference", labels)
