"""The systems of Table 1 are what their papers say: limits that must coincide, and an independent transcription."""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

from fedcascade import POLICIES, Policy, Synthetic, Trace, simulate
from fedcascade.federation.delivery import run_exchange
from fedcascade.federation.messages import Cause
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.reference import make_agents, play_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation

from .other_systems import (
    Transcript,
    make_self_normalised_beta,
    play_async_linucb,
    play_async_linucb_am,
    play_club_cascade,
    play_dislinucb,
    play_one_learner,
    play_phase_fclub,
)

SMALL: dict[str, Any] = {"users": 8, "clusters": 2, "dimension": 6, "items": 20}
ROUNDS = 1_500


def simulate_with_lists(world: Synthetic, policy: Policy, *, rounds: int = ROUNDS, K: int = 4) -> Trace:
    return simulate(world, policy, rounds=rounds, oracle=TopK(length=K), keep_lists=True)


def make_policy(name: str, *, beta: float = 1.0, **constants: float) -> Policy:
    return POLICIES[name].with_beta(beta).with_constants(**{"lambda_": 1.0, **constants})


def assert_same_run(ours: Trace, theirs: Trace) -> None:
    np.testing.assert_array_equal(ours.lists, theirs.lists)
    assert ours.curve == theirs.curve
    assert ours.ledger == theirs.ledger


@pytest.mark.parametrize("seed", range(3))
def test_with_single_items_c3_ucb_is_oful(seed: int) -> None:
    world = Synthetic(**SMALL, seed=seed)
    ours, theirs = (simulate_with_lists(world, make_policy(name), K=1) for name in ("c3-ucb", "oful"))
    assert_same_run(ours, theirs)
    assert ours.communications() == 0


@pytest.mark.parametrize("K", [1, 4])
def test_for_users_who_are_alike_the_papers_system_is_fedlinucb(K: int) -> None:
    world = Synthetic(**SMALL | {"clusters": 1})
    ours = simulate_with_lists(world, make_policy("fedc3ucb-h", alpha_d=1e9, p_scale=0.0), K=K)
    theirs = simulate_with_lists(world, make_policy("fedlinucb"), K=K)
    assert_same_run(ours, theirs)
    assert len(ours.ledger) > 20


@pytest.mark.parametrize("rounds", [10, 700])
def test_club_cascade_exchanges_exactly_t_times(rounds: int) -> None:
    trace = simulate_with_lists(Synthetic(**SMALL), POLICIES["club-cascade"], rounds=rounds)
    assert trace.communications() == rounds
    assert [line.round for line in trace.ledger] == list(range(1, rounds + 1))
    assert {(line.bytes_up, line.bytes_down) for line in trace.ledger} == {(256, 256)}


def test_club_cascade_decides_with_what_everybody_just_told() -> None:
    """While its graph is whole, it is one central learner."""
    world = Synthetic(**SMALL)
    ours = simulate_with_lists(world, make_policy("club-cascade", alpha_d=1e9))
    central = simulate_with_lists(world, make_policy("c3-ucb"))
    np.testing.assert_array_equal(ours.lists, central.lists)


def test_with_no_budget_all_agents_of_dislinucb_know_the_same() -> None:
    world, oracle = Synthetic(**SMALL), TopK(length=4)
    simulation = prepare_simulation(Scenario(world, make_policy("dislinucb", budget=0.0), 300, oracle, checkpoints=1))
    agents = make_agents(simulation, oracle)
    for t in range(1, 301):
        known = {(agent.state.decision.root.tobytes(), agent.state.decision.theta.tobytes()) for agent in agents}
        assert len(known) == 1, f"before round {t}"
        user = world.arrival(t)
        played = play_round(world, oracle, t, user, agents[user].recommend, agents[user].observe)
        assert played.upload is not None
        uploads, downloads = run_exchange(simulation.server, agents, played.upload)
        assert len(uploads) == len(downloads) == world.users


