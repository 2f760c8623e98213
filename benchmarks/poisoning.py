"""Poisoning with plausible uploads of maximal weight: regret of honest users, and the cost of each defence.

    python benchmarks/poisoning.py [--rounds 10000] [--seeds 5] [--arrivals zipf] [--agents 1]

A poisoning agent joins the simulated users. It claims as many rounds as the default bounds of a server allow: the burst
at once and the rate afterwards, each round with the longest list. The first such agent is there from the beginning;
others join while honest users play their first rounds. Regret is that of honest users, divided by that of the same
policy without poisoning and without a defence, over the same seeds: mean and 95 % interval.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.grouping.graph.complete import HeterogeneityGraph
from fedcascade.federation.grouping.graph.guarded import GuardedGraph
from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.policies import POLICIES, Policy, get_policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.federation.sharing import Sharing
from fedcascade.intervals import estimate_ratio
from fedcascade.learning.statistics import Statistics
from fedcascade.service.server.settings import UploadBounds
from fedcascade.simulation import scenario
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Recorder

BOUNDS = UploadBounds()
ROUNDS_PER_HOUR = 6.0  # of an honest user, a tenth of the bounds
FIRST_ROUNDS = 10  # of an honest user, during which poisoning agents join
SAMPLE_ROUNDS = 400  # rounds whose items make the poisoned gram
ATTACKS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "no clicks": lambda weights: np.zeros(len(weights)),
    "inverted": lambda weights: 1.0 - weights,
    "all click": lambda weights: np.ones(len(weights)),
}


def build_poison(environment: Synthetic, attack: str) -> Statistics:
    """Return the expected statistics of a million observations of the environment's items with false clicks."""
    listed = np.vstack([environment.items(t)[:10] for t in range(1, SAMPLE_ROUNDS + 1)]).astype(np.float64)
    features, users = listed.astype(np.float32), range(environment.users)
    clicked = ATTACKS[attack](np.mean([environment.weights(1, user, features) for user in users], axis=0))
    share = 10**6 / len(listed)
    return Statistics(share * listed.T @ listed, share * listed.T @ clicked, 10**6, int(share * clicked.sum()), 10**6)


class PoisonedServer(Server):
    """A server with poisoning agents after the honest ones, which upload first, as often as their bounds allow."""

    poison: Statistics | None = None
    poisoning_agents = 1

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Any = None) -> None:
        super().__init__(policy=policy, agents=agents, dimension=dimension, truth=truth)
        self.honest = agents
        self.claimed = np.array(
            [0 for _ in range(self.poisoning_agents) if self.poison is not None and self.join()], np.int64
        )

    def take(self, upload: Upload, *collected: Upload) -> Downloads:
        """Upload first for poisoning agents that may claim a tenth more than they have."""
        hours = self.rounds / (self.honest * ROUNDS_PER_HOUR)
        longest = BOUNDS.longest_list if self.policy.privacy is None else 1  # of a list, private uploads hold one item
        allowed = int(BOUNDS.rounds_burst + hours * BOUNDS.rounds_per_hour) * longest
        present = self.claimed[: 1 + int(self.rounds * self.claimed.size / (FIRST_ROUNDS * self.honest))]
        for number in np.flatnonzero(allowed > 1.1 * present).tolist():
            assert self.poison is not None
            more, rounds = self.poison.scale((allowed - present[number]) / self.poison.count), self.rounds
            agent = self.honest + number
            super().take(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=more))
            self.claimed[number], self.rounds = allowed, rounds
        return super().take(upload, *collected)


class HonestRecorder(Recorder):
    """A recorder that compares only the groups of honest agents with the truth."""

    def record_checkpoint(self, round_: int, labels: NDArray[np.int64]) -> None:
        """Leave out poisoning agents, which come last."""
        super().record_checkpoint(round_, labels[: self.truth.size])


class Capped(Sharing):
    """Bounded weights without limits on answers."""

    def limit(self, own: Statistics, answer: Statistics) -> Statistics:  # noqa: ARG002
        """Leave the answer as it is."""
        return answer


def share(sharing: Sharing, policy: Policy) -> Policy:
    """Return the policy with other rules for sharing."""
    return replace(policy, sharing=sharing)


