"""What an upload costs the server, by the number of agents that have spoken: ``python benchmarks/grouping_cost.py``.

Processor time on one core, the median of some uploads. Agents are users of ten clusters who have answered thirty lists
each; they are made, not played.
"""

import argparse
import time
from statistics import median

import numpy as np

from fedcascade import POLICIES, Synthetic
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

POLICY_NAMES = ("fedlinucb", "fedc3ucb-e")
LISTS, LENGTH, CLUSTERS = 30, 4, 10


def make_uploads(world: Synthetic) -> list[Statistics]:
    """The statistics of thirty lists of each user of a small world."""
    random = np.random.default_rng(1)
    uploads = []
    for user in range(world.users):
        total = Statistics.zero(world.dimension)
        for round_ in range(1, LISTS + 1):
            listed = world.items(round_ + LISTS * user)[:LENGTH]
            clicked = random.random(LENGTH) < world.weights(round_, user, listed)
            total = total.observe(listed, int(np.argmax(clicked)) if clicked.any() else None)
        uploads.append(total)
    return uploads


def measure_upload(name: str, agents: int, uploads: list[Statistics], repetitions: int) -> float:
    """Milliseconds of processor time that an upload takes after everybody has spoken twice."""
    server = Server(policy=POLICIES[name].with_beta(2.0), agents=agents, dimension=uploads[0].dimension)
    random = np.random.default_rng(2)
    for agent in range(agents):  # everybody has data, which is quicker than to let everybody upload
        server.holdings.add(agent, uploads[agent % len(uploads)])
        server.groups.labels[agent] = agent % CLUSTERS
    if hasattr(server.groups, "spoken"):
        server.groups.spoken = np.arange(agents)
        server.groups.own_evidence[:] = server.groups.rule.measure(uploads[0])
    for label in range(CLUSTERS):
        server.groups.sum_group(label)
    seconds = []
    for number in range(repetitions + 2):
        agent = int(random.integers(agents))
        statistics = uploads[agent % len(uploads)]
        begin = time.process_time()
        server.receive(Upload(agent=agent, sequence=number + 1, cause=Cause.FORCED, statistics=statistics))
        seconds.append(time.process_time() - begin)
    return 1000.0 * median(seconds[2:])


def main() -> None:
    """Print a line for each number of agents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1_000, 5_000, 20_000])
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    uploads = make_uploads(Synthetic(users=40, clusters=CLUSTERS, seed=100))
    print("ms per upload  " + "".join(f"{name:>14}" for name in POLICY_NAMES))
    for agents in options.agents:
        costs = [measure_upload(name, agents, uploads, options.repetitions) for name in POLICY_NAMES]
        print(f"{agents:>8,} agents" + "".join(f"{cost:>14.2f}" for cost in costs), flush=True)


if __name__ == "__main__":
    main()
