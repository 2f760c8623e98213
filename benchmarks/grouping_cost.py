"""Cost of an upload on the server, by the number of active agents: ``python benchmarks/grouping_cost.py``.

Prints the median and p99 of processor time on one core, and the growth of memory. The users of ten clusters have
uploaded thirty lists each. ``--guarded`` measures the policy of a service.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcascade import POLICIES, Synthetic
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

POLICY_NAMES = ("population", "fedlinucb")
LISTS, LENGTH, CLUSTERS = 30, 4, 10
WARM = 20  # uploads before the measured ones


def make_uploads(world: Synthetic, lists: int, seed: int) -> list[Statistics]:
    """Return the statistics of some lists of each user of a small environment."""
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


def make_server(name: str, agents: int, is_guarded: bool, held: list[Statistics]) -> Server:
    """Make a server after one upload of each agent."""
    policy = guard_policy(POLICIES[name]) if is_guarded else POLICIES[name]
    server = Server(policy=policy, agents=agents, dimension=held[0].dimension)
    for agent in range(agents):
        statistics = held[agent % len(held)]
        server.take(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics))
    return server


def measure_uploads(server: Server, uploads: list[Statistics], repetitions: int) -> NDArray[np.float64]:
    """Return the milliseconds of processor time of each upload."""
    random, seconds = np.random.default_rng(2), []
    for number in range(repetitions + WARM):
        agent = int(random.integers(len(server.holdings)))
        statistics = uploads[agent % len(uploads)]
        begin = time.thread_time()
        server.receive(Upload(agent=agent, sequence=number + 2, cause=Cause.FORCED, statistics=statistics))
        seconds.append(time.thread_time() - begin)
    return 1000.0 * np.array(seconds[WARM:])


def read_resident_bytes() -> int:
    """Return the memory of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    """Print a line for each number of agents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--policy", nargs="+", default=POLICY_NAMES[:1], choices=POLICY_NAMES)
    parser.add_argument("--guarded", action="store_true")
    parser.add_argument("--repetitions", type=int, default=400)
    options = parser.parse_args()
    world = Synthetic(users=40, clusters=CLUSTERS, seed=100)
    held, uploads = make_uploads(world, LISTS, 1), make_uploads(world, LISTS // 3, 2)
    for name in options.policy:
        measure_uploads(make_server(name, 200, options.guarded, held), uploads, 5)  # compiles
        print(f"{name}: ms per upload  median      p99  bytes per agent")
        for agents in options.agents:
            before = read_resident_bytes()
            server = make_server(name, agents, options.guarded, held)
            taken = measure_uploads(server, uploads, options.repetitions)
            size = (read_resident_bytes() - before) / agents
            shown = "".join(f"{number:>9.3f}" for number in np.percentile(taken, [50, 99]))
            print(f"{agents:>14,} agents    {shown} {size:>16,.0f}", flush=True)
            del server


if __name__ == "__main__":
    main()
