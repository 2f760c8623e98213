"""Peers in their own environment: ``peer_quality.py`` starts this file there and sends pickled calls to its functions.

It needs the packages of ``peer_requirements.txt`` and not fedcascade.
"""

import math
import pickle
import sys
from collections import defaultdict
from importlib import import_module
from typing import Any

METRICS = ("CTR", "NDCG", "MAP")


def rank_by_mab2rec(
    name: str,
    constants: dict[str, Any],
    train: dict[str, Any],
    users: list[Any],
    contexts: list[Any],
    k: int,
    seed: int,
) -> list[list[Any]]:
    """Fit a recommender of Mab2Rec to decisions, rewards and contexts; return k items for each user's context."""
    mab2rec = import_module("mab2rec")
    policies, neighbours = mab2rec.LearningPolicy, mab2rec.NeighborhoodPolicy
    if name == "ClustersTS":
        learning, neighbourhood = policies.ThompsonSampling(), neighbours.Clusters(**constants)
    else:
        learning, neighbourhood = getattr(policies, name)(**constants), None
    recommender = mab2rec.BanditRecommender(learning, neighbourhood, top_k=k, seed=seed)
    is_contextual = name not in ("Popularity", "Random")
    recommender.fit(train["items"], train["responses"], train["contexts"] if is_contextual else None)
    if is_contextual:
        return [list(row) for row in recommender.recommend(contexts)]
    return [list(recommender.recommend()) for _ in users]


def _sort_clicks(results: Any, user_column: str, click_column: str, k: int) -> Any:
    return results.sort_values(click_column, ascending=False).groupby(user_column).head(k)


def measure_lists(users: list[Any], lists: list[list[Any]], test: list[tuple[Any, Any, int]], k: int) -> list[float]:
    """Measure recommended lists by jurity, which Mab2Rec uses: the ``METRICS`` at k."""
    import_module("warnings").simplefilter("ignore", FutureWarning)
    pandas, jurity = import_module("pandas"), import_module("jurity.recommenders")
    columns = {"click_column": "score", "user_id_column": "user_id", "item_id_column": "item_id", "k": k}
    for module in [module for name, module in sys.modules.items() if name.startswith("jurity.")]:
        if hasattr(module, "get_sorted_clicks"):  # its cache takes tables of equal shape for the same one
            module.get_sorted_clicks = _sort_clicks  # type: ignore[attr-defined]
    actual = pandas.DataFrame(test, columns=["user_id", "item_id", "score"])
    rows = [
        (user, item, len(row) - place) for user, row in zip(users, lists, strict=True) for place, item in enumerate(row)
    ]
    predicted = pandas.DataFrame(rows, columns=["user_id", "item_id", "score"])
    kinds = jurity.BinaryRecoMetrics.CTR, jurity.RankingRecoMetrics.NDCG, jurity.RankingRecoMetrics.MAP
    scores = [kind(**columns).get_score(actual, predicted) for kind in kinds]
    return [math.nan if score is None else float(score) for score in scores]  # no recommended item was rated


def read_jester(path: str) -> tuple[Any, Any, Any]:
    """Read users, items and ratings of recommenderlab's Jester5k.rda, a sparse matrix by columns."""
    import_module("warnings").simplefilter("ignore", UserWarning)  # on classes of R that stay plain objects
    matrix = import_module("rdata").read_rda(path)["Jester5k"].data
    numpy = import_module("numpy")
    return matrix.i, numpy.repeat(numpy.arange(len(matrix.p) - 1), numpy.diff(matrix.p)), matrix.x


class VowpalWabbit:
    """``--cb_explore_adf``, of which a list takes the most probable actions, or ``--ccb_explore_adf`` with K slots."""

    def __init__(self, name: str, constants: dict[str, float], length: int, seed: int) -> None:
        flags = " ".join(f"--{key} {value}" for key, value in constants.items())
        self.is_ccb, self.length = name == "ccb_explore_adf", length
        options = f"--{name} {flags} -q ui -q uf --quiet --random_seed {seed + 1}"
        self.model = import_module("vowpalwabbit").Workspace(options)
        self.random = import_module("random").Random(seed)

    def rank(self, user: int, numbers: list[int], features: list[list[float]]) -> list[int]:
        """Draw a list: places of items, best first."""
        self.describe(user, numbers, features)
        if self.is_ccb:
            slots = self.model.predict([self.shared, *self.actions, *["ccb slot |"] * self.length])
            self.chances = [slot[0][1] for slot in slots]
            self.shown = [slot[0][0] for slot in slots]
            return self.shown
        chances = self.model.predict([self.shared, *self.actions])
        first = self.random.choices(range(len(chances)), chances)[0]
        others = sorted((place for place in range(len(chances)) if place != first), key=lambda place: -chances[place])
        self.shown = [first, *others[: self.length - 1]]
        self.chances = [chances[place] for place in self.shown]
        return self.shown

    def describe(self, user: int, numbers: list[int], features: list[list[float]]) -> None:
        """Write a user and the items on offer as lines of an example."""
        rows = [" ".join(f"x{k}:{value:.4f}" for k, value in enumerate(row)) for row in features]
        mark = "ccb " if self.is_ccb else ""
        self.shared = f"{mark}shared |u user{user}"
        action = "ccb action " if self.is_ccb else ""
        self.actions = [f"{action}|i item{number} |f {row}" for number, row in zip(numbers, rows, strict=True)]

    def learn(self, examined: int, click: int) -> None:
        """Learn from the examined places; ``click`` is the clicked one or -1."""
        costs = [-1.0 if place == click else 0.0 for place in range(examined)]
        if self.is_ccb:
            seen = [
                f"ccb slot {item}:{cost}:{chance} |"
                for item, cost, chance in zip(self.shown, costs, self.chances, strict=False)
            ]
            self.model.learn([self.shared, *self.actions, *seen, *["ccb slot |"] * (self.length - examined)])
            return
        for item, cost, chance in zip(self.shown, costs, self.chances, strict=False):
            lines = list(self.actions)
            lines[item] = f"0:{cost}:{max(chance, 0.01)} {lines[item]}"
            self.model.learn([self.shared, *lines])


