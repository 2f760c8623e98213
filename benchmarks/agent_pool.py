"""Many agents in one process against a real server: memory, pairs per second, and a kill -9 in the middle.

A child process opens a pool and plays users one after the other. It writes the user of each returned `feedback` to a
pipe. It is killed in the middle, during exchanges and enrolments. Another pool then opens the same file and sends the
pending uploads. In the end, the rounds that the server holds of each agent plus those in its buffer must equal the
rounds in the pipe; one more round may have been saved before the kill.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from fedcascade import AgentPool
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.transport import HttpTransport

DIMENSION, ITEMS, LENGTH = 20, 50, 4
FLOOR = 8  # observations in an upload: two rounds of a user
SERVE = ["--dimension", str(DIMENSION), "--port", "0", "--rate", "1e6", "--burst", "1e6", "--address-rate", "1e6",
         "--address-burst", "1e6", "--min-observations", str(FLOOR), "--policy", "population"]  # fmt: skip


def draw_items(random: np.random.Generator) -> np.ndarray:
    """Draw items: rows of length 1, on the grid."""
    drawn = random.normal(size=(ITEMS, DIMENSION))
    return round_to_grid(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def play(url: str, store: str, users: int, rounds: int) -> None:
    """Play `rounds` rounds of every user; write the user of each feedback to stdout, measurements to stderr."""
    random, tokens = np.random.default_rng(0), Path(store).with_suffix(".tokens").read_text().split()
    offers = [draw_items(random) for _ in range(50)]
    with AgentPool(url, store=store, tokens=tokens, min_observations=FLOOR) as pool:
        began = time.perf_counter()
        agents = [pool.get(str(user)) for user in range(users)]
        agents[0].recommend(offers[0], LENGTH)  # compiled from here on
        report(f"made {users} agents in {time.perf_counter() - began:.1f} s")
        for turn in range(rounds):
            began, spent, own = time.perf_counter(), time.process_time(), time.thread_time()
            for user, agent in enumerate(agents):
                shown = agent.recommend(offers[(turn + user) % 50], LENGTH)
                agent.feedback(shown, int(random.integers(LENGTH)))
                os.write(1, user.to_bytes(4, "little"))
            wall, spent, own = time.perf_counter() - began, time.process_time() - spent, time.thread_time() - own
            report(
                f"turn {turn + 1}: {users / wall:.0f} pairs/s of wall time, {users / own:.0f} per second of a core in "
                f"recommend and feedback, {users / spent:.0f} with exchanges; {pool.unsent} uploads pending; "
                f"{read_memory():.0f} MB, {threading.active_count()} threads, {count_descriptors()} descriptors"
            )


def report(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def read_memory() -> float:
    """Return the memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def count_descriptors() -> int:
    """Count the open files and sockets of this process."""
    return len([*Path("/proc/self/fd").iterdir()])


def start_server(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a server; return it with its address."""
    command = [sys.executable, "-m", "fedcascade", "serve", "--store", f"sqlite:///{folder / 'server.db'}", *SERVE]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if " on http" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, f"http://127.0.0.1:{line.rsplit(':', 1)[1].strip()}"
    raise SystemExit("the server did not start")


def kill_in_the_middle(command: list[str], users: int, kill_after: int) -> Counter[int]:
    """Run a pool in a child, kill it after ``kill_after`` feedbacks, and count the returned ones by user."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    body = child.stdout.read(4 * kill_after)
    os.kill(child.pid, signal.SIGKILL)
    body += child.stdout.read()
    child.wait()
    print(f"killed after {len(body) // 4} pairs of {users} agents")
    return Counter(np.frombuffer(body[: len(body) // 4 * 4], "<i4").tolist())


def count_known(pool: AgentPool, user: int) -> int:
    """Count the rounds of a user that the server holds or that are pending."""
    agent = pool.get(str(user))
    held = agent.client.fetch_standing().rounds if agent.id else 0
    state = agent.memory.state
    return held + state.local.buffer.rounds + sum(upload.statistics.rounds for upload in state.outbox)


def main() -> None:
    """Play, kill, open again, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each user; killed in the middle of the last")
    parser.add_argument("--play", nargs=2, metavar=("URL", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        play(*options.play, options.agents, options.rounds)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, url = start_server(folder)
        try:
            operator = OperatorClient(HttpTransport(url, timeout=60.0), (folder / "operator.token").read_text().strip())
            tokens = [token for _ in range(0, options.agents, 10_000) for token in operator.create_tokens(10_000)]
            (folder / "agents.tokens").write_text("\n".join(tokens))
            command = [sys.executable, __file__, "--agents", str(options.agents), "--rounds", str(options.rounds),
                       "--play", url, str(folder / "agents.db")]  # fmt: skip
            returned = kill_in_the_middle(command, options.agents, int((options.rounds - 0.5) * options.agents))
            began = time.perf_counter()
            with AgentPool(url, store=str(folder / "agents.db"), min_observations=FLOOR) as pool:
                waiting = pool.unsent
                print(f"opened again in {time.perf_counter() - began:.1f} s, {waiting} uploads pending")
                while not pool.flush(60.0):
                    print(f"{pool.unsent} uploads pending: {pool.trouble}")
                print(f"all answered after {time.perf_counter() - began:.1f} s, {read_memory():.0f} MB")
                extra = Counter(count_known(pool, user) - returned[user] for user in range(options.agents))
            lost = -sum(count * number for count, number in extra.items() if count < 0)
            more = sum(count * number for count, number in extra.items() if count > 0)
            print(f"{lost} rounds lost, {max(0, more - 1)} doubled, {min(1, more)} saved before the kill")
            overview = operator.fetch_overview()
            print(f"the server knows {overview.rounds} rounds of {overview.enrolled} agents")
            raise SystemExit(lost or more > 1)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
