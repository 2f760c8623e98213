import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade import Budget, PerCategory, Synthetic, simulate
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.matrices import generate_ratings
from fedcascade.environments.ratings import Ratings
from fedcascade.federation.decisions import DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping.graph.complete import HeterogeneityGraph
from fedcascade.federation.grouping.partition import Everyone
from fedcascade.federation.grouping.phases import SplitAndMerge
from fedcascade.federation.messages import Cause
from fedcascade.federation.personal import AlternatingMinimisation
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.replies import AllAgents, Asker, Lagging, OnArrival, OneLearner
from fedcascade.federation.triggers import (
    Always,
    Auxiliary,
    Determinant,
    Doubling,
    Never,
    Occasion,
    SyncBudget,
    Trigger,
)
from fedcascade.learning.confidence import Oful, Theory
from fedcascade.learning.oracles import TopK
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact import lowering
from fedcascade.simulation.exact.lowering import find_unsupported
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace

QUICK = {"lambda_": 1.0, "alpha_c": 0.7, "alpha_d": 1.5, "beta": 0.7}


def make_policy(name: str, constants: dict[str, float]) -> Policy:
    return POLICIES[name].with_known_constants(constants)


def assert_equal(ours: Trace, theirs: Trace) -> None:
    """Equal to the bit: also the regret, for which 1e-9 would do."""
    np.testing.assert_array_equal(ours.lists, theirs.lists)
    assert ours.ledger == theirs.ledger
    assert ours.curve == theirs.curve
    assert ours.partition == theirs.partition
    assert ours.observations == theirs.observations


def run_both(world: Clustered, policy: Policy, rounds: int, length: int, **options: Any) -> tuple[Trace, Trace]:
    """The Traces of the exact engine and of the reference."""
    scenario = Scenario(world, policy, rounds, TopK(length=length), keep_lists=True)
    return exact.simulate(scenario, **options), reference.simulate(scenario)


def choose_rounds(name: str) -> int:
    """Systems in which an exchange reaches many agents have many more of them, and few rounds show it all.

    So they do where agents look at their own data in every round.
    """
    policy = POLICIES[name]
    return 8_000 if isinstance(policy.reply_rule, Asker) and not policy.keeps_own_data else 2_000


@pytest.mark.parametrize("name", POLICIES)
def test_the_paper_s_shape_gives_the_same_trace(name: str) -> None:
    fast, slow = run_both(Synthetic(seed=3), POLICIES[name], choose_rounds(name), 4)
    assert_equal(fast, slow)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("world", "length"),
    [
        (Synthetic(users=7, clusters=3, dimension=5, items=13, seed=1), 3),
        (Synthetic(users=41, clusters=9, dimension=21, items=201, seed=2, features="gaussian"), 4),
        (Synthetic(users=5, clusters=(3, 2), dimension=4, items=(2, 9), seed=4, arrivals=[5, 1, 1, 2, 1]), 6),
    ],
    ids=["7x13x5", "41x201x21", "short-lists"],
)
def test_odd_shapes_give_the_same_trace(name: str, world: Synthetic, length: int) -> None:
    fast, slow = run_both(world, make_policy(name, QUICK), choose_rounds(name), length)
    assert_equal(fast, slow)
    if name == "fedc3ucb-h":
        assert fast.clusters > 1, "the graph must have split, or this test shows little"


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES)
def test_twenty_thousand_rounds_give_the_same_trace(name: str) -> None:
    fast, slow = run_both(Synthetic(seed=3), POLICIES[name], 20_000, 4)
    assert_equal(fast, slow)


