"""The reference simulator does what the paper says: it agrees, round by round, with a transcription of it."""

from dataclasses import asdict, dataclass
from typing import Any

import networkx as nx
import numpy as np
import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.messages import Downloads, Upload
from fedcascade.federation.policies import POLICIES, Order, Policy
from fedcascade.federation.server import Server
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.reference import simulate
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace

from ..federation.graphs import get_edges
from .transcription import GRAPH_SYSTEMS, SYSTEMS, Constants, Reading, State, System, Transcript, play

K = 4
ORDERS: dict[Reading, Order] = {
    "add-first": Order.UPLOAD_FIRST,
    "aggregate-first": Order.AGGREGATE_FIRST,
}
# FedInd never uploads: it has no order.
RUNS = [(system, order) for system in SYSTEMS for order in ORDERS if (system, order) != ("fedind", "aggregate-first")]


@dataclass(frozen=True)
class Setting:
    """A world, constants to play in it, for how long, and whether the graph splits in that time."""

    world: dict[str, Any]
    constants: Constants
    rounds: int
    splits: bool


SETTINGS = {
    # The paper's sizes and our constants for them: after so few rounds nearly all scores still clip at 1, so
    # lists go by ties, and the graph is complete.
    "paper": Setting(
        {"users": 40, "clusters": 10, "dimension": 20, "items": 200, "seed": 1},
        Constants(),
        rounds=5_000,
        splits=False,
    ),
    # The paper's sizes, with scores that rarely clip at 1 and a graph that splits.
    "eager": Setting(
        {"users": 40, "clusters": 10, "dimension": 20, "items": 200, "seed": 2},
        Constants(lambda_=1.0, alpha_c=0.5, alpha_d=2.0, beta=0.3, p_scale=9.0),
        rounds=2_000,
        splits=True,
    ),
    # A small world whose graph splits early, into the clusters and beyond.
    "small": Setting(
        {"users": 12, "clusters": 3, "dimension": 6, "items": 30, "features": "gaussian", "seed": 1},
        Constants(lambda_=1.0, alpha_d=1.0, beta=1.0),
        rounds=5_000,
        splits=True,
    ),
}


@pytest.mark.parametrize(("system", "order"), RUNS)
@pytest.mark.parametrize("name", SETTINGS)
def test_reference_agrees_with_the_transcription(name: str, system: System, order: Reading) -> None:
    setting = SETTINGS[name]
    world = Synthetic(**setting.world)
    transcript = play(world, system, rounds=setting.rounds, K=K, constants=setting.constants, order=order)
    policy = make_policy(system, setting, order)
    trace = simulate(Scenario(world, policy, rounds=setting.rounds, oracle=TopK(length=K), keep_lists=True))

    compare(trace, transcript)
    assert_something_happened(transcript, system, splits=setting.splits)


def compare(trace: Trace, transcript: Transcript) -> None:
    assert trace.lists is not None
    assert [(line.round, line.agent, str(line.cause)) for line in trace.ledger] == transcript.exchanges
    assert trace.lists.tolist() == transcript.lists
    assert trace.reward == transcript.clicks
    assert trace.observations == transcript.observations
    assert list(trace.partition) == transcript.partition
    assert trace.regret == pytest.approx(transcript.regret, rel=1e-9, abs=0.0)


@pytest.mark.long
def test_the_exact_engine_agrees_with_the_transcription_past_the_splits() -> None:
    """200,000 rounds with the default constants: long enough for the graph to fall apart at the paper's sizes."""
    world, rounds = Synthetic(users=40, clusters=10, dimension=20, items=200, seed=0), 200_000
    transcript = play(world, "fedc3ucb-h", rounds=rounds, K=K, constants=Constants())
    scenario = Scenario(world, POLICIES["fedc3ucb-h"], rounds=rounds, oracle=TopK(length=K), keep_lists=True)
    compare(exact.simulate(scenario, threads=2), transcript)
    assert_something_happened(transcript, "fedc3ucb-h", splits=True)


@pytest.mark.parametrize("order", ORDERS)
def test_server_holds_what_the_transcription_holds(order: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every exchange: the statistics of every user, and every edge."""
    setting = SETTINGS["small"]
    world = Synthetic(**setting.world)
    transcribed: list[tuple[np.ndarray, ...]] = []
    held: list[tuple[np.ndarray, ...]] = []
    receive = Server.receive

    def record_state(t: int, state: State) -> None:
        edges = nx.to_numpy_array(state.G, nodelist=range(world.users))
        transcribed.append((state.T_ser.copy(), state.Sigma_ser.copy(), state.b_ser.copy(), edges))

    def receive_and_record(server: Server, upload: Upload) -> Downloads:
        downloads = receive(server, upload)
        ours = server.holdings
        held.append((ours.count.copy(), ours.gram.copy(), ours.moment.copy(), get_edges(server).astype(float)))
        return downloads

    play(world, "fedc3ucb-h", rounds=2_000, K=K, constants=setting.constants, order=order, after_exchange=record_state)
    monkeypatch.setattr(Server, "receive", receive_and_record)
    simulate(Scenario(world, make_policy("fedc3ucb-h", setting, order), rounds=2_000, oracle=TopK(length=K)))

    assert len(held) == len(transcribed) > 50
    for (T_ser, Sigma_ser, b_ser, edges), (count, gram, moment, ours) in zip(transcribed, held, strict=True):
        np.testing.assert_array_equal(count, T_ser)
        np.testing.assert_allclose(gram, Sigma_ser, rtol=0, atol=1e-9)
        np.testing.assert_allclose(moment, b_ser, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(ours, edges)


def test_the_default_constants_are_the_same() -> None:
    systems = [system for system in SYSTEMS if system != "fedind"]  # which is deployed too, with constants for that
    ours = {name: value for system in systems for name, value in POLICIES[system].constants().items()}
    assert {name: ours[name] for name in asdict(Constants())} == asdict(Constants())


@pytest.mark.parametrize("system", ["fedlinucb", "fedc3ucb-h"])
def test_the_order_matters(system: System) -> None:
    """Otherwise the comparison above could not tell the two readings apart."""
    setting = SETTINGS["small"]
    world = Synthetic(**setting.world)
    first, second = (
        play(world, system, rounds=1_000, K=K, constants=setting.constants, order=order) for order in ORDERS
    )
    assert first.exchanges != second.exchanges
    assert first.lists != second.lists


def make_policy(system: System, setting: Setting, order: Reading) -> Policy:
    policy = POLICIES[system]
    wanted = {**asdict(setting.constants), "order": ORDERS[order]}
    return policy.with_constants(**{name: value for name, value in wanted.items() if name in policy.constants()})


def assert_something_happened(transcript: Transcript, system: System, *, splits: bool) -> None:
    causes = {
        "fedc3ucb-h": {"determinant", "auxiliary"},
        "force-comm": {"determinant", "forced"},
        "no-auxiliary": {"determinant"},
        "fedlinucb": {"determinant"},
        "fedind": set(),
    }
    assert {cause for _, _, cause in transcript.exchanges} == causes[system]
    if system in GRAPH_SYSTEMS:
        assert (transcript.deletions > 0) == splits
        assert (max(transcript.partition) > 0) == splits
