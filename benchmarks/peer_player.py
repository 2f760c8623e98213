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
        rows = [" ".join(f"x{k}:{value:.4f}" for k, value in enumerate(row)) for row in features]
        mark = "ccb " if self.is_ccb else ""
        self.shared = f"{mark}shared |u user{user}"
        action = "ccb action " if self.is_ccb else ""
        self.actions = [f"{action}|i item{number} |f {row}" for number, row in zip(numbers, rows, strict=True)]
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