@pytest.mark.parametrize("name", ["fedc3ucb-h", "fedind", "population", "c3-ucb", "dislinucb", "club-cascade"])
def test_users_that_drift_apart_give_the_same_trace(name: str) -> None:
    world = Synthetic(users=13, clusters=3, dimension=9, items=50, seed=8, drift=777)
    fast, slow = run_both(world, make_policy(name, QUICK), 1_500, 4)
    assert_equal(fast, slow)
    steady, _ = run_both(
        Synthetic(users=13, clusters=3, dimension=9, items=50, seed=8), make_policy(name, QUICK), 1_500, 4
    )
    assert fast.lists is not None
    assert steady.lists is not None
    assert not np.array_equal(fast.lists, steady.lists)


@cache
def make_ratings(items: int | tuple[int, int], preset: str) -> Ratings:
    matrix = generate_ratings(120, 201, seed=5)
    return Ratings.from_matrix(matrix, users=13, clusters=4, dimension=7, items=items, preset=preset, seed=6)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("items", [201, (2, 9)], ids=["whole-catalogue", "short-lists"])
@pytest.mark.parametrize("preset", ["catalogue", "paper"])
def test_ratings_give_the_same_trace(name: str, items: int | tuple[int, int], preset: str) -> None:
    world = make_ratings(items, preset)
    fast, slow = run_both(world, make_policy(name, QUICK), 2_000, 4)
    assert_equal(fast, slow)
    assert fast.regret > 0


@settings(deadline=None, max_examples=40)
@given(
    users=st.integers(1, 23),
    dimension=st.integers(2, 24),
    items=st.integers(1, 70),
    more_items=st.integers(0, 20),
    length=st.integers(1, 7),
    name=st.sampled_from(sorted(POLICIES)),
    features=st.sampled_from(["lifted", "gaussian"]),
    beta=st.sampled_from([0.0, 0.3, 2.0, 10.5, 1e4]),
    seed=st.integers(0, 2**64 - 1),
    threads=st.integers(1, 5),
    window=st.integers(1, 700),
)
def test_any_shape_seed_thread_count_and_window_gives_the_same_trace(
    users: Any,
    dimension: Any,
    items: int,
    more_items: Any,
    length: int,
    name: str,
    features: Any,
    beta: float,
    seed: int,
    threads: Any,
    window: Any,
) -> None:
    world = Synthetic(
        users=users,
        clusters=min(users, 3),
        dimension=dimension,
        items=(items, items + more_items),
        directions="random",
        features=features,
        seed=seed,
    )
    length = min(length, world.most_items)
    policy = make_policy(name, QUICK | {"beta": beta})
    fast, slow = run_both(world, policy, 600, length, threads=threads, window=window)
    assert_equal(fast, slow)


@pytest.mark.parametrize(
    "trigger",
    [
        Always(),
        Never(),
        Doubling() | Determinant(alpha_c=0.2),
        Auxiliary(p_scale=50.0) | Determinant() | Doubling(),
    ],
)
@pytest.mark.parametrize("decision", [DownloadAndBuffer(), POLICIES["fedlinucb"].decision])
@pytest.mark.parametrize("confidence", [Theory(), Oful()])
def test_other_parts_give_the_same_trace(trigger: Any, decision: Any, confidence: Any) -> None:
    policy = replace(POLICIES["fedc3ucb-h"], trigger=trigger, decision=decision, confidence=confidence)
    fast, slow = run_both(Synthetic(users=6, clusters=2, dimension=6, items=20), policy, 1_000, 3)
    assert_equal(fast, slow)


REPLIES = [
    (OneLearner(), Never()),
    (OnArrival(), Always()),
    (AllAgents(), Doubling() | SyncBudget(budget=3.0)),
    (AllAgents(), Determinant() | Auxiliary()),
    (Lagging(gamma_d=1.2), Doubling() | SyncBudget(budget=3.0)),
    (Lagging(gamma_d=1.2), Determinant() | Auxiliary()),
]
DECISIONS = [LastDownload(), DownloadAndBuffer()]
GROUPINGS = [HeterogeneityGraph(alpha_d=1.0), SplitAndMerge(local_servers=2), Everyone()]
WITHOUT_PERSONAL = [(*replies, None, decision) for replies in REPLIES for decision in DECISIONS]
# The engine fits a personal part where each agent holds what it uploaded, and decides anew in every round.
WITH_PERSONAL = [
    (*replies, AlternatingMinimisation(), DownloadAndBuffer())
    for replies in REPLIES
    if isinstance(replies[0], Lagging | OneLearner)
]
REFUSED = [
    combination
    for combination in (
        (*replies, AlternatingMinimisation(), decision) for replies in REPLIES for decision in DECISIONS
    )
    if combination not in WITH_PERSONAL
]


