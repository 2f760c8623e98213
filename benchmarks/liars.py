"""Liars of plausible but maximal weight: what honest users lose to them, and what each defence costs without them.

    python benchmarks/liars.py [--rounds 10000] [--seeds 5] [--arrivals zipf] [--liars 1]

A liar is one more agent beside the simulated users. It claims all that a server of default bounds lets it claim: the
burst of rounds at once and its rate afterwards, each round as long as the longest list. The first liar is there from
the beginning; others come while honest users play their first rounds. Regret is that of honest users,
as a multiple of the same policy without a liar and without a defence, over the same seeds: mean and 95 % interval.
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
from fedcascade.experiments.comparisons import estimate_ratio
from fedcascade.federation.grouping.graph.complete import HeterogeneityGraph
from fedcascade.federation.grouping.graph.guarded import GuardedGraph
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.federation.sharing import Sharing
from fedcascade.learning.statistics import Statistics
from fedcascade.service.server.settings import UploadBounds
from fedcascade.simulation import scenario
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Recorder

BOUNDS = UploadBounds()
ROUNDS_PER_HOUR = 6.0  # of an honest user, a tenth of what the bounds allow
FIRST_ROUNDS = 10  # of an honest user, during which liars come
SAMPLE_ROUNDS = 400  # whose items the liar's gram is made of
LIES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "nobody clicks": lambda weights: np.zeros(len(weights)),
    "inverted": lambda weights: 1.0 - weights,
    "all click": lambda weights: np.ones(len(weights)),
}


def tell_lie(world: Synthetic, lie: str) -> Statistics:
    """The expected statistics of a million observations of the world's items, with clicks as the liar says."""
    listed = np.vstack([world.items(t)[:10] for t in range(1, SAMPLE_ROUNDS + 1)]).astype(np.float64)
    weights = np.mean([world.weights(1, user, listed.astype(np.float32)) for user in range(world.users)], axis=0)
    clicked = LIES[lie](weights)
    share = 10**6 / len(listed)
    return Statistics(share * listed.T @ listed, share * listed.T @ clicked, 10**6, int(share * clicked.sum()), 10**6)


class PoisonedServer(Server):
    """A server with some more agents, the last, which upload before others do as often as their bounds allow."""

    lie: Statistics | None = None
    liars = 1

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Any = None) -> None:
        super().__init__(policy=policy, agents=agents, dimension=dimension, truth=truth)
        self.honest = agents
        self.claimed = np.array([0 for _ in range(self.liars) if self.lie is not None and self.join()], np.int64)

    def take(self, upload: Upload, *collected: Upload) -> tuple[Download, ...]:
        """Let those liars speak first that may claim a tenth more than they have."""
        hours = self.rounds / (self.honest * ROUNDS_PER_HOUR)
        allowed = int(BOUNDS.rounds_burst + hours * BOUNDS.rounds_per_hour) * BOUNDS.longest_list
        present = self.claimed[: 1 + int(self.rounds * self.claimed.size / (FIRST_ROUNDS * self.honest))]
        for liar in np.flatnonzero(allowed > 1.1 * present).tolist():
            assert self.lie is not None, "without a lie there is no liar"
            more, rounds = self.lie.scale((allowed - present[liar]) / self.lie.count), self.rounds
            place = self.honest + liar
            super().take(Upload(agent=place, sequence=1, cause=Cause.FORCED, statistics=more))
            self.claimed[liar], self.rounds = allowed, rounds
        return super().take(upload, *collected)


class HonestRecorder(Recorder):
    """Compares the groups of honest agents alone with the truth."""

    def record_checkpoint(self, round_: int, labels: NDArray[np.int64]) -> None:
        """Leave out the liar, who is the last."""
        super().record_checkpoint(round_, labels[: self.truth.size])


class Capped(Sharing):
    """Bounded weights alone: what is left of the others is believed whole."""

    def limit(self, own: Statistics, answer: Statistics) -> Statistics:  # noqa: ARG002
        """Leave the answer as it is."""
        return answer


def share(sharing: Sharing, policy: Policy) -> Policy:
    """The policy with a way to share."""
    return replace(policy, sharing=sharing)


class LazyServer(Server):
    """A server with one more agent, the last, which says one observation at the beginning and nothing after."""

    is_there = False

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Any = None) -> None:
        super().__init__(policy=policy, agents=agents, dimension=dimension, truth=truth)
        if self.is_there:
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
            for LazyServer.is_there in (False, True):
                worlds = [Synthetic(users=40, clusters=5, dimension=20, items=50, seed=seed) for seed in seeds]
                traces = [simulate(world, policy, rounds=rounds, checkpoints=2) for world in worlds]
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


def play(policy: Policy, seed: int, *, rounds: int, lie: str | None, **sizes: Any) -> float:
    """Honest regret of one run."""
    world = Synthetic(dimension=20, items=50, seed=seed, **sizes)
    PoisonedServer.lie = None if lie is None else tell_lie(world, lie)
    return float(simulate(world, policy, rounds=rounds, checkpoints=1).regret)


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
    parser.add_argument("--arrivals", choices=["uniform", "zipf"], default="uniform", help="how active users are")
    parser.add_argument("--liars", type=int, default=1)
    parser.add_argument("--lies", nargs="*", default=list(LIES))
    parser.add_argument("--lazy", action="store_true", help="measure one silent agent instead, under fedc3ucb-h")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.lazy:
        measure_lazy(options.rounds, seeds)
        return
    scenario.Server, scenario.Recorder = PoisonedServer, HonestRecorder  # type: ignore[attr-defined,misc]
    lies, PoisonedServer.liars = [None, *options.lies], options.liars
    for name in options.policies:
        for beta in options.betas:
            sizes = {"users": options.users, "clusters": options.clusters, "arrivals": options.arrivals}
            row = partial(play, rounds=options.rounds, **sizes)
            plain = [row(POLICIES[name].with_beta(beta), seed, lie=None) for seed in seeds]
            for defence in options.defences:
                policy = DEFENCES[defence](POLICIES[name].with_beta(beta))
                cells = {}
                for lie in lies:
                    ratio = estimate_ratio([row(policy, seed, lie=lie) for seed in seeds], plain)
                    cells[lie or "nobody lies"] = ratio.mean, ratio.half_width
                if options.json:
                    print(json.dumps({"policy": name, "beta": beta, "defence": defence, **cells}), flush=True)
                    continue
                text = " | ".join(f"{mean:.2f} +- {half:.2f}" for mean, half in cells.values())
                print(f"| {name} | {beta:g} | {defence} | {text} |", flush=True)


if __name__ == "__main__":
    main()
