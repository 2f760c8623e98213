"""The estimator: what it learns and how it ranks are what fit and evaluate say, from whatever table a log comes."""

import pickle
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from fedcascade import POLICIES, Ranker
from fedcascade.cli import main
from fedcascade.data.logs import read_log
from fedcascade.data.logs.items import read_items
from fedcascade.data.logs.reader import slice_rows
from fedcascade.evaluation.evaluate import EvaluationOptions, evaluate, evaluate_frozen, fit_folds
from fedcascade.evaluation.fit import fit_log, freeze_policy
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.oracles import TopK
from fedcascade.saved import load_warm

D, ITEMS, USERS = 3, 12, 6
RANDOM = np.random.default_rng(5)
FEATURES = RANDOM.normal(size=(ITEMS, D))
FEATURES /= 1.01 * np.linalg.norm(FEATURES, axis=1, keepdims=True)
NAMES = [f"i{item}" for item in range(ITEMS)]


def make_rows(count: int) -> list[dict[str, Any]]:
    """Random lists of three items; users of two kinds click the items that point their way."""
    random, rows = np.random.default_rng(7), []
    for row in range(count):
        user = row % USERS
        shown = random.permutation(ITEMS)[:3]
        chances = np.clip(FEATURES[shown, user % 2], 0.02, 1.0)
        hits = np.flatnonzero(random.random(3) < chances)
        propensities = [1 / ITEMS, 1 / (ITEMS - 1), 1 / (ITEMS - 2)]
        rows.append({"user": f"u{user}", "items": [NAMES[item] for item in shown],
                     "clicks": hits[:1].tolist(), "propensities": propensities})  # fmt: skip
    return rows


ROWS = make_rows(240)
LOG = pl.DataFrame(ROWS)
TABLE = pl.DataFrame({"item": NAMES, **{f"x{k}": FEATURES[:, k] for k in range(D)}})


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    log, items = tmp_path / "log.parquet", tmp_path / "items.csv"
    LOG.write_parquet(log)
    TABLE.write_csv(items)
    return log, items


def describe(ranker: Ranker) -> tuple[Any, ...]:
    """Everything that a ranker knows, to the bit."""
    frozen, sums = ranker.freeze(), ranker.sums_
    arrays = frozen.theta, frozen.root, frozen.beta, sums.gram[: sums.users], sums.counts[: sums.users]
    return (tuple(ranker.users_), ranker.lists_, *(array.tobytes() for array in arrays))


@pytest.mark.parametrize("policy", ["population", "fedc3ucb-h", "fedind", "oful"])
def test_it_knows_and_ranks_what_fit_and_evaluate_say(policy: str, files: tuple[Path, Path], tmp_path: Path) -> None:
    path, table = files
    items = read_items(table)
    fitted = fit_log(read_log(path, items=items), policy, tmp_path / "warm.npz")
    ranker = Ranker(policy, list_length=3).fit(LOG, TABLE)
    assert tuple(ranker.users_) == fitted.users
    assert (ranker.sums_.gram[:USERS] == fitted.sums.gram[:USERS]).all()
    loaded = Ranker.load(tmp_path / "warm.npz").set_params(list_length=3)
    assert describe(loaded) == describe(ranker)

    half = len(ROWS) // 2
    ranker.fit(LOG[:half], TABLE)
    log = read_log(path, items=items)
    found = evaluate(log, [POLICIES[policy]], TopK(length=3))
    frozen = [ranker.freeze()]
    model = fit_folds(slice_rows(log.batches(), half), D, items.features, EvaluationOptions())
    again = evaluate_frozen(slice_rows(log.batches(), half), frozen, model, items.features)
    assert str(again) == str(found), "as texts, because some ends of intervals are NaN"
    expected = freeze_policy(POLICIES[policy], ranker.sums_, TopK(length=3))
    for user in range(USERS):
        scores = ranker.scores(f"u{user}")
        assert (ranker.freeze().theta[user] == expected.theta[user]).all()
        shown = [NAMES.index(name) for name in ranker.rank(f"u{user}")]
        assert len(set(shown)) == 3
        assert scores[shown].tolist() == sorted(scores, reverse=True)[:3]


def test_parts_of_a_log_teach_the_same_as_the_whole(files: tuple[Path, Path]) -> None:
    whole = Ranker().fit(*map(str, files))
    parts = Ranker()
    for first in (0, 80, 160):
        parts.partial_fit(LOG[first : first + 80], TABLE if first == 0 else None)
    assert describe(parts) == describe(whole)


