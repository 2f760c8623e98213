"""What a newcomer loses in its first rounds, in a system that has learned from many: ``python benchmarks/welcome.py``.

Users play in the exact engine. Then newcomers come, each with the taste of somebody who is there, one after the other,
and each speaks like everybody else. Of every newcomer there are as many doubles as ``--kinds`` names, which live
through the same rounds: ``welcome`` is told what the server knows of anybody before its first list, ``silence`` is
not, and ``components`` keeps the server's mixture, as it is at that moment, and finds out after every click where it
belongs. All are compared with a double that learns alone.

With ``--service`` newcomers enrol at a server, over its protocol, whose store was filled with the uploads of the users
in the order in which they came. It runs in this process, without sockets. Their rounds must be those of ``welcome``.

The world is that of ``benchmarks/crowd.py``. Regret is summed over first rounds; the interval is that of the mean over
newcomers, at 95 %.
"""

import argparse
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from crowd import make_world
from numpy.typing import NDArray

from fedcascade import POLICIES, TopK
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.agent import Agent, ShownList
from fedcascade.federation.grouping.mixture import Mixture, make_room, match_moments, state_as_statistics, weigh
from fedcascade.federation.grouping.population import PopulationPartition
from fedcascade.federation.messages import Upload
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.cascade import Examination
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.pool import AgentPool
from fedcascade.service.agent.transport import InProcessTransport
from fedcascade.service.server.app import build_application
from fedcascade.service.server.bounds import FOR_SIMULATIONS
from fedcascade.service.server.operations import record_upload, set_operator
from fedcascade.service.server.service import Limits, Service
from fedcascade.service.server.state import ServerState
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.event_driven import EventDrivenEngine
from fedcascade.simulation.reference import Round, play_round
from fedcascade.simulation.scenario import Scenario, Simulation, prepare_simulation

LENGTH, SPANS = 4, (20, 50, 100)
ROUNDS = SPANS[-1]
KINDS = "welcome", "silence", "components"
FREE = Limits(rate=1e9, burst=1e9, address_rate=1e9, address_burst=1e9)
TOKEN = "the-operator-of-a-benchmark"
Visits = NDArray[np.float64]  # (newcomers, ROUNDS, 2): regret, and whether an upload was sent


@dataclass(frozen=True)
class Crowd:
    """A system that users have taught, and what they uploaded, in order."""

    world: Synthetic
    beta: float
    scenario: Scenario
    simulation: Simulation
    uploads: Sequence[Upload]


class Borrowed:
    """A transport that a pool does not close."""

    def __init__(self, transport: InProcessTransport) -> None:
        self.send = transport.send

    def close(self) -> None:
        """Its owner does."""


class SelfClassifier(Agent):
    """An agent that keeps a mixture of users, and decides with what it says of its own data, anew after every click."""

    groups: PopulationPartition | None = None

    def keep_mixture(self, groups: PopulationPartition) -> None:
        self.own, self.room = Statistics.zero(self.problem.dimension), make_room(*groups.means.shape)
        self.groups = groups
        self._decide()

    def learn(self, shown: ShownList, click: int | Examination | None, *, round_: int, draw: float) -> Upload | None:
        if self.groups is not None:
            self.own = self.own.observe(shown.features, click)
        return super().learn(shown, click, round_=round_, draw=draw)

    def _decide(self) -> None:
        if self.groups is None:
            super()._decide()
            return
        told, room, variance = self.groups, self.room, float(self.groups.rule.variance)
        population = told.centre, told.precision, told.pull, told.mixture_numbers
        mixture = Mixture(told.means, told.levels, told.log_weights, *population)
        weigh(mixture, self.own.gram, self.own.moment, variance, room)
        known = state_as_statistics(*match_moments(mixture, variance, room), self.policy.lambda_)
        self.decision = Ridge(Statistics(*known, 0, 0, 0), self.policy.lambda_)
        self.beta = self.policy.confidence.radius(self.decision, self.problem)


def teach(crowd: str, name: str, seed: int, own: int) -> Crowd:
    """Let all users play so many rounds each, on average."""
    world, beta = make_world(crowd, seed)
    scenario = Scenario(world, POLICIES[name].with_beta(beta), own * world.users, TopK(length=LENGTH), 1)
    simulation, uploads = prepare_simulation(scenario), list[Upload]()
    take = simulation.server.take

    def record(*messages: Upload) -> object:
        uploads.extend(messages)
        return take(*messages)

    simulation.server.take = record  # type: ignore[method-assign,assignment]
    with ThreadPoolExecutor(1) as pool:
        for _ in EventDrivenEngine(
            scenario, ExchangeDriver(scenario, simulation, is_packed=True), pool, 1, None
        ).play():
            pass
    simulation.server.take = take  # type: ignore[method-assign]
    return Crowd(world, beta, scenario, simulation, uploads)


def list_visits(crowd: Crowd, seed: int, newcomers: int) -> Iterator[tuple[int, int, range]]:
    """The number of each newcomer, the user whose taste it has, and its rounds."""
    random = np.random.default_rng(seed)
    for number in range(newcomers):
        first = crowd.scenario.rounds + 1 + ROUNDS * number
        yield number, int(random.integers(crowd.world.users)), range(first, first + ROUNDS)


def note(visits: Visits, number: int, place: int, played: Round) -> None:
    """Write down what happened in a newcomer's round."""
    visits[number, place] = played.regret, played.upload is not None


