"""Cases of an agent's arithmetic, from elementary functions to trust, drift, oracles, triggers and checks."""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.agent import Agent
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import get_policy
from fedcascade.federation.privacy import PrivateUploads, Unit
from fedcascade.federation.triggers import AtLeast, Occasion
from fedcascade.learning.cascade import examine, follow_cascade
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.knapsack import Budget
from fedcascade.learning.oracles import PerCategory, TopK, read_attributes
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.grid import normalise, round_to_grid
from fedcascade.service.protocol.validation import can_exist
from vectors.draws import (
    Case,
    Draws,
    compute_or_refuse,
    describe_statistics,
    draw_click,
    draw_items,
    draw_statistics,
    draw_words,
)

SERVED = ("fedlinucb", "fedc3ucb-h", "force-comm", "no-auxiliary", "population")


def build_logarithms(draws: Draws) -> list[Case]:
    """Build ln of numbers from the smallest to the largest."""
    exponents = draws.uniform(-1000.0, 1000.0, 40)
    numbers = [1.0, 2.0, 0.5, 1.4142135623730951, 1.4142135623730954, 2.0**-1022, 1.7e308, *(2.0**exponents).tolist()]
    return [{"x": x, "log": float(log(x))} for x in numbers]


def build_exponentials(draws: Draws) -> list[Case]:
    """Build e^x of numbers, from those that give 0 to the largest."""
    numbers = [0.0, -0.0, 1.0, -1.0, -707.0, -707.1, -1e9, 708.9, *draws.uniform(-707.0, 709.0, 20).tolist()]
    numbers += draws.uniform(-2.0, 0.0, 12).tolist()
    return [{"x": x, "exp": float(exp(x))} for x in numbers]


def build_features(draws: Draws) -> list[Case]:
    """Build features before and after rounding and normalisation; null if they are rejected."""
    cases: list[Case] = []
    for dimension in (1, 2, 5, 20):
        for _ in range(8):
            drawn = draw_items(draws, 4, dimension)
            rounded, normalised = round_to_grid(drawn).tolist(), normalise(drawn).tolist()
            cases.append(
                {"dimension": dimension, "items": drawn.tolist(), "rounded": rounded, "normalised": normalised}
            )
    for items, dimension in (
        ([[1.1, 0.0]], 2), ([[0.8, 0.8]], 2), ([], 2), ([[0.1]], 2), ([[0.1, 0.2, 0.3]], 2), ([[0.1, 0.2], [0.1]], 2),
        ([[1e30, 0.0]], 2), ([[1e-300, -1e-300]], 2), ([[1.0, 0.0001]], 2), ([[1.0, 0.0], [0.0, -1.0]], 2),
    ):  # fmt: skip
        rounded, normalised = (
            compute_or_refuse(partial(_round, items, dimension)),
            compute_or_refuse(partial(normalise, items)),
        )
        cases.append({"dimension": dimension, "items": items, "rounded": rounded, "normalised": normalised})
    return cases


def _round(items: list[list[float]], dimension: int) -> NDArray[np.float32]:
    problem = ProblemSize(users=1, dimension=dimension, list_length=1, rounds=1)
    agent, rounded = Agent(id=1, policy=get_policy("fedlinucb"), problem=problem, oracle=TopK()), round_to_grid(items)
    agent.recommend(rounded, np.zeros(len(rounded), np.uint32))
    return rounded


def build_statistics(draws: Draws) -> list[Case]:
    """Build statistics before a round, its list, and the statistics after it; null if the click is rejected."""
    cases: list[Case] = []
    for number in range(60):
        before = draw_statistics(draws, int(draws.integers(1, 9)), int(draws.integers(0, 6)))
        listed = round_to_grid(draw_items(draws, int(draws.integers(1, 7)), before.dimension))
        click = len(listed) + number if number < 4 else draw_click(draws, len(listed))
        after = None if number < 4 else describe_statistics(before.observe(listed, click))
        cases.append({"before": describe_statistics(before), "listed": listed.tolist(), "click": click, "after": after})
    return cases


def build_rewards(draws: Draws) -> list[Case]:
    """Build lists with several clicks and their rewards, and the statistics after each; null if one is rejected."""
    cases: list[Case] = []
    for number in range(60):
        before = draw_statistics(draws, int(draws.integers(1, 9)), int(draws.integers(0, 6)))
        listed = round_to_grid(draw_items(draws, int(draws.integers(1, 7)), before.dimension))
        clicks = draws.permutation(len(listed))[: int(draws.integers(1, len(listed) + 1))].tolist()
        reward: Any = draws.random(len(clicks)).tolist() if number % 2 else float(draws.random())
        if number < 4:
            reward = (1.5, -0.1, [0.5] * 9, "0.5")[number]
        try:
            seen = examine(len(listed), clicks, reward=reward)
            after = describe_statistics(before.observe(listed, seen))
        except ValueError:
            after = None
        case: Case = {"before": describe_statistics(before), "listed": listed.tolist(), "clicks": clicks}
        cases.append(case | {"reward": reward, "after": after})
    return cases