TABLES: dict[str, Any] = {
    "polars": (LOG, TABLE),
    "a lazy one": (LOG.lazy(), TABLE.lazy()),
    "pandas": (pd.DataFrame(ROWS), pd.DataFrame(TABLE.to_dict(as_series=False))),
    "columns": (LOG.to_dict(as_series=False), TABLE.to_dict(as_series=False)),
    "NumPy": (
        {
            "user": np.array(LOG["user"].to_list()),
            "items": np.array(LOG["items"].to_list()),
            "clicks": np.array([clicks[0] if clicks else -1 for clicks in LOG["clicks"].to_list()]),
        },
        {name: np.array(TABLE[name].to_list()) for name in TABLE.columns},
    ),
    "pandas with gaps": (
        pd.DataFrame(
            {
                "user": LOG["user"].to_list(),
                "slate": [np.array(items) for items in LOG["items"].to_list()],
                "click": [float(clicks[0]) if clicks else np.nan for clicks in LOG["clicks"].to_list()],
            }
        ),
        pd.DataFrame(TABLE.to_dict(as_series=False)),
    ),
    "pandas that knows integers": (
        pd.DataFrame(
            {
                "user": LOG["user"].to_list(),
                "items": LOG["items"].to_list(),
                "clicks": pd.array([clicks[0] if clicks else None for clicks in LOG["clicks"].to_list()], "Int64"),
            }
        ),
        TABLE,
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_teaches_the_same(kind: str) -> None:
    assert describe(Ranker("fedind").fit(*TABLES[kind])) == describe(Ranker("fedind").fit(LOG, TABLE))


def test_ids_keep_their_types(tmp_path: Path) -> None:
    log = ClickLog(users=np.array([7, 8, 7]), items=np.array([[3, 0], [1, 2], [2, -1]]),
                   clicks=np.array([[True, False], [False, False], [True, False]]))  # fmt: skip
    ranker = Ranker("fedind").fit(log, FEATURES)
    assert ranker.users_ == (7, 8)
    assert ranker.rank(7, [0, 3]) in ([0, 3], [3, 0])
    assert ranker.rank(np.int64(7)) == ranker.rank(7) == ranker.rank("7")
    assert all(type(item) is int for item in ranker.rank(7))
    ranker.save(tmp_path / "ranker.npz")
    loaded = Ranker.load(tmp_path / "ranker.npz")
    assert (loaded.users_, loaded.rank(8)) == (ranker.users_, ranker.rank(8))
    ranker.partial_fit({"user": ["ann"], "items": [[0]], "clicks": [[]]})
    assert [str(user) for user in ranker.users_] == ["7", "8", "ann"]
    assert all(isinstance(user, str) for user in ranker.users_)
    inline = replace(log, features=FEATURES[np.maximum(log.items, 0)].astype(np.float32))
    assert (Ranker("fedind").fit(inline).sums_.counts[:2] == loaded.sums_.counts[:2]).all()
    named = Ranker("fedind").fit(LOG, TABLE)
    assert all(type(item) is str for item in named.rank("u0"))


@pytest.mark.parametrize("user", [["a", "b"], None, 1.0, float("nan"), True, b"u0", ("u0",), np.array(["u0"])])
def test_what_is_no_user_id_is_refused(user: Any) -> None:
    ranker = Ranker("fedind").fit(LOG, TABLE)
    for call in (ranker.rank, ranker.scores, lambda user: ranker.rank_many(["u0", user])):
        with pytest.raises(ValueError, match="a user id must be a text or an integer, got the"):
            call(user)


def test_many_users_are_ranked_at_once() -> None:
    ranker = Ranker().fit(LOG, TABLE)
    users = ["u0", "u3", "stranger", "u0"]
    assert ranker.rank_many(users, k=3) == [ranker.rank(user, k=3) for user in users]
    rows = ranker.rank_many(users, FEATURES[:5])
    assert [row.tolist() for row in rows] == [ranker.rank(user, FEATURES[:5]).tolist() for user in users]
    assert ranker.rank_many([]) == []
    with pytest.raises(ValueError, match="users must be a sequence of user ids, got the text 'u0'"):
        ranker.rank_many("u0")


def test_the_score_is_the_share_of_pairs_in_order() -> None:
    ranker = Ranker(explore=False).fit(LOG[:120], TABLE)
    right, pairs = 0.0, 0
    for row in ROWS[120:]:
        if row["clicks"]:
            scores = ranker.scores(row["user"], row["items"])
            click = row["clicks"][0]
            right += (scores[click] > scores[:click]).sum()
            pairs += click
    assert ranker.score(LOG[120:]) == right / pairs > 0.7
    assert ranker.score(LOG[120:].with_columns(clicks=pl.lit([], pl.List(pl.Int64)))) == 0.5


def test_unknown_users_are_served_with_what_the_population_knows() -> None:
    for policy in ("population", "fedind", "oful"):
        ranker = Ranker(policy, explore=False).fit(LOG, TABLE)
        everybody = ranker.sums_.total()
        scores = ranker.scores("nobody")
        clicked = everybody.moment
        assert np.ptp(scores) > 0, "items are not all alike to somebody new"
        assert (ranker.freeze().theta[-1] @ clicked) > 0
    untold = freeze_policy(POLICIES["fedind"], ranker.sums_, TopK())
    assert (untold.theta[-1] == 0).all()


def test_unseen_items_are_ranked_by_their_features() -> None:
    ranker = Ranker(explore=False).fit(LOG, TABLE)
    best = np.eye(D)[[0, 1, 2]] * 0.99
    assert ranker.rank("u0", best, k=1).tolist() == [0]
    assert ranker.rank("u1", best, k=1).tolist() == [1]
    named = pd.DataFrame({"item": ["new", "other"], "a": [0.9, -0.9], "b": 0.0, "c": 0.0})
    assert ranker.rank("u0", named) == ["new", "other"]
    ranker.partial_fit(LOG[:5], named)
    assert ranker.rank("u0", ["other", "new"], k=1) == ["new"]
    assert len(ranker.rank("u0", k=100)) == ITEMS + 2


def test_it_is_an_estimator() -> None:
    ranker = Ranker("fedind", constants={"beta": 0.3}, list_length=2)
    params = ranker.get_params()
    clone = type(ranker)(**{name: deepcopy(value) for name, value in params.items()})
    assert clone.get_params() == params
    assert repr(clone) == "Ranker(policy='fedind', constants={'beta': 0.3}, list_length=2)"
    assert clone.set_params(list_length=3) is clone
    assert not hasattr(clone, "sums_"), "a constructor learns nothing"
    assert clone.fit(LOG, TABLE) is clone
    before = clone.scores("u0")
    assert (clone.set_params(constants={"beta": 0.0}).scores("u0") < before).any(), "what changed counts at once"
    assert clone.n_features_in_ == D
    assert clone.rank("u0", k=2) == clone.rank("u0", k=2)


API_CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]  # fmt: skip  (the others fit arrays)


@pytest.mark.parametrize("name", API_CHECKS)
@pytest.mark.filterwarnings("ignore:ValueError occurred during set_params")  # an unknown policy is refused at once
def test_scikit_learn_finds_nothing_wrong(name: str) -> None:
    getattr(estimator_checks, name)("Ranker", Ranker())


def test_scikit_learn_clones_it_and_knows_whether_it_is_fitted() -> None:
    ranker = Ranker("fedind", list_length=2).fit(LOG, TABLE)
    assert clone(ranker).get_params() == ranker.get_params()
    check_is_fitted(ranker)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(ranker))
    assert describe(pickle.loads(pickle.dumps(ranker))) == describe(ranker)