def combine(grouping: Any, reply_rule: Any, trigger: Any, personal: Any, decision: Any) -> Policy:
    return replace(
        POLICIES["async-linucb"],
        grouping=grouping,
        trigger=trigger,
        decision=decision,
        reply_rule=reply_rule,
        personal=personal,
        lambda_=1.0,
    )


@pytest.mark.parametrize(("reply_rule", "trigger", "personal", "decision"), [*WITHOUT_PERSONAL, *WITH_PERSONAL])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_other_replies_give_the_same_trace(
    reply_rule: Any, trigger: Any, personal: Any, decision: Any, grouping: Any
) -> None:
    policy = combine(grouping, reply_rule, trigger, personal, decision)
    world = Synthetic(users=6, clusters=2, dimension=6, items=20)
    assert find_unsupported(Scenario(world, policy, 400, TopK(length=3))) is None
    fast, slow = run_both(world, policy, 400, 3)
    assert_equal(fast, slow)


@pytest.mark.parametrize(("reply_rule", "trigger", "personal", "decision"), REFUSED)
def test_a_personal_part_beside_other_replies_is_refused_with_a_reason(
    reply_rule: Any, trigger: Any, personal: Any, decision: Any
) -> None:
    policy = combine(Everyone(), reply_rule, trigger, personal, decision)
    unsupported = find_unsupported(Scenario(Synthetic(users=6, clusters=2, dimension=6, items=20), policy, 400))
    assert unsupported == "personal part beside such a reply rule or decision"


@dataclass(frozen=True, kw_only=True)
class EveryThird(Trigger):
    """A part that the engine has never heard of."""

    def cause(self, occasion: Occasion) -> Cause | None:
        return Cause.FORCED if occasion.arrivals % 3 == 0 else None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"trigger": SyncBudget()}, "trigger SyncBudget"),
        ({"personal": AlternatingMinimisation()}, "personal part"),
        ({"trigger": SyncBudget() | Doubling(), "reply_rule": Lagging()}, "trigger SyncBudget"),
    ],
)
def test_what_the_engine_cannot_play_exactly_it_leaves_to_the_reference(changed: Any, named: str) -> None:
    world = Synthetic(users=4, clusters=2, dimension=4, items=8)
    policy = replace(POLICIES["fedlinucb"], **changed)
    with pytest.warns(UserWarning, match=named):
        assert simulate(world, policy, rounds=50).engine == "reference"


def test_an_unknown_part_falls_back_to_the_reference_and_says_which() -> None:
    world = Synthetic(users=4, clusters=2, dimension=4, items=8)
    policy = replace(POLICIES["fedc3ucb-h"], trigger=Determinant() | EveryThird())
    with pytest.warns(UserWarning, match="trigger EveryThird of fedc3ucb-h"):
        trace = simulate(world, policy, rounds=50)
    assert trace.engine == "reference"
    with pytest.warns(UserWarning, match="oracle Slogan"):
        simulate(world, POLICIES["fedind"], rounds=50, oracle=Slogan())


class Slogan(TopK):
    """An oracle that overrides nothing."""


# With limits, functions are compiled anew, which takes time: those of systems that play by time are for the long tests.
BY_TIME = [pytest.param(name, marks=pytest.mark.long) for name in ("async-linucb-am", "club-cascade", "oful")]


