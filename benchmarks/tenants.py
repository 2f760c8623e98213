"""Latency of a quiet tenant while another one is flooded: ``python benchmarks/tenants.py 15``, the number of turns.

The flood needs processor time of its own, so it is compared with the same flood at a server in another process. It
consists of exchanges, or with ``python benchmarks/tenants.py 15 pages`` of requests for terms, page, metrics and agent.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.service.helpers import build_unit_upload
from tests.service.test_tenants import TenantServer

FLOODERS, SECONDS, PAUSE = 24, 6.0, 0.01
FLOOD = """
import sys, threading, time
sys.path.insert(0, sys.argv[4])
PAGES = ("/v1/terms", "/", "/metrics", "/agent/index.js")
from nacl.signing import SigningKey
from fedcascade.service.agent import client
from fedcascade.service.agent.transport import HttpTransport
from tests.service.helpers import build_unit_upload
def flood(token):
    transport = HttpTransport(sys.argv[1], timeout=60.0)
    key = SigningKey.generate()
    agent = client.AgentClient(transport, key, client.enrol_agent(transport, token, key).agent)
    sequence = 0
    while True:
        sequence += 1
        if sys.argv[5] == "pages":
            transport.send("GET", PAGES[sequence % 4], b"", {})
        else:
            agent.exchange(build_unit_upload(sequence, sequence % 3, 3))
        counts[token] = sequence
counts = {}
operator = client.OperatorClient(HttpTransport(sys.argv[1]), sys.argv[2])
for token in operator.create_tokens(int(sys.argv[3])):
    threading.Thread(target=flood, args=(token,), daemon=True).start()
time.sleep(2)
print("flooding", flush=True)
before, began = sum(counts.values()), time.monotonic()
sys.stdin.read()
print((sum(counts.values()) - before) / (time.monotonic() - began))
"""


@contextmanager
def flood(server: TenantServer) -> Iterator[list[float]]:
    """Flood the tenant ``home`` from another process; the list gets the requests per second."""
    rates = list[float]()
    root, kind = str(Path(__file__).parents[1]), "".join(sys.argv[2:])
    arguments = [f"{server.root}/t/home", server.read_token("home"), str(FLOODERS), root, kind]
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flooding\n"
        yield rates
        rates.append(float(process.communicate()[0]))


def measure(server: TenantServer) -> tuple[float, float]:
    """Return median and p99 of the exchanges of one agent of the tenant ``search``, in milliseconds."""
    times = []
    with server.connect("search") as search:
        agent = search.enrol()
        end = time.monotonic() + SECONDS
        for sequence in count(1):
            began = time.perf_counter()
            agent.exchange(build_unit_upload(sequence, 0, 5))
            times.append(1000 * (time.perf_counter() - began))
            time.sleep(PAUSE)
            if time.monotonic() > end:
                return float(np.median(times[5:])), float(np.quantile(times[5:], 0.99))
    raise AssertionError


def describe_ratios(late: list[float], base: list[float]) -> str:
    """Describe the median of the ratios of the turns, with a 95 % interval of the bootstrap."""
    ratios = np.array(late) / np.array(base)
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return f"{np.median(ratios):.2f} times [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Print the latencies of the quiet tenant in turns: alone, with a flood elsewhere, with a flooded neighbour."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    cases: dict[str, list[tuple[float, float, float]]] = {"alone": [], "elsewhere": [], "neighbour": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = []
        for name in ("one", "other"):
            (Path(folder) / name).mkdir()
            servers.append(TenantServer(Path(folder) / name, "sqlite:///store.db"))
            stack.callback(servers[-1].stop)
        measure(servers[0])
        flooded = {"alone": None, "elsewhere": servers[1], "neighbour": servers[0]}
        for turn in range(turns):
            order = list(cases) if turn % 2 else list(cases)[::-1]
            for case in order:
                target = flooded[case]
                with flood(target) if target is not None else nullcontext([0.0]) as rates:
                    median, late = measure(servers[0])
                cases[case].append((median, late, rates[0]))
                line = f"{turn}: {case}: {rates[0]:.0f} requests/s, median {median:.1f} ms, p99 {late:.1f} ms"
                print(f"{line}, load {os.getloadavg()[0]:.1f}", flush=True)
    medians, lates, _ = ({case: [row[i] for row in rows] for case, rows in cases.items()} for i in range(3))
    for words, values in (("median", medians), ("p99", lates)):
        for base in ("elsewhere", "alone"):
            print(f"{words} beside a flood, against {base}: {describe_ratios(values['neighbour'], values[base])}")


if __name__ == "__main__":
    main()
