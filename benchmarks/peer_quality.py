"""Quality against peers: ``python benchmarks/peer_quality.py NAME``. Peers run in .cache/peers, which it makes.

mab2rec --folder DATA: the folder ``data`` of Mab2Rec's repository, with its split of MovieLens-100K and its metrics.
online --ratings FILE: Vowpal Wabbit and river online, in an environment made from ratings, at three click rates.
logged --ratings FILE: all of them learn from the same log of random lists, and then show lists without exploring.
jester --folder DATA, or --ratings FILE: our policies and popularity on Jester, or on another file of ratings.
    DATA holds Jester5k.rda, or jester-data-*.csv.

Each contestant gets as many trials of its constants as the others, on seeds or users that the report does not use.
"""

import argparse
import csv
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcascade import Ranker, Ratings, TopK, Trace, simulate
from fedcascade.data.readers import read_ratings
from fedcascade.environments.matrices import Triplets
from fedcascade.evaluation.fit import freeze_policy
from fedcascade.evaluation.simulated import LOG_SEEDS, iterate_simulated_log
from fedcascade.federation.policies import get_policy
from fedcascade.intervals import estimate_mean, format_mean
from fedcascade.learning.cascade import compute_expected_reward, follow_cascade
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.log_sums import LogSums
from fedcascade.numerics.linear import compute_ucb_scores

ROOT = Path(__file__).parent.parent
PEERS, PLAYER = ROOT / ".cache" / "peers", Path(__file__).parent / "peer_player.py"
REQUIREMENTS = Path(__file__).parent / "peer_requirements.txt"
K, GROUPS, METRICS = 5, 4, ("CTR@5", "NDCG@5", "MAP@5")
TUNING_SEED, REPORT_SEEDS = 100, range(200, 205)
UNRATED = 99.0  # in a file of Jester


