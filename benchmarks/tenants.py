"""Latency of a quiet tenant while another one is flooded: ``python benchmarks/tenants.py``.

The flood needs processor time of its own, so it is compared with the same flood at a server in another process.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.service.helpers import build_unit_upload
from tests.service.test_tenants import TenantServer

FLOODERS, SECONDS, PAUSE = 24, 12.0, 0.04
FLOOD = """
import sys, threading, time
sys.path.insert(0, sys.argv[4])
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
    """Flood the tenant ``home`` from another process; the list gets the exchanges per second."""
    rates = list[float]()
    arguments = [f"{server.root}/t/home", server.read_token("home"), str(FLOODERS), str(Path(__file__).parents[1])]
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flooding\n"
        yield rates
        rates.append(float(process.communicate()[0]))


def measure(server: TenantServer) -> tuple[float, float]:
    """Return median and 99th percentile of the exchanges of one agent of the tenant ``search``, in milliseconds."""
    times = []
    with server.connect("search") as search:
        agent = search.enrol()
        for sequence in range(1, int(SECONDS / PAUSE)):
            began = time.perf_counter()
            agent.exchange(build_unit_upload(sequence, 0, 5))
            times.append(1000 * (time.perf_counter() - began))
            time.sleep(PAUSE)
    return float(np.median(times[5:])), float(np.quantile(times[5:], 0.99))


def main() -> None:
    """Print the latencies of the quiet tenant: alone, with a flood elsewhere, with a flooded neighbour."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = []
        for name in ("one", "other"):
            (Path(folder) / name).mkdir()
            servers.append(TenantServer(Path(folder) / name, "sqlite:///store.db"))
            stack.callback(servers[-1].stop)
        measure(servers[0])
        for turn in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
            print(f"{turn}: alone: median %.1f ms, p99 %.1f ms" % measure(servers[0]), flush=True)
            for words, flooded in (("flood at another process", servers[1]), ("flooded neighbour", servers[0])):
                with flood(flooded) as rates:
                    median, late = measure(servers[0])
                print(
                    f"{turn}: {words}, {rates[0]:.0f} exchanges/s: median {median:.1f} ms, p99 {late:.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
