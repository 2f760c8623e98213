"""Quality against peers: ``python benchmarks/peer_quality.py NAME``. Peers run in .cache/peers, which it makes.

mab2rec --folder DATA: the folder ``data`` of Mab2Rec's repository, with its split of MovieLens-100K and its metrics.
online --ratings FILE: Vowpal Wabbit and river online, in an environment made from ratings, at three click rates.
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

from fedcascade import Ranker, Ratings, TopK, simulate
from fedcascade.data.readers import read_ratings
from fedcascade.environments.matrices import Triplets
from fedcascade.federation.policies import get_policy
from fedcascade.intervals import estimate_mean, format_mean
from fedcascade.learning.cascade import compute_expected_reward, follow_cascade

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
    parser.add_argument("name", choices=("mab2rec", "online", "jester"))
    parser.add_argument("--folder", type=Path, help="the data of Mab2Rec, or of Jester")
    parser.add_argument("--ratings", type=Path, help="a file of ratings")
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # on users of a file that have no ratings of the chosen items
    needed = (
        given.folder
        if given.name == "mab2rec"
        else given.ratings
        if given.name == "online"
        else given.folder or given.ratings
    )
    if needed is None:
        parser.error("this comparison needs data: give --folder or --ratings, as the first lines of --help say")
    if given.name == "mab2rec":
        compare_with_mab2rec(given.folder)
    elif given.name == "online":
        compare_online(read_ratings(given.ratings))
    else:
        compare_ratings(read_jester(given.folder) if given.folder else read_ratings(given.ratings))


if __name__ == "__main__":
    main()
