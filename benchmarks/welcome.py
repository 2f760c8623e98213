"""What a newcomer loses in its first rounds, in a system that has learned from many: ``python benchmarks/welcome.py``.

Users play in the exact engine. Then newcomers come, each with the taste of somebody who is there. A newcomer is told
what the server knows of anybody before its first list, and speaks like everybody else from then on; its double learns
alone from the same rounds. The world is that of ``benchmarks/crowd.py``. Regret is summed over the first 20 and the
first 50 rounds; the interval is that of the mean over newcomers, at 95 %.
"""

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
from crowd import make_world
from numpy.typing import NDArray

from fedcascade import POLICIES, TopK
from fedcascade.federation.agent import Agent
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.event_driven import EventDrivenEngine
from fedcascade.simulation.reference import play_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation

LENGTH, FIRST, ROUNDS = 4, 20, 50


def measure_newcomers(crowd: str, name: str, seed: int, own: int, newcomers: int) -> NDArray[np.float64]:
    """Regret per round of newcomers that are welcomed and of their doubles that are alone, and uploads."""
    warnings.simplefilter("ignore")
    world, beta = make_world(crowd, seed)
    scenario = Scenario(world, POLICIES[name].with_beta(beta), own * world.users, TopK(length=LENGTH), 1)
    simulation = prepare_simulation(scenario)
    with ThreadPoolExecutor(1) as pool:
        EventDrivenEngine(ExchangeDriver(scenario, simulation, is_packed=True), pool, 1, None).play(lambda _: None)
    random, alone = np.random.default_rng(seed), POLICIES["fedind"].with_beta(beta)
    results = np.zeros((newcomers, 3, ROUNDS))
    for newcomer in range(newcomers):
        user, first = int(random.integers(world.users)), scenario.rounds + 1 + ROUNDS * newcomer
        for kind, policy in enumerate((simulation.policy, alone)):
            server = simulation.server if kind == 0 else None
            agent = make_newcomer(policy, simulation.problem, server)
            for place in range(ROUNDS):
                played = play_round(world, scenario.oracle, first + place, user, agent.recommend, agent.observe)
                results[newcomer, kind, place] = played.regret
                if played.upload is not None and server is not None:
                    results[newcomer, 2, place] = 1
                    for download in server.receive(played.upload):
                        agent.receive(download)
    return results


def make_newcomer(policy: Policy, problem: ProblemSize, server: Server | None) -> Agent:
    """An agent without data, which a server welcomes if there is one."""
    if server is None:
        return Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=LENGTH))
    agent = Agent(id=server.join(), policy=policy, problem=problem, oracle=TopK(length=LENGTH))
    agent.receive(server.answer(agent.id))
    return agent


def describe(regret: NDArray[np.float64], alone: NDArray[np.float64]) -> str:
    """A mean, and its share of alone with an interval."""
    share, count = regret.mean() / alone.mean(), regret.size
    width = 1.96 * (regret - share * alone).std(ddof=1) / alone.mean() / np.sqrt(count)
    return f"{regret.mean():5.2f} of {alone.mean():5.2f}: {share:4.2f} ± {width:.2f}"


def main() -> None:
    """Print a line for each crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crowds", nargs="+", default=["1000:10:0.5", "10000:10:0.5"])
    parser.add_argument("--policy", default="fedc3ucb-p")
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201, 202])
    parser.add_argument("--own", type=int, default=150)
    parser.add_argument("--newcomers", type=int, default=200, help="for each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        cells = {
            crowd: [
                pool.submit(measure_newcomers, crowd, options.policy, seed, options.own, options.newcomers)
                for seed in options.seeds
            ]
            for crowd in options.crowds
        }
        for crowd, jobs in cells.items():
            results = np.concatenate([job.result() for job in jobs])
            shares = [describe(*results[:, :2, :most].sum(axis=2).T) for most in (FIRST, ROUNDS)]
            uploads = results[:, 2].sum(axis=1).mean()
            print(
                f"{crowd:<20} first {FIRST}: {shares[0]}   first {ROUNDS}: {shares[1]}   uploads {uploads:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