def build_ridges(draws: Draws) -> list[Case]:
    """Build theta, ln det, scores, and the growth by a buffer, to the bit; null if the gram is rejected."""
    cases: list[Case] = []
    for number in range(80):
        dimension = int(draws.integers(1, 13))
        statistics = draw_statistics(draws, dimension, int(draws.integers(0, 12)))
        buffer = draw_statistics(draws, dimension, int(draws.integers(0, 4)))
        lambda_, beta = float(draws.choice([0.1, 1.0, 4.0])), float(draws.uniform(0.0, 3.0))
        items = round_to_grid(draw_items(draws, 6, dimension))
        case: Case = {"statistics": describe_statistics(statistics), "lambda": lambda_, "beta": beta}
        ridge = Ridge(statistics, lambda_)
        case |= {"items": items.tolist(), "buffer": describe_statistics(buffer), "theta": ridge.theta.tolist()}
        case |= {"log_det": float(ridge.log_det), "growth": ridge.growth(buffer)}
        cases.append(case | {"scores": ridge.scores(items, beta).tolist(), "number": number})
    return cases


def build_trust(draws: Draws) -> list[Case]:
    """Build the weight of others' data in a download, the deviation of a click and the weighed download."""
    cases: list[Case] = []
    for number in range(60):
        dimension, lambda_ = int(draws.integers(1, 13)), float(draws.choice([0.01, 0.5]))
        policy = get_policy("population").with_constants(lambda_=lambda_)
        held = draw_statistics(draws, dimension, int(draws.integers(0, 30)))
        pending = draw_statistics(draws, dimension, int(draws.integers(0, 8)))
        others = draw_statistics(draws, dimension, int(draws.integers(0, 30))).scale(float(draws.random()))
        gram = held.gram + others.gram - (0.0 if number % 6 == 0 else 0.9 * lambda_) * np.eye(dimension)
        download = Statistics(gram, held.moment + others.moment, held.count, held.clicks, held.rounds)
        keeper = OwnDataKeeper(policy, dimension)
        keeper.restart(held + pending)
        believed = keeper.receive(download, pending)
        case: Case = {"lambda": lambda_, "total": describe_statistics(keeper.total)}
        case |= {"pending": describe_statistics(pending), "download": describe_statistics(download)}
        case |= {
            "weight": float(keeper.data.weight[0]),
            "deviation": keeper.deviation,
            "believed": describe_statistics(believed),
        }
        cases.append(case)
    return cases


def build_drift(draws: Draws) -> list[Case]:
    """Build lists of users whose theta changes sign at times, and the result of drift detection after each."""
    cases: list[Case] = []
    for number in range(12):
        dimension, lambda_, block = int(draws.integers(1, 6)), float(draws.choice([0.01, 0.5, 4.0])), 1 + number % 8
        detection, lists = ChangeDetection(threshold=4.0, limit=3.0, block=block), list[Case]()
        keeper = OwnDataKeeper(replace(get_policy("population"), changes=detection), dimension)
        data, theta = keeper.data, draws.normal(size=dimension)
        for turn in range(150):
            theta = -theta if turn % 50 == 49 else theta
            listed = round_to_grid(draw_items(draws, 4, dimension))
            click = next((place for place in range(4) if listed[place] @ theta > draws.normal(0.2, 0.1)), None)
            has_changed = keeper.follow(listed, follow_cascade(4, click), Ridge(keeper.total, lambda_))
            after: Case = {"changed": has_changed, "cusum": float(data.cusum[0])}
            after |= {"levels": data.levels[: data.used[0]].tolist(), "total": describe_statistics(keeper.total)}
            lists.append({"listed": listed.tolist(), "click": click, "after": after})
        case: Case = {"dimension": dimension, "lambda": lambda_, "detection": detection.compile()._asdict()}
        cases.append(case | {"lists": lists})
    return cases


def build_oracles(draws: Draws) -> list[Case]:
    """Build lists from scores, ties, categories and costs; null if no list is possible."""
    cases: list[Case] = []
    for number in range(90):
        items, length = int(draws.integers(1, 25)), int(draws.integers(1, 7))
        scores = np.minimum(np.round(draws.normal(0.5, 0.4, items), 1 if number % 2 else 12), 1.0)
        ties, kinds = draw_words(draws, items), draws.integers(0, 4, items)
        costs = np.round(draws.uniform(0.0, 1.0, items), 2)
        limit, budget = int(draws.integers(1, 3)), float(np.round(draws.uniform(0.01, 2.0), 2))
        attributes = read_attributes(items, kinds, costs)
        oracle = (TopK(length=length), PerCategory(length=length, limit=limit), Budget(length=length, budget=budget))
        chosen = compute_or_refuse(partial(oracle[number % 3].choose, scores, ties, attributes))
        case = {"oracle": ("top-k", "per-category", "budget")[number % 3], "length": length, "scores": scores.tolist()}
        case |= {"ties": ties.tolist(), "categories": kinds.tolist(), "costs": costs.tolist(), "limit": limit}
        cases.append(case | {"budget": budget, "list": chosen})
    return cases


