"""The baseline ``popularity``: the items that users click most, the same for all of them, learned online.

It is ``oful`` with one feature per item, which is 1: an item is scored by its clicks over lambda plus the times that it
was examined, with a width of beta over the root of that number. Agents do not see the numbers of items, so that only
simulations play it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.agent import Click, ShownList
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.oracles import read_attributes
from fedcascade.simulation.reference import REPORT_EVERY, play_round
from fedcascade.simulation.scenario import Progress, Scenario, prepare_simulation
from fedcascade.simulation.trace import Trace


def simulate(scenario: Scenario, progress: Progress | None = None) -> Trace:
    """Run ``popularity`` in an environment with a catalogue."""
    environment, oracle, name = scenario.clustered, scenario.oracle, scenario.policy.name
    items = environment.catalogue.shape[1]
    require(items > 0, f"{name} needs a catalogue, and items of this environment are new in each round: use --ratings")
    require(scenario.warm is None, f"{name} cannot start from a log")
    require(not scenario.is_late, f"{name} learns from clicks at once: leave out delay and batch")
    simulation = prepare_simulation(scenario)
    recorder, labels = simulation.recorder, simulation.server.groups.labels
    examined, clicked = np.full(items, float(simulation.policy.lambda_)), np.zeros(items)
    beta = float(simulation.policy.constants()["beta"])

    def recommend(features: NDArray[np.float32], ties: NDArray[np.uint32], **given: Any) -> ShownList:
        scores = np.minimum(clicked[numbers] / examined[numbers] + beta / np.sqrt(examined[numbers]), 1.0)
        chosen = oracle.choose(scores, ties, read_attributes(len(features), given["categories"], given["costs"]))
        return ShownList(0, t, chosen, features[chosen])

    def observe(shown: ShownList, click: Click, **_: Any) -> None:
        seen = click if isinstance(click, Examination) else follow_cascade(len(shown.items), click)
        examined[numbers[shown.items[: seen.examined]]] += 1.0
        clicked[numbers[shown.items[list(seen.clicks)]]] += 1.0

    for t in range(1, scenario.rounds + 1):
        user, numbers = environment.arrival(t), environment.item_numbers(t)
        recorder.record_round(t, user, play_round(environment, oracle, t, user, recommend, observe))
        recorder.record_checkpoint(t, labels)
        if progress is not None and (t % REPORT_EVERY == 0 or t == scenario.rounds):
            progress(t)
    return recorder.build_trace(name, "reference", labels)
