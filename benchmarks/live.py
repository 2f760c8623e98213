"""What watching costs: 10,000 agents, a server, and pages that follow it.

Two questions, each answered in slices that take turns, with pages and without, on one machine and in one run:

- How many uploads per second does a server acknowledge at most, while eight pages follow its events? The pages here
  only read, as pages on other machines do, so that what is measured is the server.
- At 500 exchanges per second, does a real page stay responsive? Chromium counts how long its main thread was busy at a
  stretch, and how late the page is; latencies of uploads are given beside it.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvloop

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from service import Connection, Load, cpu_seconds, enrolled, observed, server

PAGES = 8
RECORD_LONG_TASKS = """() => {
  window.busy = [];
  new PerformanceObserver((list) => window.busy.push(...list.getEntries().map((task) => task.duration)))
    .observe({ type: "longtask" });
}"""


class PacedLoad(Load):
    """Uploads at a given rate in all."""

    def __init__(self, load: Load, rate: float) -> None:
        super().__init__(load.agents, load.messages)
        self.sent, self.rate = load.sent, rate
        self.began, self.first = time.perf_counter(), load.sent

    async def _pump(self, port: int, end: float) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        while time.perf_counter() < end:
            wait = self.began + (self.sent - self.first) / self.rate - time.perf_counter()
            agent, number = self.agents[self.sent % len(self.agents)], self.sent
            self.sent += 1
            if wait > 0:
                await asyncio.sleep(wait)
            began = time.perf_counter()
            sequence = number // len(self.agents) + 1
            message = wire.msgspec.structs.replace(self.messages[number % len(self.messages)], sequence=sequence)
            body = wire.ENCODERS[wire.MSGPACK](message)
            if (
                await connection.post(agent.sign_headers("POST", "/v1/exchanges", compute_digest(body), sequence), body)
                != 200
            ):
                raise SystemExit("upload refused")
            self.latencies.append(time.perf_counter() - began)
        connection.transport.close()


@contextmanager
def open_pages(port: int, token: str, pages: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that read the events of pages and throw them away."""
    command = f"""
import http.client
c = http.client.HTTPConnection("127.0.0.1", {port})
c.request("GET", "/live/events", headers={{"authorization": "Bearer {token}"}})
r = c.getresponse()
while r.read1(65536): pass
"""
    readers = [subprocess.Popen([sys.executable, "-S", "-c", command]) for _ in range(pages)]
    time.sleep(1.0)
    try:
        yield readers
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


def measure_throughput(
    load: Load, port: int, pid: int, token: str, seconds: float, turns: int, connections: int
) -> dict[str, object]:
    """Measure the highest rate with pages and without, in turns: the median of each, and of their ratios."""
    rates: dict[int, list[float]] = {0: [], PAGES: []}
    cost: dict[int, list[float]] = {0: [], PAGES: []}
    for _ in range(turns):
        for pages in (0, PAGES):
            with open_pages(port, token, pages):
                before = cpu_seconds(pid)
                rates[pages].append(uvloop.run(load.run(port, seconds, connections)))
                cost[pages].append((cpu_seconds(pid) - before) / len(load.latencies))
    ratio = statistics.median(with_ / without for without, with_ in zip(rates[0], rates[PAGES], strict=True))
    return {
        "uploads_per_second_without": [round(rate) for rate in rates[0]],
        f"uploads_per_second_with_{PAGES}_pages": [round(rate) for rate in rates[PAGES]],
        "server_cpu_us_per_upload": [round(1e6 * statistics.median(cost[pages])) for pages in (0, PAGES)],
        "throughput_with_pages": f"{ratio:.1%}",
    }


def measure_page(load: Load, port: int, token: str, seconds: float, rate: float) -> dict[str, object]:
    """Measure how a real page responds at a steady rate of exchanges."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return {"page": "Chromium is not installed"}
    from playwright.sync_api import sync_playwright

    quiet = PacedLoad(load, rate)
    uvloop.run(quiet.run(port, seconds, 16))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.add_init_script(f"({RECORD_LONG_TASKS})()")
        page.goto(f"http://127.0.0.1:{port}/")
        page.fill("#token", token)
        page.click("#login button")
        page.wait_for_selector("#main[data-position]")
        page.evaluate("window.busy.length = 0")
        script = Path(__file__).resolve()
        loader = subprocess.Popen(
            [sys.executable, script, "--loader", json.dumps([port, seconds, rate, quiet.sent])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert loader.stdin is not None
        loader.stdin.write(json.dumps([[agent.agent, bytes(agent.key).hex()] for agent in load.agents]))
        loader.stdin.close()
        answers = []
        while loader.poll() is None:
            start = time.perf_counter()
            page.evaluate("new Promise((done) => requestAnimationFrame(done))")
            answers.append(time.perf_counter() - start)
            page.wait_for_timeout(100)
        assert loader.stdout is not None
        loaded = json.loads(loader.stdout.read())
        page.wait_for_selector(f'#main[data-position="{loaded["position"]}"]', timeout=10_000)
        busy = page.evaluate("window.busy")
        browser.close()
    return {
        "exchanges_per_second": round(loaded["rate"]),
        "upload_p50_p99_ms_without": _compute_percentiles(quiet.latencies),
        "upload_p50_p99_ms_with": loaded["latencies"],
        "page_answers_p50_p99_ms": _compute_percentiles(answers),
        "page_longest_task_ms": round(max(busy, default=0.0)),
        "page_busy_over_50_ms": f"{sum(busy) / (1e3 * seconds):.1%} of the time",
    }


def _compute_percentiles(values: list[float]) -> list[float]:
    return [round(1e3 * float(value), 1) for value in np.percentile(values, [50, 99])]


def make_messages() -> list[wire.UploadMessage]:
    """Make uploads to choose from."""
    random = np.random.default_rng(0)
    observations = (observed(random, 20) for _ in range(256))
    return [
        wire.UploadMessage.from_upload(Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=statistics_))
        for statistics_ in observations
    ]


def run_load(port: int, seconds: float, rate: float, sent: int) -> None:
    """Put the load of ``measure_page`` on a server, in a process of its own, since Playwright needs this one."""
    from nacl.signing import SigningKey

    from fedcascade.service.agent.client import AgentClient

    keys = json.load(sys.stdin)
    agents = [AgentClient(None, SigningKey(bytes.fromhex(key)), agent) for agent, key in keys]
    load = Load(agents, make_messages())
    load.sent = sent
    paced = PacedLoad(load, rate)
    reached = uvloop.run(paced.run(port, seconds, 16))
    print(json.dumps({"rate": reached, "position": paced.sent, "latencies": _compute_percentiles(paced.latencies)}))


def main() -> None:
    """Run both and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a slice")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--loader", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loader:
        run_load(*json.loads(options.loader))
        return
    results: dict[str, object] = {"cpus": os.cpu_count(), "agents": options.agents}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder, token = Path(name), "a token of this benchmark alone"
        (folder / "operator.token").write_text(token, encoding="utf-8")
        (folder / "operator.token").chmod(0o600)
        load = Load(enrolled(f"sqlite:///{folder}/bench.db", options.agents), make_messages())
        with server(folder) as (port, pid, _):
            while load.sent < options.agents:
                uvloop.run(load.run(port, 1.0, options.connections))
            results["most"] = measure_throughput(
                load, port, pid, token, options.seconds, options.turns, options.connections
            )
            results["steady"] = measure_page(load, port, token, 10.0, options.rate)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
