"""A ranker with the interface of scikit-learn, which it does not need: ``fit`` it on a log, then ``rank`` items."""

import inspect
import zlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from numbers import Integral
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer, require_known
from fedcascade.data.logs.items import ItemTable, check_features, convert_features, convert_items, join_tables
from fedcascade.data.logs.reader import Log, Names, open_log
from fedcascade.data.tables import is_table
from fedcascade.evaluation.fit import FrozenPolicy, add_batch, freeze_policy
from fedcascade.federation.policies import DEFAULT_POLICY, Policy, get_policy
from fedcascade.learning.log_sums import LogSums, gather_features
from fedcascade.learning.oracles import TopK, select_top
from fedcascade.numerics.linear import compute_ucb_scores
from fedcascade.numerics.streams import TIE, words
from fedcascade.saved import WarmState, describe_policy, find_policy, load_warm, save_warm
from fedcascade.state_file import INVALID, describe_fault

Features = NDArray[np.float32]
UserId = str | int | np.integer[Any]
UNNAMED = "this Ranker has no named items: give the features of the items to rank"


class Ranker:
    """An estimator that learns from logs of lists and clicks, and ranks items for a user.

    ``fit`` learns what ``fedcascade fit`` writes, and ``rank`` ranks as ``fedcascade evaluate`` does: similar users
    share data, by the policy. A new user gets the prior of the population; a new item is ranked by its features.
    Ids are texts or integers, and keep their type.
    Ranking does not learn: call ``partial_fit`` with the next log.

    Args:
        policy: the name of a policy (see ``fedcascade policies``), or a ``Policy``.
        constants: constants of the policy, such as ``{"beta": 0.5}``.
        list_length: the default number of items that ``rank`` returns.
        explore: add the policy's exploration bonus to the scores; otherwise rank by the estimate alone.
        columns: the columns of a log with unusual names, by role: ``{"items": "shown"}``.
        normalise: divide the features of each item by their norm; otherwise refuse a norm above 1.
        seed: seed of the order of items with equal scores.

    >>> log = {"user": ["ann", "ann", "bob"], "items": [["tea", "milk"], ["milk", "tea"], ["tea", "milk"]],
    ...        "clicks": [[0], [1], []]}
    >>> items = {"item": ["tea", "milk"], "warm": [0.9, 0.1], "white": [0.0, 0.9]}
    >>> ranker = Ranker(policy="fedind", explore=False).fit(log, items)
    >>> ranker.rank("ann", ["milk", "tea"], k=1), ranker.rank("ann", np.array([[0.1, 0.8], [0.8, 0.1]])).tolist()
    (['tea'], [1, 0])
    """

    sums_: LogSums
    items_: ItemTable | None
    lists_: int

    def __init__(
        self,
        policy: str | Policy = DEFAULT_POLICY,
        *,
        constants: Mapping[str, Any] | None = None,
        list_length: int = 4,
        explore: bool = True,
        columns: Mapping[str, str] | None = None,
        normalise: bool = False,
        seed: int = 0,
    ) -> None:
        self.policy, self.constants, self.list_length, self.explore = policy, constants, list_length, explore
        self.columns, self.normalise, self.seed = columns, normalise, seed
        self._get_policy()  # refuses an unknown one

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (no parameter has parameters)
        """Return the constructor's arguments by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments, without forgetting what was learned."""
        for name in params:
            require_known("parameter of a Ranker", name, self.get_params())
        type(self)(**self.get_params() | params)  # refuses an unknown policy
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = type(self)().get_params()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name]]
        return f"Ranker({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "sums_")

    def __sklearn_tags__(self) -> Any:
        utils = import_module("sklearn.utils")  # scikit-learn is the caller
        inputs = utils.InputTags(two_d_array=False)
        return utils.Tags(
            estimator_type=None, target_tags=utils.TargetTags(required=False), input_tags=inputs, no_validation=True
        )

    def fit(self, log: Any, items: Any = None) -> Self:
        """Learn from a log, after forgetting earlier logs; see ``partial_fit``."""
        fresh = type(self)(**self.get_params()).partial_fit(log, items)
        return self._learn(fresh.sums_, fresh._users, fresh.items_, fresh.lists_, fresh._has_numbers)

    def partial_fit(self, log: Any, items: Any = None) -> Self:
        """Learn from one more log, of any policy; a refused log changes nothing.

        Args:
            log: a table of pandas or polars, a mapping of columns, a ``ClickLog``, a result of ``read_log``, or a path
                (columns: docs/reference-logs.md).
            items: the features of items: a table with a column ``item``, a path, or an array with a row for each of
                items 0, 1, 2, ... Not needed for known items, nor if the log has features.
        """
        opened, table = self._open_log(log, items)
        features = None if opened.table is None else opened.table.features
        sums: LogSums | None = None
        lists = 0
        for batch in opened.batches():
            sums = add_batch(sums, batch, features)
            lists += len(batch)
        assert sums is not None
        if not self.__sklearn_is_fitted__():
            return self._learn(sums, Names(opened.users), table, lists, opened.has_numbered_users)
        self._require_dimension(sums.dimension)
        self.sums_.merge(sums, self._users.number(opened.users))
        has_numbers = self._has_numbers and opened.has_numbered_users
        return self._learn(self.sums_, self._users, table, self.lists_ + lists, has_numbers)

    def _learn(self, sums: LogSums, users: Names, items: ItemTable | None, lists: int, has_numbers: bool) -> Self:
        self.sums_, self._users, self.items_, self.lists_, self._has_numbers = sums, users, items, lists, has_numbers
        self._frozen: tuple[dict[str, Any], FrozenPolicy] | None = None
        return self

    @property
    def n_features_in_(self) -> int:
        """The number of features of an item."""
        self._require_fitted()
        return self.sums_.dimension

    @property
    def users_(self) -> tuple[str, ...] | tuple[int, ...]:
        """The ids of the users of all logs, in order of appearance."""
        return tuple(map(int, self._users)) if self._has_numbers else tuple(self._users)

    def rank(self, user: UserId, items: Any = None, k: int | None = None) -> Any:
        """Return the best ``k`` items for a user, best first.

        Args:
            user: the user's id in the log; an unknown user gets the prior of the population.
            items: names of known items, an array of features with a row for each, or a table of items as in
                ``partial_fit``. All known items if None.
            k: the number of items, at most as many as there are; ``list_length`` if None.

        Returns:
            A list of names or, for an array of features, an array of row numbers.
        """
        return self.rank_many([user], items, k)[0]

    def rank_many(self, users: Sequence[UserId], items: Any = None, k: int | None = None) -> list[Any]:
        """Return what ``rank`` returns for each of many users, from the same items."""
        length = self.list_length if k is None else k
        require_integer("k", length)
        require(not isinstance(users, str), f"users must be a sequence of user ids, got the text '{users}'")
        names, features = self._read_candidates(items)
        columns, frozen, ranked = np.ascontiguousarray(features.T), self.freeze(), []
        for user in users:
            scores = self._compute_scores(frozen, self._find_user(user), columns)
            ties = words(np.uint64(self.seed), TIE, zlib.crc32(str(user).encode()), len(scores))
            order = select_top(scores, ties, length)
            ranked.append(order if names is None else [names[place] for place in order])
        return ranked

    def scores(self, user: UserId, items: Any = None) -> NDArray[np.float64]:
        """Return the scores that ``rank`` uses, in the order of ``items``."""
        columns = np.ascontiguousarray(self._read_candidates(items)[1].T)
        return self._compute_scores(self.freeze(), self._find_user(user), columns)

    def score(self, log: Any, items: Any = None) -> float:
        """Return the share of pairs of a clicked item and one examined without a click that ``scores`` orders rightly.

        Equal scores count half; 0.5 is chance, or a log without such pairs. It compares rankers, as in scikit-learn's
        ``GridSearchCV``; ``fedcascade.evaluate`` estimates rewards. Arguments are those of ``partial_fit``.
        """
        frozen, right, pairs = self.freeze(), 0.0, 0
        opened, _ = self._open_log(log, items)
        table = None if opened.table is None else opened.table.features
        for batch in opened.batches():
            ids = list(opened.users)
            features, looked = gather_features(batch, table), batch.count_looked()
            for place, user in enumerate(batch.users):
                columns = np.ascontiguousarray(features[place, : looked[place]].T)
                scores = self._compute_scores(frozen, self._find_user(ids[user]), columns)
                clicked = batch.clicks[place, : looked[place]]
                ahead = scores[clicked][:, None] - scores[~clicked]
                right += (ahead > 0).sum() + 0.5 * (ahead == 0).sum()
                pairs += ahead.size
        return float(right / pairs) if pairs else 0.5

    def freeze(self) -> FrozenPolicy:
        """Return theta, root and beta of each user, with a new user last, for ``evaluate_frozen``."""
        self._require_fitted()
        params = self.get_params()
        if self._frozen is None or self._frozen[0] != params:
            oracle = TopK(length=self.list_length)
            self._frozen = params, freeze_policy(self._get_policy(), self.sums_, oracle, with_prior=True)
        return self._frozen[1]

    def save(self, path: str | PathLike[str]) -> None:
        """Write this ranker to a file without pickles, which ``fedcascade serve --warm`` also reads."""
        self._require_fitted()
        known = {"names": list(self.items_.names), "features": self.items_.features,
                 "has_numbers": self.items_.has_numbers} if self.items_ else None  # fmt: skip
        settings = {name: getattr(self, name) for name in ("list_length", "explore", "columns", "normalise", "seed")}
        facts = {"policy": describe_policy(self._get_policy()), "params": settings, "items": known,
                 "has_numbered_users": self._has_numbers}  # fmt: skip
        save_warm(path, WarmState(sums=self.sums_, users=tuple(self._users), policy=self._get_policy().name, log="",
                                  lists=self.lists_, is_complete=True, ranker=facts))  # fmt: skip

    @classmethod
    def load(cls, path: str | PathLike[str], *, policy: Policy | None = None) -> Self:
        """Read a file of ``save`` or ``fedcascade fit``; ``policy`` is required if it has custom parts."""
        state = load_warm(path)
        require(state.is_complete, f"{path} is from an interrupted fit: run the same 'fedcascade fit' again")
        try:
            ranker = cls._build(state.ranker, state.policy, policy)
            held = state.ranker.get("items")
            items = None if held is None else _build_table(held, state.sums.dimension)
        except INVALID as error:
            raise ValueError(f"{path} cannot be loaded: {describe_fault(error)}") from None
        has_numbers = state.ranker.get("has_numbered_users", False) is True
        return ranker._learn(state.sums, Names(state.users), items, state.lists, has_numbers)

    @classmethod
    def _build(cls, facts: Mapping[str, Any], name: str, given: Policy | None) -> Self:
        if not facts:
            return cls(given or get_policy(name).name)
        policy = find_policy(facts["policy"], given)
        is_named = given is None and policy == get_policy(policy.name)
        return cls(policy.name if is_named else policy, **facts["params"])

    def _get_policy(self) -> Policy:
        is_known = isinstance(self.policy, str | Policy) and isinstance(self.constants, Mapping | None)
        require(is_known, "a Ranker needs the name of a policy or a Policy, and a mapping of constants or None")
        policy = self.policy if isinstance(self.policy, Policy) else get_policy(self.policy)
        return policy.with_constants(**self.constants) if self.constants else policy

    def _require_fitted(self) -> None:
        require(self.__sklearn_is_fitted__(), "this Ranker has learned nothing: call fit or partial_fit first")

    def _require_dimension(self, given: int) -> None:
        known = self.sums_.dimension
        require(given == known, f"items must have {known} features, as in earlier logs, got {given}")

    def _open_log(self, log: Any, items: Any) -> tuple[Log, ItemTable | None]:
        """Open a log with the known items and those given."""
        given = None if items is None else convert_items(items, normalise=self.normalise)
        table = join_tables(getattr(self, "items_", None), given)
        return log if isinstance(log, Log) else open_log(log, columns=self.columns, items=table), table

    def _find_user(self, user: object) -> int:
        """Return the row of a user in a frozen policy, the last one for an unknown user; refuse what is no id."""
        is_id = isinstance(user, str) or (isinstance(user, Integral) and not isinstance(user, bool))
        require(is_id, f"a user id must be a text or an integer, got the {type(user).__name__} {str(user)[:60]}")
        number = self._users.find(str(user))
        return len(self._users) if number is None else number

    def _read_candidates(self, items: Any) -> tuple[Sequence[str] | Sequence[int] | None, Features]:
        """Return the names of the items to rank, if they have any, and their features."""
        self._require_fitted()
        require(items is not None or self.items_ is not None, UNNAMED)
        if items is None or is_table(items) or isinstance(items, ItemTable):
            table = self.items_ if items is None else convert_items(items, normalise=self.normalise)
            assert table is not None
            self._require_dimension(table.dimension)
            return list(map(int, table.names)) if table.has_numbers else table.names, table.features
        if np.ndim(items) == 2:
            features = convert_features(items, normalise=self.normalise)
            self._require_dimension(features.shape[1])
            return None, features
        return self._find_items(items)

    def _find_items(self, items: Any) -> tuple[Sequence[str] | Sequence[int], Features]:
        is_listed = not isinstance(items, str) and np.ndim(items) == 1 and len(items) > 0
        require(is_listed, "items must be names, an array of features with a row for each, or a table")
        names = [str(name) for name in items]
        places = {} if self.items_ is None else {name: place for place, name in enumerate(self.items_.names)}
        unknown = next((name for name in names if name not in places), None)
        require(unknown is None, f"item {unknown} is not known: give the features of the items to rank")
        assert self.items_ is not None
        features = self.items_.features[[places[name] for name in names]]
        return list(map(int, names)) if self.items_.has_numbers else names, features

    def _compute_scores(self, frozen: FrozenPolicy, row: int, columns: Features) -> NDArray[np.float64]:
        beta = float(frozen.beta[row]) if self.explore else 0.0
        return compute_ucb_scores(frozen.theta[row], frozen.root[row], beta, columns)


def _build_table(items: Mapping[str, Any], dimension: int) -> ItemTable:
    names, features, has_numbers = tuple(items["names"]), items["features"], items.get("has_numbers", False) is True
    fits = features.shape == (len(set(names)), dimension) and features.dtype == np.float32
    require(fits, f"items must be {len(names)} different names with {dimension} features each")
    checked = check_features(features.astype(np.float64), lambda row: f"items, row {row + 1}")
    return ItemTable(names, checked, has_numbers)