def test_a_synchronisation_counts_twice_for_every_agent() -> None:
    trace = simulate_with_lists(Synthetic(**SMALL), make_policy("dislinucb", budget=20.0))
    assert {line.cause for line in trace.ledger} == {Cause.SYNCHRONISATION}
    for t in {line.round for line in trace.ledger}:
        lines = [line for line in trace.ledger if line.round == t]
        assert sorted(line.agent for line in lines) == sorted([*range(8)] * 2)
        assert sum(line.bytes_up for line in lines) == sum(line.bytes_down for line in lines) == 8 * 256


def test_async_linucb_that_never_speaks_is_independent_learners() -> None:
    world = Synthetic(**SMALL)
    ours = simulate_with_lists(world, make_policy("async-linucb", gamma_u=float("inf"), gamma_d=float("inf")))
    assert_same_run(ours, simulate_with_lists(world, make_policy("fedind")))
    assert ours.communications() == 0


@pytest.mark.parametrize(("gamma", "a_round"), [(1.0, 8), (0.5, 9)])
@pytest.mark.parametrize("K", [1, 4])
def test_async_linucb_that_always_uploads_uses_a_push_one_list_later(gamma: float, a_round: int, K: int) -> None:
    """With 1, an upload is pushed to all others; below 1, also to its sender. A single user is one central learner."""
    world, policy = Synthetic(**SMALL), make_policy("async-linucb", gamma_u=gamma, gamma_d=gamma)
    ours = simulate_with_lists(world, policy, K=K)
    assert not np.array_equal(ours.lists, simulate_with_lists(world, make_policy("oful"), K=K).lists)  # type: ignore[arg-type]
    only = Synthetic(**SMALL | {"users": 1, "clusters": 1})
    central = simulate_with_lists(only, make_policy("oful"), K=K)
    np.testing.assert_array_equal(simulate_with_lists(only, policy, K=K).lists, central.lists)
    assert ours.communications(Cause.DETERMINANT) == ROUNDS
    assert ours.communications() == a_round * ROUNDS


@pytest.mark.parametrize("seed", range(3))
def test_phase_fclub_never_splits_users_who_are_alike(seed: int) -> None:
    world = Synthetic(**SMALL | {"clusters": 1}, seed=seed)
    trace = simulate_with_lists(world, POLICIES["phase-fclub"].with_constants(local_servers=1, beta=1.0), rounds=10_000)
    assert {point.clustering_error for point in trace.curve} == {0.0}
    assert trace.clusters == 1


@pytest.mark.parametrize("servers", [1, 3])
def test_phase_fclub_finds_clusters_across_local_servers(servers: int) -> None:
    world = Synthetic(**SMALL | {"users": 12, "clusters": 3}, seed=2)
    trace = simulate_with_lists(
        world, POLICIES["phase-fclub"].with_constants(local_servers=servers, beta=1.0), rounds=10_000
    )
    assert trace.clustering_error == 0.0
    assert trace.curve[0].clustering_error == 1.0


def test_personal_parts_tell_users_apart_where_a_shared_one_cannot() -> None:
    world = Synthetic(**SMALL)
    ours, shared = (simulate_with_lists(world, make_policy(name, gamma_u=2.0, gamma_d=2.0), rounds=4_000)
                    for name in ("async-linucb-am", "async-linucb"))  # fmt: skip
    assert ours.regret < 0.6 * shared.regret


TRANSCRIBED: dict[str, tuple[Callable[..., Transcript], dict[str, float]]] = {
    "oful": (play_one_learner, {}),
    "c3-ucb": (play_one_learner, {}),
    "async-linucb": (play_async_linucb, {"gamma_u": 1.5, "gamma_d": 2.0}),
    "async-linucb-am": (play_async_linucb_am, {"gamma_u": 1.5, "gamma_d": 2.0}),
    "dislinucb": (play_dislinucb, {"budget": 12.0}),
    "club-cascade": (play_club_cascade, {"alpha_d": 8.0}),
    "phase-fclub": (
        play_phase_fclub,
        {"alpha_d": 1.0, "alpha_2": 0.7, "local_servers": 3, "gamma_u": 1.1, "gamma_d": 1.3},
    ),
}