class LazyServer(Server):
    """A server with one more agent, which uploads one observation at the beginning and nothing afterwards."""

    has_lazy_agent = False

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Any = None) -> None:
        super().__init__(policy=policy, agents=agents, dimension=dimension, truth=truth)
        if self.has_lazy_agent:
            gram = np.zeros((dimension, dimension))
            gram[0, 0] = 1.0
            once = Statistics(gram, np.zeros(dimension), 1, 0, 1)
            self.receive(Upload(agent=self.join(), sequence=1, cause=Cause.FORCED, statistics=once))


def measure_lazy(rounds: int, seeds: range) -> None:
    """Print the second half's regret without and with the lazy agent, in the paper's graph and in a guarded one."""
    scenario.Server, scenario.Recorder = LazyServer, HonestRecorder  # type: ignore[attr-defined,misc]
    for alpha_d in (1.5, 3.0):
        for grouping in (HeterogeneityGraph(alpha_d=alpha_d), GuardedGraph(alpha_d=alpha_d)):
            policy = replace(POLICIES["fedc3ucb-h"].with_beta(2.0), grouping=grouping)
            cells = []
            for LazyServer.has_lazy_agent in (False, True):
                environments = [Synthetic(users=40, clusters=5, dimension=20, items=50, seed=seed) for seed in seeds]
                traces = [simulate(each, policy, rounds=rounds, checkpoints=2) for each in environments]
                halves = [trace.regret - trace.curve[0].regret for trace in traces]
                cells += [f"{np.mean(halves):.0f}", "/".join(str(len({*trace.partition[:40]})) for trace in traces)]
            print(f"| {alpha_d:g} | {type(grouping).__name__} | {' | '.join(cells)} |", flush=True)


DEFENCES: dict[str, Callable[[Policy], Policy]] = {
    "none": lambda policy: policy,
    "cap": partial(share, Capped(min_others=0)),
    "trust": partial(share, Sharing(min_others=0, max_weight=math.inf)),
    "cap and trust": partial(share, Sharing(min_others=0)),
    "as served": guard_policy,
}


def play(policy: Policy, seed: int, *, rounds: int, attack: str | None, **sizes: Any) -> float:
    """Return the regret of honest users in one run."""
    environment = Synthetic(dimension=20, items=50, seed=seed, **sizes)
    PoisonedServer.poison = None if attack is None else build_poison(environment, attack)
    return float(simulate(environment, policy, rounds=rounds, checkpoints=1).regret)


def main() -> None:
    """Print a table for each policy and beta."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=900)
    parser.add_argument("--policies", nargs="+", default=["population", "fedc3ucb-h"])
    parser.add_argument("--betas", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES))
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--clusters", type=int, default=5)
    parser.add_argument("--arrivals", choices=["uniform", "zipf"], default="uniform", help="activity of users")
    parser.add_argument("--agents", type=int, default=1, help="number of poisoning agents")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--lazy", action="store_true", help="measure one idle agent instead, under fedc3ucb-h")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.lazy:
        measure_lazy(options.rounds, seeds)
        return
    scenario.Server, scenario.Recorder = PoisonedServer, HonestRecorder  # type: ignore[attr-defined,misc]
    PoisonedServer.poisoning_agents = options.agents
    for name in options.policies:
        for beta in options.betas:
            sizes = {"users": options.users, "clusters": options.clusters, "arrivals": options.arrivals}
            row = partial(play, rounds=options.rounds, **sizes)
            chosen = get_policy(name).with_beta(beta)
            plain = [row(chosen, seed, attack=None) for seed in seeds]
            for defence in options.defences:
                policy = DEFENCES[defence](chosen)
                cells = {}
                for attack in (None, *options.attacks):
                    ratio = estimate_ratio([row(policy, seed, attack=attack) for seed in seeds], plain)
                    cells[attack or "no attack"] = ratio.mean, ratio.half_width
                if options.json:
                    print(json.dumps({"policy": name, "beta": beta, "defence": defence, **cells}), flush=True)
                    continue
                text = " | ".join(f"{mean:.2f} +- {half:.2f}" for mean, half in cells.values())
                print(f"| {name} | {beta:g} | {defence} | {text} |", flush=True)


if __name__ == "__main__":
    main()