@pytest.mark.parametrize("name", ["fedc3ucb-h", "fedind", *BY_TIME])
@pytest.mark.parametrize("oracle", [PerCategory(length=3, limit=1), Budget(length=3, budget=0.4), Budget(length=2)])
def test_oracles_with_limits_give_the_same_trace(name: str, oracle: PerCategory | Budget) -> None:
    world = Synthetic(users=6, clusters=2, dimension=6, items=(20, 30), categories=3, costs=True, seed=4)
    scenario = Scenario(world, make_policy(name, QUICK), 400, oracle, keep_lists=True)
    assert find_unsupported(scenario) is None
    assert_equal(exact.simulate(scenario), reference.simulate(scenario))


@pytest.mark.parametrize(("costs", "words"), [(False, "needs costs"), (True, "no item on offer costs at most")])
def test_a_budget_that_cannot_be_kept_is_refused(costs: bool, words: str) -> None:
    world = Synthetic(users=4, clusters=2, dimension=4, items=8, costs=costs)
    with pytest.raises(ValueError, match=words):
        simulate(world, POLICIES["fedc3ucb-h"], rounds=200, oracle=Budget(budget=0.1))


class Shop(Synthetic):
    """An environment that overrides nothing."""


@dataclass(frozen=True)
class Hourly(Doubling):
    """A trigger whose parent has a row."""


def test_a_subclass_of_a_known_part_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(users=4, clusters=2, dimension=4, items=8)
    advice = r"environment Shop \(a subclass of Synthetic .*lowering.ENVIRONMENTS\[Shop\] = ENVIRONMENTS\[Synthetic\]"
    with pytest.warns(UserWarning, match=advice):
        assert simulate(shop, POLICIES["fedind"], rounds=50).engine == "reference"
    with pytest.warns(UserWarning, match="trigger Hourly .a subclass of Doubling"):
        simulate(Synthetic(), replace(POLICIES["fedlinucb"], trigger=Hourly()), rounds=10)
    monkeypatch.setitem(lowering.ENVIRONMENTS, Shop, lowering.ENVIRONMENTS[Synthetic])
    assert simulate(shop, POLICIES["fedind"], rounds=50).engine == "exact"


def test_a_part_without_a_row_is_never_lowered() -> None:
    """A forgotten row must not become a policy that never uploads."""
    with pytest.raises(NotImplementedError, match="EveryThird"):
        lowering.lower_triggers(Determinant() | EveryThird())


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_table_has_a_compiled_form(name: str) -> None:
    assert find_unsupported(Scenario(Synthetic(), POLICIES[name], 10)) is None


def test_known_parts_run_in_the_exact_engine_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = simulate(Synthetic(users=4, clusters=2, dimension=4, items=8), POLICIES["fedc3ucb-h"], rounds=50)
    assert trace.engine == "exact"


def test_progress_ends_at_the_last_round() -> None:
    seen: list[int] = []
    world = Synthetic(users=4, clusters=2, dimension=4, items=8)
    simulate(world, POLICIES["fedind"], rounds=1_000, progress=seen.append)
    assert seen[-1] == 1_000
    assert seen == sorted(set(seen))


def test_a_policy_and_a_world_that_were_swapped_are_refused_in_one_line() -> None:
    world: Any = Synthetic(users=4, clusters=2, dimension=5, items=10)
    swapped: Any = POLICIES["fedind"]
    with pytest.raises(ValueError, match=r"policy must be a Policy, such as .* got a Synthetic"):
        simulate(swapped, world, rounds=10)


@pytest.mark.parametrize("oracle", [4, 0, "top-k"])
def test_what_is_no_oracle_is_refused_in_one_line(oracle: Any) -> None:
    world = Synthetic(users=4, clusters=2, dimension=5, items=10)
    with pytest.raises(ValueError, match=r"oracle must be an Oracle, such as TopK\(length=4\), got a (int|str)$"):
        simulate(world, POLICIES["fedind"], rounds=10, oracle=oracle)