@pytest.mark.parametrize("name", TRANSCRIBED)
@pytest.mark.parametrize("K", [1, 3])
def test_agrees_with_a_transcription(name: str, K: int) -> None:
    transcribe, constants = TRANSCRIBED[name]
    world = Synthetic(**SMALL, seed=5)
    transcript = transcribe(world, rounds=1_200, K=K, lambda_=1.0, beta=0.7, **constants)
    trace = simulate_with_lists(world, make_policy(name, beta=0.7, **constants), rounds=1_200, K=K)
    assert trace.lists is not None
    assert trace.lists.tolist() == transcript.lists
    assert [(line.round, line.agent, str(line.cause)) for line in trace.ledger] == transcript.exchanges
    assert list(trace.partition) == transcript.partition
    assert (len(transcript.exchanges) > 50) == (name not in ("oful", "c3-ucb"))
    if name in ("club-cascade", "phase-fclub"):
        assert trace.clusters > 1


@pytest.mark.parametrize("name", ["async-linucb", "oful"])
@pytest.mark.parametrize("K", [1, 3])
def test_agrees_with_a_transcription_at_the_beta_of_its_source(name: str, K: int) -> None:
    """For async-linucb, with its authors' constants: its own, gammas aside."""
    transcribe, constants = TRANSCRIBED[name]
    world, beta = Synthetic(**SMALL, seed=5), make_self_normalised_beta(0.1, noise=0.1, delta=0.1)
    transcript = transcribe(world, rounds=1_200, K=K, lambda_=0.1, beta=beta, **constants)
    own = POLICIES["async-linucb"].with_constants(**TRANSCRIBED["async-linucb"][1])
    policy = own if name == "async-linucb" else replace(POLICIES[name], confidence=own.confidence, lambda_=own.lambda_)
    trace = simulate_with_lists(world, policy, rounds=1_200, K=K)
    assert trace.lists is not None
    assert trace.lists.tolist() == transcript.lists
    assert [(line.round, line.agent, str(line.cause)) for line in trace.ledger] == transcript.exchanges


@pytest.mark.parametrize("name", ["async-linucb", "fedlinucb"])
def test_sharing_is_ordered_as_theory_says_for_users_who_are_alike(name: str) -> None:
    """One central learner, then who shares now and then, then who never shares; all of them below linear."""
    regrets: dict[str, list[Trace]] = {"oful": [], name: [], "fedind": []}
    for seed in range(3):
        world = Synthetic(users=20, clusters=1, dimension=8, items=30, seed=seed)
        for each in regrets:
            regrets[each].append(simulate_with_lists(world, make_policy(each), rounds=20_000, K=1))
    spread = {each: (mean(t.regret for t in runs), stdev(t.regret for t in runs)) for each, runs in regrets.items()}
    print({each: f"{middle:.0f} +- {width:.0f}" for each, (middle, width) in spread.items()})
    for seed in range(3):
        central, ours, alone = (regrets[each][seed].regret for each in regrets)
        assert central < ours < alone, spread
    for runs in regrets.values():
        for trace in runs:
            halves = trace.curve[4].regret, trace.regret - trace.curve[4].regret
            assert halves[1] < 0.75 * halves[0]


def test_every_system_runs_with_single_items_and_lists_and_another_confidence() -> None:
    world = Synthetic(**SMALL)
    for row in POLICIES.values():
        for K in (1, 3):
            trace = simulate_with_lists(
                world, replace(row, confidence=POLICIES["async-linucb"].confidence, formulas=()), K=K, rounds=60
            )
            assert trace.engine == "exact"