class LoggedVowpalWabbit(VowpalWabbit):
    """A model that learns from logged lists, and then shows the best list without exploring."""

    def __init__(self, name: str, constants: dict[str, float], length: int) -> None:
        self.passes = int(constants["passes"])
        super().__init__(name, {"epsilon": 0.0, "learning_rate": constants["learning_rate"]}, length, 0)

    def fit(self, log: list[Any]) -> None:
        """Learn from lists: their user, items on offer, shown places, their chances, and the feedback."""
        for _ in range(self.passes):
            for user, numbers, features, shown, chances, (examined, click) in log:
                self.describe(user, numbers, features)
                self.shown, self.chances = shown, chances if self.is_ccb else [1.0 / len(numbers)] * len(shown)
                self.learn(examined, click)

    def choose(self, user: int, numbers: list[int], features: list[list[float]]) -> list[int]:
        """Return the best list; without slots, the best action among those left, one after another."""
        if self.is_ccb:
            return self.rank(user, numbers, features)
        self.describe(user, numbers, features)
        left, shown = list(range(len(numbers))), []
        for _ in range(self.length):
            chances = self.model.predict([self.shared, *[self.actions[place] for place in left]])
            shown.append(left.pop(max(range(len(left)), key=chances.__getitem__)))
        return shown


class LoggedRiver:
    """Bandits of river that learn from logged lists; items are ranked by the mean reward that they have learned."""

    def __init__(self, name: str, constants: dict[str, float], length: int) -> None:
        self.kind: Any = getattr(import_module("river.bandit"), name)
        self.is_own, self.length = bool(constants["own"]), length  # a bandit per user, or one for all of them
        self.weight = constants["prior_weight"]  # of the log's mean, which the mean of each arm starts from

    def fit(self, log: list[Any]) -> None:
        """Learn from the examined places of lists."""
        mean = sum(seen[1] >= 0 for *_, seen in log) / sum(seen[0] for *_, seen in log)
        start = import_module("river.stats").BayesianMean(prior=mean, prior_weight=self.weight)
        self.policies: dict[int, Any] = defaultdict(lambda: self.kind(epsilon=0.0, reward_obj=start.clone(), seed=0))
        for user, numbers, _, shown, _, (examined, click) in log:
            for position, place in enumerate(shown[:examined]):
                self.policies[user * self.is_own].update(numbers[place], 1.0 if position == click else 0.0)

    def choose(self, user: int, numbers: list[int], features: list[list[float]]) -> list[int]:  # noqa: ARG002
        """Return the places of the items with the highest means; items that it does not know come last."""
        order = {arm: place for place, arm in enumerate(self.policies[user * self.is_own].ranking)}
        ranked = sorted(range(len(numbers)), key=lambda place: order.get(numbers[place], len(order)))
        return ranked[: self.length]


class River:
    """A bandit of river for each user, with an arm per item: its contextual one is, by its own page, too slow."""

    def __init__(self, name: str, constants: dict[str, float], length: int, seed: int) -> None:
        kind: Any = getattr(import_module("river.bandit"), name)
        self.policies: dict[int, Any] = defaultdict(lambda: kind(**constants, seed=seed))
        self.policy: Any = None
        self.length = length

    def rank(self, user: int, numbers: list[int], features: list[list[float]]) -> list[int]:  # noqa: ARG002
        """Choose a list: places of items, best first."""
        self.policy, left, self.shown = self.policies[user], list(numbers), []
        for _ in range(self.length):
            chosen = self.policy.pull(left)
            left.remove(chosen)
            self.shown.append(chosen)
        return [numbers.index(item) for item in self.shown]

    def learn(self, examined: int, click: int) -> None:
        """Learn from the examined places; ``click`` is the clicked one or -1."""
        for place in range(examined):
            self.policy.update(self.shown[place], 1.0 if place == click else 0.0)


player: Any = None


def start(name: str, constants: dict[str, float], length: int, seed: int) -> None:
    """Start a player: an option of Vowpal Wabbit, or a class of river."""
    global player
    player = (VowpalWabbit if name.endswith("_adf") else River)(name, constants, length, seed)


def play(feedback: tuple[int, int] | None, user: int, numbers: list[int], features: list[list[float]]) -> list[int]:
    """Learn from the feedback on the list before, and choose the next one."""
    if feedback is not None:
        player.learn(*feedback)
    return [int(place) for place in player.rank(user, numbers, features)]


def play_log(name: str, constants: dict[str, float], length: int, log: list[Any], offers: list[Any]) -> list[list[int]]:
    """Learn from logged lists, and return a list for each of the ``offers``: a user, items and their features."""
    kind = LoggedVowpalWabbit if name.endswith("_adf") else LoggedRiver
    model: Any = kind(name, constants, length)
    model.fit(log)
    return [[int(place) for place in model.choose(*offer)] for offer in offers]


def main() -> None:
    """Answer calls until the pipe is closed."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # libraries print
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(globals()[name](*arguments), answers)
        answers.flush()


if __name__ == "__main__":
    main()