@pytest.mark.parametrize("log", [LOG, pd.DataFrame(ROWS)], ids=["polars", "pandas"])
def test_scikit_learn_searches_its_parameters(log: Any) -> None:
    grid = {"constants": [{"beta": 0.0}, {"beta": 5.0}], "policy": ["fedind", "oful"]}
    search = GridSearchCV(Ranker(), grid, cv=3, error_score="raise").fit(log, items=TABLE)
    assert search.best_params_ == {"constants": {"beta": 0.0}, "policy": "fedind"}
    assert search.best_score_ > 0.8
    assert search.best_estimator_.rank("u0") == Ranker("fedind", constants={"beta": 0.0}).fit(log, TABLE).rank("u0")


REFUSED: dict[str, tuple[Any, str]] = {
    "unlearned": (lambda: Ranker().rank("u0"), "has learned nothing: call fit"),
    "no features": (lambda: Ranker().fit(LOG), "this log has no features"),
    "a policy": (lambda: Ranker("fedc3ucb"), "did you mean"),
    "another policy": (lambda: Ranker().set_params(policy="nope"), "unknown policy 'nope'"),
    "no constants": (lambda: Ranker(constants=[1]), "a mapping of constants"),  # type: ignore[arg-type]
    "a personal part": (lambda: Ranker("async-linucb-am").fit(LOG, TABLE).rank("u0"), "personal part"),
    "a parameter": (lambda: Ranker().set_params(polcy="x"), "unknown parameter of a Ranker 'polcy'"),
    "no table": (lambda: Ranker().fit(3, TABLE), "log must be a table of pandas, polars or columns, got a int"),
    "a column": (lambda: Ranker().fit(LOG.drop("clicks"), TABLE), "log has no column clicks"),
    "a click": (
        lambda: Ranker().fit(LOG.with_columns(clicks=pl.lit([9], pl.List(pl.Int64))), TABLE),
        "log, row 1, column clicks: must hold positions of the list",
    ),
    "half a click": (
        lambda: Ranker().fit({"user": ["a"], "items": [["i1"]], "clicks": [0.5]}, TABLE),
        "log, row 1, column clicks: must hold positions",
    ),
    "an unknown item": (lambda: Ranker().fit(LOG, TABLE[:3]), "must name items of the table of items, got"),
    "a name": (lambda: Ranker().fit(LOG, TABLE).rank("u0", ["tea"]), "item tea is not known: give the features"),
    "a dimension": (lambda: Ranker().fit(LOG, TABLE).rank("u0", np.eye(4)), "must have 3 features"),
    "a long row": (lambda: Ranker().fit(LOG, TABLE).rank("u0", 2 * np.eye(3)), "norm <= 1, got norm 2"),
    "k": (lambda: Ranker().fit(LOG, TABLE).rank("u0", k=0), "k must be a whole number >= 1"),
    "other features": (
        lambda: Ranker().fit(LOG, TABLE).partial_fit(LOG, TABLE.with_columns(x0=0.0)),
        "item i0 is known with other features",
    ),
    "ragged columns": (lambda: Ranker().fit({"user": ["a"], "items": [], "clicks": []}, TABLE), "log cannot be read"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_learned_or_ranked_is_refused_in_one_line(kind: str) -> None:
    attempt, words = REFUSED[kind]
    with pytest.raises(ValueError, match=words) as refused:
        attempt()
    assert "\n" not in str(refused.value)


def test_a_log_that_is_refused_teaches_nothing() -> None:
    ranker = Ranker("fedind").fit(LOG, TABLE)
    before = describe(ranker)
    bad = LOG.with_columns(user=pl.lit("new"), clicks=pl.lit([9], pl.List(pl.Int64)))
    for method in (ranker.partial_fit, ranker.fit):
        with pytest.raises(ValueError, match="row 1"):
            method(bad, TABLE)
        assert describe(ranker) == before


def test_a_log_that_is_read_again_changes_nothing(files: tuple[Path, Path]) -> None:
    log = read_log(files[0], items=read_items(files[1]))
    ranker = Ranker("fedind").fit(log)
    log.users.number(["somebody"])
    assert len(ranker.rank("somebody", FEATURES, k=2)) == 2
    assert len(ranker.users_) == USERS


def test_it_is_saved_and_loaded_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "ranker.npz"
    ranker = Ranker("population", constants={"beta": 0.25}, list_length=2, explore=False, seed=3).fit(LOG, TABLE)
    ranker.save(path)
    loaded = Ranker.load(path)
    assert describe(loaded) == describe(ranker)
    assert loaded.rank("u1") == ranker.rank("u1")
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()
    assert loaded.partial_fit(LOG).lists_ == 2 * len(ROWS)
    assert load_warm(path).users == tuple(ranker.users_), "a server can start from it"


def test_a_policy_of_your_own_is_given_again(tmp_path: Path) -> None:
    mine = replace(POLICIES["fedind"], name="mine")
    Ranker(mine).fit(LOG, TABLE).save(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match="has custom parts: give it as policy="):
        Ranker.load(tmp_path / "mine.npz")
    assert Ranker.load(tmp_path / "mine.npz", policy=mine).rank("u0")


def test_the_command_and_the_ranker_write_the_same_sums(files: tuple[Path, Path], tmp_path: Path) -> None:
    log, items = files
    main(["fit", str(log), "--item-table", str(items), "--out", str(tmp_path / "warm.npz")])
    Ranker().fit(log, items).save(tmp_path / "ranker.npz")
    by_command, by_ranker = load_warm(tmp_path / "warm.npz"), load_warm(tmp_path / "ranker.npz")
    assert (by_command.users, by_command.lists) == (by_ranker.users, by_ranker.lists)
    assert by_command.sums.gram.tobytes() == by_ranker.sums.gram.tobytes()


def test_a_ranker_learns_rewards() -> None:
    """The milk is clicked as often as the tea, and worth more."""
    table = {"item": ["tea", "milk"], "warm": [0.9, 0.1], "white": [0.1, 0.9]}
    lists = [["tea", "milk"], ["milk", "tea"]] * 10
    log = {"user": ["ann"] * 20, "items": lists, "clicks": [[0]] * 20, "reward": [0.1, 0.9] * 10}
    assert Ranker("fedind", list_length=2).fit(log, table).rank("ann") == ["milk", "tea"]
    swapped = {**log, "reward": [0.9, 0.1] * 10}
    assert Ranker("fedind", list_length=2).fit(swapped, table).rank("ann") == ["tea", "milk"]