def build_triggers(draws: Draws) -> list[Case]:
    """Build occasions and the cause of an upload, for each policy."""
    cases: list[Case] = []
    for number in range(100):
        alpha_c, p_scale = float(np.round(draws.uniform(0.05, 6.0), 3)), float(np.round(draws.uniform(0.0, 10.0), 2))
        floor = int(draws.integers(0, 12))
        constants = {"alpha_c": alpha_c, "p_scale": p_scale, "lambda_": float(draws.choice([0.5, 4.0]))}
        policy = get_policy(SERVED[number % len(SERVED)]).with_known_constants(constants)
        dimension = int(draws.integers(1, 9))
        download = draw_statistics(draws, dimension, int(draws.integers(0, 20)))
        buffer = draw_statistics(draws, dimension, int(draws.integers(0, 12)))
        occasion = Occasion(round=int(2 ** draws.uniform(0.0, 40.0)), draw=float(draws.random() ** 6),
                            arrivals=int(draws.integers(1, 70)), download=Ridge(download, policy.lambda_),
                            buffer=buffer)  # fmt: skip
        floored = replace(policy, trigger=AtLeast(trigger=policy.trigger, observations=floor))
        case = {"policy": policy.name, "constants": constants, "floor": floor, "round": occasion.round}
        case |= {"draw": occasion.draw, "arrivals": occasion.arrivals, "download": describe_statistics(download)}
        cases.append(case | {"buffer": describe_statistics(buffer), "cause": floored.trigger.cause(occasion)})
    return cases


def build_privacy(draws: Draws) -> list[Case]:
    """Build budgets and variances of private uploads, and uploads before and after noise; null if none is sent."""
    cases: list[Case] = []
    for number in range(60):
        epsilon, delta = float(np.round(10.0 ** draws.uniform(-2.0, 2.0), 3)), float(draws.choice([1e-9, 1e-6, 1e-3]))
        unit, uploads = Unit.USER if number % 2 else Unit.LIST, int(draws.integers(1, 20))
        mechanism = PrivateUploads(epsilon=epsilon, delta=delta, unit=unit, uploads=uploads)
        sums, sequence = Statistics.zero(int(draws.integers(1, 9))), int(draws.integers(1, 24))
        for _ in range(int(draws.integers(1, 130))):
            item = round_to_grid(draw_items(draws, 1, sums.dimension))
            reward = float(draws.choice([0.5, 1.0]))
            sums = sums.observe(item, examine(1, [0], reward=reward) if draws.random() < 0.6 else None)
        source = KeptNoise(draws)
        upload = Upload(agent=1, sequence=sequence, cause=Cause.FORCED, statistics=sums)
        released, budget = mechanism.release(upload, source), mechanism.measure_budget(sequence)
        case: Case = {"constants": asdict(mechanism), "sequence": sequence, "statistics": describe_statistics(sums)}
        case |= {"rho": mechanism.rho, "spent": budget.spent, "is_spent": budget.is_spent, "noise": source.noise}
        case["variances"] = [str(variance) for variance in source.variances]
        case["released"] = None if released is None else describe_statistics(released.statistics)
        cases.append(case)
    return cases


@dataclass
class KeptNoise:
    """Normal noise, rounded, that a case keeps with its variances."""

    draws: Draws
    noise: list[int] = field(default_factory=list)
    variances: list[int] = field(default_factory=list)

    def draw(self, agent: int, sequence: int, variances: list[int]) -> NDArray[np.float64]:  # noqa: ARG002
        """Draw whole numbers with mean 0 and these variances."""
        assert not self.noise, "noise is drawn once for an upload"
        drawn = np.rint(self.draws.normal(size=len(variances)) * np.sqrt(np.array(variances, np.float64)))
        self.variances, self.noise = variances, [int(value) for value in drawn]
        return drawn


def build_possible(draws: Draws) -> list[Case]:
    """Build statistics that data can have, and some that no data can have."""
    cases: list[Case] = []
    for number in range(50):
        honest = draw_statistics(draws, int(draws.integers(1, 9)), int(draws.integers(1, 8)))
        gram, moment = honest.gram.copy(), honest.moment.copy()
        count, clicks, rounds = honest.count, honest.clicks, honest.rounds
        match number % 8:
            case 1:
                clicks = rounds + 1
            case 2:
                gram[0, 0] += 3.0 * count
            case 3:
                moment[0] += 4.0 * (clicks + 1)
            case 4:
                gram[0, 0] += 2.0**-30
            case 5:
                gram -= 2.0 * np.eye(honest.dimension)
            case 6:
                rounds = 0
        statistics = Statistics(gram, moment, count, clicks, rounds)
        cases.append({"statistics": describe_statistics(statistics), "is_possible": can_exist(statistics)})
    return cases
