"""What an upload costs the server, by the number of agents that have spoken: ``python benchmarks/grouping_cost.py``.

Processor time on one core. Agents are users of ten clusters who have answered thirty lists each; they are made, not
played. ``--groups`` says how many groups they are in before the first upload that is measured; ``--guarded`` measures
the policy as a service runs it. Bytes are those that the process has more than before the agents came.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcascade import POLICIES, Synthetic
from fedcascade.federation.grouping.evidence import EvidencePartition
from fedcascade.federation.grouping.population import PopulationPartition
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

POLICY_NAMES = ("fedlinucb", "fedc3ucb-e", "fedc3ucb-p")
LISTS, LENGTH, CLUSTERS = 30, 4, 10
WARM = 20  # uploads before the first that is measured


def make_uploads(world: Synthetic, lists: int, seed: int) -> list[Statistics]:
    """The statistics of some lists of each user of a small world."""
    random = np.random.default_rng(seed)
    uploads = []
    for user in range(world.users):
        total = Statistics.zero(world.dimension)
        for round_ in range(1, lists + 1):
            listed = world.items(round_ + lists * user + seed)[:LENGTH]
            clicked = random.random(LENGTH) < world.weights(round_, user, listed)
            total = total.observe(listed, int(np.argmax(clicked)) if clicked.any() else None)
        uploads.append(total)
    return uploads


def make_server(
    name: str, agents: int, groups: int, is_guarded: bool, held: list[Statistics], clusters: NDArray[np.int64]
) -> Server:
    """A server with which everybody has spoken; made at once, which is quicker than to let everybody upload."""
    policy = POLICIES[name].with_beta(2.0)
    policy = guard_policy(policy) if is_guarded else policy
    server = Server(policy=policy, agents=agents, dimension=held[0].dimension)
    kinds, holdings = np.arange(agents) % len(held), server.holdings
    holdings.theta[:], holdings.length[:], holdings.width[:] = 0.0, 0.0, 1.0  # pages that the system has given out
    for kind, statistics in enumerate(held):
        mine = slice(kind, None, len(held))
        holdings.gram[mine], holdings.moment[mine] = statistics.gram, statistics.moment
        counts = statistics.count, statistics.clicks, statistics.rounds
        holdings.count[mine], holdings.clicks[mine], holdings.rounds[mine] = counts
    state = server.groups
    if isinstance(state, PopulationPartition):
        state.spoken = np.random.default_rng(3).permutation(agents)
        state.become_many()
    elif isinstance(state, EvidencePartition):
        state.labels[:] = clusters[kinds] + CLUSTERS * (np.arange(agents) // len(held) % (groups // CLUSTERS))
        state.spoken = np.random.default_rng(3).permutation(agents)
        state.own_evidence[:] = np.array([state.rule.measure(statistics) for statistics in held])[kinds]
        listed = np.unique(state.labels)
        state.listed_labels[: listed.size] = listed
        state.rebuild()
    else:
        state.sum_group(0)
    return server


def measure_uploads(server: Server, uploads: list[Statistics], repetitions: int) -> NDArray[np.float64]:
    """Milliseconds of processor time that each of some uploads takes."""
    random, seconds = np.random.default_rng(2), []
    for number in range(repetitions + WARM):
        agent = int(random.integers(len(server.holdings)))
        statistics = uploads[agent % len(uploads)]
        begin = time.thread_time()
        server.receive(Upload(agent=agent, sequence=number + 1, cause=Cause.FORCED, statistics=statistics))
        seconds.append(time.thread_time() - begin)
    return 1000.0 * np.array(seconds[WARM:])


def read_resident_bytes() -> int:
    """How much memory the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    """Print a line for each number of agents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[40, 1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--policy", nargs="+", default=POLICY_NAMES, choices=POLICY_NAMES)
    parser.add_argument("--groups", type=int, default=CLUSTERS)
    parser.add_argument("--guarded", action="store_true")
    parser.add_argument("--repetitions", type=int, default=400)
    options = parser.parse_args()
    world = Synthetic(users=40, clusters=CLUSTERS, seed=100)
    clusters = np.array(world.clusters)
    held, uploads = make_uploads(world, LISTS, 1), make_uploads(world, LISTS // 3, 2)
    for name in options.policy:
        measure_uploads(make_server(name, 200, min(options.groups, 200), options.guarded, held, clusters), uploads, 5)
        print(f"{name}: ms per upload  median      p99    p99.9      max  bytes per agent")
        for agents in options.agents:
            before = read_resident_bytes()
            server = make_server(name, agents, options.groups, options.guarded, held, clusters)
            taken = measure_uploads(server, uploads, options.repetitions)
            size = (read_resident_bytes() - before) / agents
            shown = "".join(f"{number:>9.3f}" for number in np.percentile(taken, [50, 99, 99.9, 100]))
            print(f"{agents:>14,} agents    {shown} {size:>16,.0f}", flush=True)
            del server


if __name__ == "__main__":
    main()