class Peer:
    """A process in the peers' environment that answers calls of the functions of ``peer_player.py``."""

    def __init__(self) -> None:
        python = PEERS / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
            subprocess.run([python, "-m", "pip", "-qq", "install", "-r", REQUIREMENTS], check=True)
        self.process = subprocess.Popen([python, PLAYER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the peer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((function, arguments), self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def read_rows(path: Path) -> list[list[str]]:
    """Read a table of Mab2Rec without its header; its cells are padded."""
    with path.open(encoding="utf-8") as file:
        return [[cell.strip() for cell in row] for row in csv.reader(file)][1:]


Interactions = list[tuple[int, int, int]]  # user, item and response


def read_interactions(path: Path) -> Interactions:
    """Read users, items and responses."""
    return [(int(user), int(item), int(response)) for user, item, response in read_rows(path)]


def read_features(path: Path) -> dict[int, list[float]]:
    """Read the features of users or items by id."""
    return {int(row[0]): [float(cell) for cell in row[1:]] for row in read_rows(path)}


def split_validation(train: Interactions, seed: int) -> tuple[Interactions, Interactions]:
    """Hold out users as the test set does: 40% of the held-out ones are new, others keep half of their rows."""
    random = np.random.default_rng(seed)
    users = random.permutation(sorted({user for user, _, _ in train}))[:110].tolist()
    new, known = set(users[:44]), set(users[44:])
    is_held = [user in new or (user in known and random.random() < 0.5) for user, _, _ in train]
    parts: tuple[Interactions, Interactions] = [], []
    for row, held in zip(train, is_held, strict=True):
        parts[held].append(row)
    return parts


Contestant = Callable[[Interactions, list[int]], list[list[int]]]  # learns, and ranks K items for each user


def rank_ours(
    policy: str, dimension: int, genres: Mapping[int, list[float]], train: Interactions, users: list[int]
) -> list[list[int]]:
    """Rank by a ``Ranker``; features are genres, singular vectors of the responses, their mean, and 1."""
    items = sorted(genres)
    place = {item: number for number, item in enumerate(items)}
    rows = {user: number for number, user in enumerate(sorted({user for user, _, _ in train}))}
    liked, seen = np.zeros((len(rows), len(items))), np.zeros(len(items))
    for user, item, response in train:
        liked[rows[user], place[item]] = response
        seen[place[item]] += 1
    rate = (liked.sum(axis=0) + 1.0) / (seen + 4.0)
    columns = [2.0 * rate, np.ones(len(items))]
    if dimension:
        _, values, right = np.linalg.svd(liked, full_matrices=False)
        columns += list(3.0 * (np.sqrt(values[:dimension])[:, None] * right[:dimension]) / np.sqrt(values[0]))
    else:
        columns += list(np.array([genres[item] for item in items]).T)
    features = np.stack(columns, axis=1)
    features /= np.linalg.norm(features, axis=1).max()
    table = {"item": items, **{f"x{k}": features[:, k] for k in range(features.shape[1])}}
    log = {
        "user": [user for user, _, _ in train],
        "items": [[item] for _, item, _ in train],
        "clicks": [[0] if response else [] for _, _, response in train],
    }
    ranker = Ranker(policy, explore=False, list_length=K).fit(log, table)
    return [[int(item) for item in row] for row in ranker.rank_many(users, k=K)]


def rank_peers(
    peer: Peer, name: str, constants: dict[str, Any], contexts: Mapping[int, list[float]], seed: int,
    train: Interactions, users: list[int],
) -> list[list[int]]:  # fmt: skip
    """Rank by Mab2Rec; contexts are features of users."""
    learned = {"items": [item for _, item, _ in train], "responses": [response for _, _, response in train],
               "contexts": [contexts[user] for user, _, _ in train]}  # fmt: skip
    lists: list[list[int]] = peer.call(
        "rank_by_mab2rec", name, constants, learned, users, [contexts[user] for user in users], K, seed
    )
    return lists


PEER_TRIALS: dict[str, list[dict[str, Any]]] = {
    "Popularity": [{}],
    "LinGreedy": [{"epsilon": e, "l2_lambda": r} for e, r in ((0.0, 1.0), (0.1, 1.0), (0.0, 10.0), (0.0, 100.0))],
    "LinUCB": [{"alpha": a, "l2_lambda": r} for a, r in ((0.1, 1.0), (1.0, 1.0), (0.1, 10.0), (0.1, 100.0))],
    "LinTS": [{"alpha": a, "l2_lambda": r} for a, r in ((0.01, 1.0), (0.1, 1.0), (0.01, 10.0), (0.01, 100.0))],
    "ClustersTS": [{"n_clusters": n} for n in (2, 5, 10, 20)],
}
OUR_TRIALS = (0, 4, 8, 16)  # singular vectors; 0 for genres


def measure(
    peer: Peer, contestant: Contestant, train: Interactions, test: Interactions, groups: int
) -> list[list[float]]:
    """Return the metrics of disjoint groups of test users."""
    users = sorted({user for user, _, _ in test})
    lists = contestant(train, users)
    found = []
    for group in range(groups):
        chosen = set(users[group::groups])
        pairs = [(user, row) for user, row in zip(users, lists, strict=True) if user in chosen]
        rows = [row for row in test if row[0] in chosen]
        found.append(peer.call("measure_lists", [user for user, _ in pairs], [row for _, row in pairs], rows, K))
    return found


Trial = tuple[str, Callable[[int], Contestant]]  # the constants in words, and a contestant for a seed


def list_trials(
    peer: Peer, contexts: Mapping[int, list[float]], genres: Mapping[int, list[float]]
) -> dict[str, list[Trial]]:
    """Return the trials of each contestant."""

    def ours(policy: str, dimension: int) -> Trial:
        words = f"{dimension} vectors" if dimension else "genres"
        return words, lambda _: partial(rank_ours, policy, dimension, genres)

    def theirs(name: str, constants: dict[str, Any]) -> Trial:
        words = ", ".join(f"{key} {value:g}" for key, value in constants.items())
        return words, lambda seed: partial(rank_peers, peer, name, constants, contexts, seed)

    trials = {f"fedcascade {name}": [ours(name, d) for d in OUR_TRIALS] for name in ("population", "fedind", "oful")}
    peers = {f"mab2rec {name}": [theirs(name, each) for each in given] for name, given in PEER_TRIALS.items()}
    return trials | peers


def compare_with_mab2rec(folder: Path) -> None:
    """Print a table of Mab2Rec's metrics on its own split."""
    train, test = (read_interactions(folder / f"data_{part}.csv") for part in ("train", "test"))
    contexts, genres = (read_features(folder / f"features_{kind}.csv") for kind in ("user", "item"))
    fitted, validation = split_validation(train, TUNING_SEED)
    peer = Peer()
    print(f"| policy | chosen | {' | '.join(METRICS)} |\n|---|---|---:|---:|---:|")
    for label, trials in list_trials(peer, contexts, genres).items():
        scores = [measure(peer, make(TUNING_SEED), fitted, validation, 1)[0][1] for _, make in trials]
        words, make = trials[int(np.argmax(scores))]
        seeds = REPORT_SEEDS[:1] if label.startswith("fedcascade") else REPORT_SEEDS  # ours draws nothing
        runs = [measure(peer, make(seed), train, test, GROUPS) for seed in seeds]
        cells = [format_interval(column) for column in np.nanmean(np.array(runs), axis=0).T.tolist()]
        print(f"| {label} | {words} | {' | '.join(cells)} |", flush=True)
    peer.close()


def format_interval(values: Sequence[float]) -> str:
    """Format a mean and half of its 95% interval."""
    mean, half, _ = estimate_mean([float(value) for value in values if not np.isnan(value)])
    return f"{mean:.3f} ± {half:.3f}"


ONLINE = {"users": 10, "clusters": 5, "dimension": 8, "items": 20, "top_items": 100}
LIST_LENGTH, SCALES, TRIAL_ROUNDS, ROUNDS = 3, (1.0, 0.3, 0.1), 300, 1_000
ONLINE_TRIALS: dict[str, list[dict[str, float]]] = {
    "fedcascade population": [{"beta": beta} for beta in (0.5, 1.0, 1.5, 3.0)],
    "fedcascade fedind": [{"beta": beta} for beta in (0.1, 0.3, 0.7, 2.0)],
    "fedcascade popularity": [{"beta": beta} for beta in (0.1, 0.3, 0.7, 2.0)],
    "fedcascade known-clusters": [{"beta": beta} for beta in (0.1, 0.3, 0.7, 2.0)],
    "vw cb_explore_adf": [{"epsilon": e, "learning_rate": r} for e in (0.02, 0.1) for r in (0.5, 2.0)],
    "vw ccb_explore_adf": [{"epsilon": e, "learning_rate": r} for e in (0.02, 0.1) for r in (0.5, 2.0)],
    "river UCB": [{"delta": delta} for delta in (0.03, 0.1, 0.3, 1.0)],
    "river EpsilonGreedy": [
        {"epsilon": e, "decay": d} for e, d in ((0.1, 0.0), (0.1, 0.001), (0.5, 0.01), (0.02, 0.0))
    ],
}


def play_peer(
    peer: Peer, name: str, constants: dict[str, float], environment: Ratings, rounds: int, seed: int
) -> tuple[float, float]:
    """Play the rounds of ``simulate`` with a peer; return clicks and regret."""
    peer.call("start", name, constants, LIST_LENGTH, seed)
    feedback, clicks, regret, oracle = None, 0, 0.0, TopK(length=LIST_LENGTH)
    for t in range(1, rounds + 1):
        user, features = environment.arrival(t), environment.items(t)
        shown = np.array(peer.call("play", feedback, user, environment.item_numbers(t).tolist(), features.tolist()))
        weights = environment.weights(t, user, features)
        attracted = environment.attracted(t, shown, weights[shown])
        click = int(attracted.argmax()) if attracted.any() else None
        feedback = follow_cascade(len(shown), click).examined, -1 if click is None else click
        best = weights[oracle.best(weights, environment.attributes(t, len(features)))]
        clicks += click is not None
        regret += compute_expected_reward(best) - compute_expected_reward(weights[shown])
    return float(clicks), regret


def play(
    peer: Peer, label: str, constants: dict[str, float], environment: Ratings, rounds: int, seed: int
) -> tuple[float, float]:
    """Play a contestant; return clicks and regret."""
    family, _, name = label.partition(" ")
    if family != "fedcascade":
        return play_peer(peer, name, constants, environment, rounds, seed)
    policy = get_policy(name).with_constants(**constants)
    trace = simulate(environment, policy, rounds=rounds, oracle=TopK(length=LIST_LENGTH), checkpoints=1)
    return float(trace.clicked), trace.regret


def compare_online(
    ratings: Triplets, scales: Sequence[float] = SCALES, sizes: tuple[int, int] = (TRIAL_ROUNDS, ROUNDS)
) -> None:
    """Print a table of clicks and regret online, for each click rate."""
    peer = Peer()
    trial_rounds, rounds = sizes
    print("| scale | policy | chosen | lists clicked | regret |\n|---:|---|---|---:|---:|")
    for scale in scales:

        def build(seed: int, scale: float = scale) -> Ratings:
            return Ratings(ratings, seed=seed, scale=scale, **ONLINE)  # type: ignore[arg-type]

        for label, trials in ONLINE_TRIALS.items():
            tried = [play(peer, label, trial, build(TUNING_SEED), trial_rounds, TUNING_SEED)[0] for trial in trials]
            best = trials[int(np.argmax(tried))]
            runs = [play(peer, label, best, build(seed), rounds, seed) for seed in REPORT_SEEDS]
            clicks, regret = (estimate_mean(list(column)) for column in zip(*runs, strict=True))
            chosen = ", ".join(f"{key} {value:g}" for key, value in best.items())
            share = format_interval([clicked / rounds for clicked, _ in runs])
            print(f"| {scale:g} | {label} | {chosen} | {share} | {format_mean(regret)} |", flush=True)
            assert clicks.runs == len(REPORT_SEEDS)
    peer.close()


LOGGED_LISTS, NEW_LISTS, LOGGED_SEEDS, LOGGED_SCALES = 2_000, 1_000, range(200, 208), (1.0, 0.3)
LOGGED_TRIALS: dict[str, list[dict[str, float]]] = {
    **{f"fedcascade {name}": [{"beta": beta} for beta in (0.0, 0.1, 0.3, 1.0)]
       for name in ("population", "fedind", "oful")},
    "popularity of the log": [{"prior": prior} for prior in (1.0, 4.0, 16.0, 64.0)],
    **{f"vw {name}": [{"learning_rate": r, "passes": n} for r in (0.5, 2.0) for n in (1, 4)]
       for name in ("cb_explore_adf", "ccb_explore_adf")},
    "river EpsilonGreedy": [{"own": own, "prior_weight": weight} for own in (0, 1) for weight in (1, 8)],
}  # fmt: skip
Offer = tuple[int, list[int], list[list[float]]]  # a user, the numbers of the items on offer, their features


def read_offer(environment: Ratings, t: int) -> Offer:
    """Return the user and the items of a round."""
    return environment.arrival(t), environment.item_numbers(t).tolist(), environment.items(t).tolist()


def log_lists(environment: Ratings) -> tuple[Ratings, Trace]:
    """Log uniformly random lists, in rounds that are not measured."""
    logged = environment.with_other_rounds(int(environment.seed) + LOG_SEEDS)
    explorer = EpsilonMixed(length=LIST_LENGTH, epsilon=1.0)
    return logged, simulate(logged, get_policy("fedind"), rounds=LOGGED_LISTS, oracle=explorer, keep_lists=True)


def rank_offers(peer: Peer, label: str, constants: dict[str, float], environment: Ratings) -> list[list[int]]:
    """Learn from the log of an environment, and return a list for each of its rounds."""
    logged, trace = log_lists(environment)
    (log,) = iterate_simulated_log(logged, trace, rounds=LOGGED_LISTS)
    offers = [read_offer(environment, t) for t in range(1, NEW_LISTS + 1)]
    family, _, name = label.partition(" ")
    if family == "fedcascade":
        sums = LogSums(environment.dimension)
        sums.add(log, None)
        policy = freeze_policy(get_policy(name).with_beta(constants["beta"]), sums, TopK(length=LIST_LENGTH))
        scores = [compute_ucb_scores(policy.theta[user], policy.root[user], float(policy.beta[user]),
                  np.ascontiguousarray(np.array(features, np.float32).T)) for user, _, features in offers]  # fmt: skip
        return [np.argsort(-each, kind="stable")[:LIST_LENGTH].tolist() for each in scores]
    offered = [read_offer(logged, t) for t in range(1, LOGGED_LISTS + 1)]
    clicks = np.where(log.clicks.any(axis=1), log.clicks.argmax(axis=1), -1)
    feedback = list(zip(log.count_looked().tolist(), clicks.tolist(), strict=True))
    if family == "popularity":
        clicked, seen = np.zeros((2, environment.catalogue.shape[1]))
        for (_, numbers, _), shown, (examined, click) in zip(offered, log.items, feedback, strict=True):
            for position in range(examined):
                seen[numbers[shown[position]]] += 1.0
                clicked[numbers[shown[position]]] += position == click
        rate = (clicked + clicked.sum() / seen.sum() * constants["prior"]) / (seen + constants["prior"])
        return [np.argsort(-rate[numbers], kind="stable")[:LIST_LENGTH].tolist() for _, numbers, _ in offers]
    assert log.propensities is not None
    lists = zip(offered, log.items.tolist(), log.propensities.tolist(), feedback, strict=True)
    rows = [(*offer, shown, chances, seen) for offer, shown, chances, seen in lists]
    found: list[list[int]] = peer.call("play_log", name, constants, LIST_LENGTH, rows, offers)
    return found


def measure_lists(environment: Ratings, lists: list[list[int]]) -> tuple[float, float]:
    """Return the expected share of lists with a click, and how much more the best lists would have."""
    expected, missed = [], []
    for t, shown in enumerate(lists, 1):
        features = environment.items(t)
        weights = environment.weights(t, environment.arrival(t), features)
        expected.append(compute_expected_reward(weights[shown]))
        missed.append(compute_expected_reward(np.sort(weights)[::-1][:LIST_LENGTH]) - expected[-1])
    return float(np.mean(expected)), float(np.mean(missed))


def compare_logged(ratings: Triplets, scales: Sequence[float] = LOGGED_SCALES) -> None:
    """Print a table of what contestants reach that learned from the same log, for each click rate."""
    peer = Peer()
    print("| scale | policy | chosen | lists clicked | below the best lists |\n|---:|---|---|---:|---:|")
    for scale in scales:

        def play(label: str, constants: dict[str, float], seed: int, scale: float = scale) -> tuple[float, float]:
            environment = Ratings(ratings, seed=seed, scale=scale, **ONLINE)  # type: ignore[arg-type]
            return measure_lists(environment, rank_offers(peer, label, constants, environment))

        for label, trials in LOGGED_TRIALS.items():
            best = trials[int(np.argmax([play(label, trial, TUNING_SEED)[0] for trial in trials]))]
            runs = [play(label, best, seed) for seed in LOGGED_SEEDS]
            cells = " | ".join(format_interval(column) for column in zip(*runs, strict=True))
            chosen = ", ".join(f"{key} {value:g}" for key, value in best.items())
            print(f"| {scale:g} | {label} | {chosen} | {cells} |", flush=True)
        logs = [log_lists(Ratings(ratings, seed=seed, scale=scale, **ONLINE))[1] for seed in LOGGED_SEEDS]  # type: ignore[arg-type]
        share = format_interval([trace.clicked / trace.rounds for trace in logs])
        print(f"| {scale:g} | the random lists of the log |  | {share} |  |", flush=True)
    peer.close()


def read_jester(folder: Path) -> Triplets:
    """Read Jester5k.rda of R's recommenderlab, or else files jester-data-*.csv.

    A row of those is a user: the number of ratings, and 100 ratings in -10..10, 99 for none.
    """
    if (sample := folder / "Jester5k.rda").is_file():
        peer = Peer()
        found = Triplets(*map(np.asarray, peer.call("read_jester", str(sample))))
        peer.close()
        return found
    paths = sorted(folder.glob("jester-data-*.csv"))
    if not paths:
        raise ValueError(f"{folder} must hold Jester5k.rda of R's recommenderlab, or jester-data-1.csv, ...")
    table = np.concatenate([np.loadtxt(path, delimiter=",", ndmin=2)[:, 1:] for path in paths])
    users, items = np.nonzero(table != UNRATED)
    return Triplets(users, items, table[users, items])


def compare_ratings(ratings: Triplets, rounds: int = 8_000) -> None:
    """Print a table of our policies and popularity, for users in clusters and users that all differ."""
    print("| clusters | policy | lists clicked | regret | items shown | Gini |\n|---:|---|---:|---:|---:|---:|")
    for clusters in (10, 40):
        for name in ("population", "fedind", "popularity", "known-clusters"):
            runs = [simulate(Ratings(ratings, users=40, clusters=clusters, items=50, seed=seed), get_policy(name),
                             rounds=rounds, checkpoints=1) for seed in REPORT_SEEDS]  # fmt: skip
            share = format_interval([run.clicked / rounds for run in runs])
            shown = [run.exposure for run in runs if run.exposure is not None]
            exposure = (
                f"{np.mean([each.coverage for each in shown]):.0%} | {np.mean([each.gini for each in shown]):.2f}"
            )
            regret = format_mean(estimate_mean([run.regret for run in runs]))
            print(f"| {clusters} | {name} | {share} | {regret} | {exposure} |", flush=True)


def main() -> None:
    """Run one comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("mab2rec", "online", "logged", "jester"))
    parser.add_argument("--folder", type=Path, help="the data of Mab2Rec, or of Jester")
    parser.add_argument("--ratings", type=Path, help="a file of ratings")
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # on users of a file that have no ratings of the chosen items
    needed = (
        given.folder
        if given.name == "mab2rec"
        else given.ratings
        if given.name in ("online", "logged")
        else given.folder or given.ratings
    )
    if needed is None:
        parser.error("this comparison needs data: give --folder or --ratings, as the first lines of --help say")
    if given.name == "mab2rec":
        compare_with_mab2rec(given.folder)
    elif given.name == "online":
        compare_online(read_ratings(given.ratings))
    elif given.name == "logged":
        compare_logged(read_ratings(given.ratings))
    else:
        compare_ratings(read_jester(given.folder) if given.folder else read_ratings(given.ratings))


if __name__ == "__main__":
    main()