def play_in_library(crowd: Crowd, kind: str, seed: int, newcomers: int, floor: int) -> Visits:
    """Newcomers of a kind, or who learn alone, at the server of the simulation."""
    visits, simulation = np.zeros((newcomers, ROUNDS, 2)), crowd.simulation
    server, is_alone = simulation.server, kind == "alone"
    policy = POLICIES["fedind"].with_beta(crowd.beta) if is_alone else simulation.policy
    policy = replace(policy, trigger=AtLeast(trigger=policy.trigger, observations=floor)) if floor else policy
    for number, user, rounds in list_visits(crowd, seed, newcomers):
        agent = SelfClassifier(
            id=0 if is_alone else server.join(), policy=policy, problem=simulation.problem, oracle=TopK(length=LENGTH)
        )
        if kind in ("welcome", "components") and (told := server.welcome(agent.id)) is not None:
            agent.receive(told)
        if kind == "components" and isinstance(server.groups, PopulationPartition):
            agent.keep_mixture(server.groups)
        for place, t in enumerate(rounds):
            played = play_round(crowd.world, agent.oracle, t, user, agent.recommend, agent.observe)
            note(visits, number, place, played)
            if played.upload is not None and not is_alone:
                for download in server.receive(played.upload):
                    agent.receive(download)
    return visits


@contextmanager
def serve(crowd: Crowd, folder: Path) -> Iterator[tuple[InProcessTransport, OperatorClient]]:
    """A server whose store holds what the crowd uploaded."""
    url, policy, dimension = f"sqlite:///{folder / 'store.db'}", crowd.simulation.policy, crowd.world.dimension
    writer, numbers = Writer(lambda: open_store(url), policy, dimension), dict[int, int]()

    def fill(store: Store, state: ServerState) -> None:
        for nonce, upload in enumerate(crowd.uploads):
            if upload.agent not in numbers:
                numbers[upload.agent] = store.add_agent(np.random.default_rng(upload.agent).bytes(32), 0.0)
            record_upload(store, state, replace(upload, agent=numbers[upload.agent]), nonce)

    writer.submit(set_operator(TOKEN)).result()
    writer.submit(fill).result()
    transport = InProcessTransport(build_application(Service(writer, policy, dimension, FREE, FOR_SIMULATIONS)))
    try:
        yield transport, OperatorClient(transport, TOKEN)
    finally:
        transport.close()
        writer.close()


def play_over_protocol(crowd: Crowd, seed: int, newcomers: int, floor: int) -> Visits:
    """Newcomers that enrol at a server, and wait for each answer."""
    visits, oracle = np.zeros((newcomers, ROUNDS, 2)), TopK(length=LENGTH)
    with tempfile.TemporaryDirectory() as folder, serve(crowd, Path(folder)) as (transport, operator):
        pool = AgentPool("", store=":memory:", tokens=operator.create_tokens(newcomers), transport=Borrowed(transport),
                         policy=crowd.simulation.policy, problem=crowd.simulation.problem, oracle=oracle,
                         min_observations=floor)  # fmt: skip
        for number, user, rounds in list_visits(crowd, seed, newcomers):
            agent = pool.enrol(f"newcomer {number}")
            for place, t in enumerate(rounds):
                played = play_round(crowd.world, oracle, t, user, agent.recommend, agent.feedback)
                note(visits, number, place, played)
                if played.upload is not None and not agent.flush(60):
                    raise SystemExit(f"the server does not answer: {agent.trouble}")
        pool.close()
    return visits


def measure(crowd: str, options: argparse.Namespace, seed: int) -> dict[str, Visits]:
    """The visits of newcomers of each kind, and of doubles who are alone."""
    warnings.simplefilter("ignore")
    taught = teach(crowd, options.policy, seed, options.own)
    sizes = seed, options.newcomers, options.floor
    if options.service:
        return {
            "alone": play_in_library(taught, "alone", *sizes), "over the protocol": play_over_protocol(taught, *sizes),
            "welcome": play_in_library(taught, "welcome", *sizes),
        }  # fmt: skip
    return {kind: play_in_library(taught, kind, *sizes) for kind in ("alone", *options.kinds)}


def describe(visits: Visits, alone: Visits) -> str:
    """Regret after each span, its share of alone with an interval, and uploads."""
    spans = []
    for span in SPANS:
        regret, single = visits[:, :span, 0].sum(axis=1), alone[:, :span, 0].sum(axis=1)
        share = regret.mean() / single.mean()
        width = 1.96 * (regret - share * single).std(ddof=1) / single.mean() / np.sqrt(regret.size)
        spans.append(f"{span}: {regret.mean():5.2f} {share:5.2f} ± {width:.2f}")
    return "   ".join([*spans, f"uploads {visits[:, :50, 1].sum(axis=1).mean():.1f} in 50"])


def main() -> None:
    """Print a line for each crowd and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crowds", nargs="+", default=["1000:10:0.5", "10000:10:0.5"])
    parser.add_argument("--policy", default="fedc3ucb-p")
    parser.add_argument("--kinds", nargs="*", default=["welcome"], choices=KINDS)
    parser.add_argument("--service", action="store_true", help="over the protocol of the service, and in the library")
    parser.add_argument("--floor", type=int, default=0, help="fewest observations of a newcomer's upload")
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201, 202])
    parser.add_argument("--own", type=int, default=150)
    parser.add_argument("--newcomers", type=int, default=200, help="for each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        cells = {
            crowd: [pool.submit(measure, crowd, options, seed) for seed in options.seeds] for crowd in options.crowds
        }
        for crowd, jobs in cells.items():
            done = [job.result() for job in jobs]
            joined = {kind: np.concatenate([visits[kind] for visits in done]) for kind in done[0]}
            for kind, visits in joined.items():
                print(f"{crowd:<16}{kind:<18}{describe(visits, joined['alone'])}", flush=True)
            if options.service:
                is_same = np.array_equal(joined["welcome"], joined["over the protocol"])
                print(f"{crowd:<16}rounds over the protocol are those of the library, to the bit: {is_same}")


if __name__ == "__main__":
    main()
