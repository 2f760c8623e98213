"""Cost of a store of many agents, by operation: ``python benchmarks/store_size.py --agents 1000000``.

Fills a store fast: rows are written in bulk, each agent with one upload, and the state that such a log leads to is
built from that of a few thousand agents of ten clusters. Then it does by turns what a server does, and prints seconds
for each, and the memory. ``--postgres`` starts the PostgreSQL server of the tests for it; ``--store`` names an empty
database, which is kept. Last, a server process starts on the store (unless ``--no-server``).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the PostgreSQL server of the tests

from fedcascade.federation.grouping.population.groups import Groups
from fedcascade.federation.holdings import ARRAYS
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.dashboard.view import build_update, build_view, read_feed_state
from fedcascade.service.protocol.wire import pack_numbers
from fedcascade.service.server import operations, snapshots
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.state import ServerState, replay_log, warm_up
from fedcascade.service.store.chain import GENESIS, digest_upload, extend_link
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.snapshot import digest_chunk, gather_chunks
from fedcascade.service.store.sql_store import SqlStore
from fedcascade.testing.stores import record_upload

DIMENSION, TEMPLATES, CLUSTERS, ROUNDS, BATCH = 20, 100, 10, 10, 64
PLAYED = 4_000  # agents whose uploads a server takes one by one; the others are copies of these
AGENT_COLUMNS = ["id", "public_key", "enrolled", "revoked", "folded"]
UPLOAD_COLUMNS = ["position", "agent", "sequence", "cause", "count", "clicks", "rounds", "numbers", "nonce"]
UPLOAD_COLUMNS += ["uploads", "salt", "link"]
JOURNAL_COLUMNS = ["position", "at", "agent", "cause", "rounds", "count", "clicks", "clusters", "exchanges"]
MOVE_COLUMNS = ["position", "at", "agent", "cluster"]
NUMBER = 10**11  # of the first agent


def make_templates() -> list[Statistics]:
    """Return statistics of ten rounds each, of agents of all clusters."""
    random = np.random.default_rng(0)
    tastes = random.normal(size=(CLUSTERS, DIMENSION))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    templates = []
    for number in range(TEMPLATES):
        seen = Statistics.zero(DIMENSION)
        for _ in range(ROUNDS):
            drawn = random.normal(size=(4, DIMENSION))
            listed = round_to_grid(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
            likes = random.random(4) < 0.5 + listed @ tastes[number % CLUSTERS]
            seen = seen.observe(listed, int(likes.argmax()) if likes.any() else None)
        templates.append(seen)
    return templates


def fill_rows(
    store: SqlStore, state: ServerState, templates: list[Statistics], keys: Mapping[int, bytes] | None = None
) -> None:
    """Write agents, one upload of each, and what the journal says of it; ``keys`` are public keys of some places."""
    keys, agents, (_, names) = keys or {}, state.agents.size, state.names
    packed = [(each.count, each.clicks, each.rounds, pack_numbers(each)) for each in templates]
    link, now = GENESIS, round(1000 * time.time())
    for start in range(0, agents, 10_000):
        uploads, places = [], range(start, min(start + 10_000, agents))
        for place in places:
            count, clicks, rounds, numbers = packed[place % TEMPLATES]
            key = place + 1, NUMBER + place, 1, Cause.FORCED.value
            row = (*key, count, clicks, rounds, numbers, place.to_bytes(8), 1, place.to_bytes(16))
            link = extend_link(link, place + 1, digest_upload(row))
            uploads.append((*row, link))
        with store.transaction():
            rows = ((NUMBER + place, keys.get(place, place.to_bytes(32)), 0.0, None, 0) for place in places)
            store.write_table("agent", AGENT_COLUMNS, rows)
            store.write_table("upload", UPLOAD_COLUMNS, uploads)
            rows = ((row[0], now, row[1], row[3], row[6], row[4], row[5], CLUSTERS, 1) for row in uploads)
            store.write_table("journal", JOURNAL_COLUMNS, rows)
            rows = ((row[0], now, row[1], int(names[row[0] - 1])) for row in uploads)
            store.write_table("move", MOVE_COLUMNS, rows)


def make_state(policy: Policy, agents: int, templates: list[Statistics]) -> ServerState:
    """Make a state with one upload of each agent: some are played, the others are copies of these."""
    played = min(PLAYED, agents)
    server = Server(policy=policy, agents=played, dimension=DIMENSION)
    for agent in range(played):
        upload = Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=templates[agent % TEMPLATES])
        server.take(upload)
    state = ServerState(policy, DIMENSION)
    state.server = copy_agents(server, agents)
    state.agents = np.arange(NUMBER, NUMBER + agents)
    state.places = dict(zip(state.agents.tolist(), range(agents), strict=True))
    state.position, state.observations = agents, int(state.server.holdings.count.sum())
    state.names = agents, 1 + np.unique(state.server.groups.labels, return_inverse=True)[1]
    return state


def copy_agents(server: Server, agents: int) -> Server:
    """Return a server of many agents, each in the group of its original."""
    kinds = np.arange(agents) % len(server.holdings)
    values = server.to_state()
    held, groups = values["holdings"], values["groups"]
    for name in ARRAYS:
        held[name] = held[name][kinds]
    slots = groups["responsibilities"].shape[1]
    for name in ("labels", "responsibilities", "shares", "click_rates", "counts"):
        groups[name] = groups[name][kinds]
    is_alone = groups["labels"] >= slots
    groups["labels"][is_alone] = slots + np.flatnonzero(is_alone)
    groups["regrouped"] = np.zeros(agents, np.bool_)
    groups["active"], groups["active_index"] = np.arange(agents), np.arange(agents)
    groups["count_bits"] = np.bincount(np.frexp(groups["counts"])[1], minlength=groups["count_bits"].size)
    groups["observed"] = int(groups["counts"].sum())
    sums = Groups(*groups["group"])
    share = agents / len(server.holdings)
    scaled = sums._replace(
        gram=share * sums.gram,
        moment=share * sums.moment,
        size=groups["responsibilities"].sum(axis=0),
        members=np.count_nonzero(groups["responsibilities"], axis=0).astype(float),
    )
    groups["group"] = list(scaled)
    values["rounds"] = int(held["rounds"].sum())
    return Server.from_state(values, policy=server.policy, dimension=DIMENSION)


def read_memory(field: str = "VmRSS") -> float:
    """Memory of this process in GB; ``VmHWM`` is the most that it ever was."""
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[1]) / 2**20


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took, in seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    yield
    took = f"{time.perf_counter() - began:9.3f} {time.process_time() - cpu:9.3f}"
    print(f"{what:<44} {took} {read_memory():8.2f} {read_memory('VmHWM'):8.2f}", flush=True)


def upload_batch(store: SqlStore, state: ServerState, journal: JournalWriter, templates: list[Statistics]) -> None:
    """Run a transaction of a server, with uploads of random agents."""
    with store.transaction():
        before = state.position
        for number in range(BATCH):
            agent = NUMBER + (before * 7_919 + number * 104_729) % (len(state.places) - BATCH)
            sequence = store.sum_uploads(agent).last_sequence + 1
            statistics = templates[number % TEMPLATES]
            upload = Upload(agent=agent, sequence=sequence, cause=Cause.FORCED, statistics=statistics)
            record_upload(store, state, upload, before + number)
        journal.write(store, state, before)


def measure(open_it: Callable[[], SqlStore], policy: Policy, agents: int, templates: list[Statistics]) -> None:
    """Start as a server does, then do what it does."""
    store = open_it()
    with timed("start: read the snapshot, replay"), store.transaction():
        state = replay_log(store, policy, DIMENSION)
    journal = JournalWriter()
    with timed("first batch: names of clusters are read"):
        upload_batch(store, state, journal, templates)
    with timed(f"ten batches of {BATCH} uploads"):
        for _ in range(10):
            upload_batch(store, state, journal, templates)
    for number in range(1, 4):
        with timed("an agent joins"):
            join_agent(store, state, journal, templates[0], number)
    with timed("overview"), store.transaction():
        operations.read_overview(store, state)
    with timed("a page of 100 agents"), store.transaction():
        operations.describe_agents(store.list_agents(0, 101), 100)(store, state)
    measure_dashboard(store, partial(upload_batch, store, state, journal, templates))
    with timed("a snapshot after few uploads"):
        write_snapshot(store, state)
    for place, what in ((agents // 3, "an agent is forgotten"), (agents // 2, "another is forgotten")):
        with timed(what):
            with store.transaction():
                before = state.position
                operations.forget(NUMBER + place)(store, state)
                journal.write(store, state, before)
            store.run_maintenance(purge=True)
    upload_batch(store, state, journal, templates)
    held = digest_rows(state)
    del state  # two of them would take twice the memory
    with timed("start again after that"), store.transaction():
        again = replay_log(store, policy, DIMENSION)
    assert digest_rows(again) == held, "the state that is read is not the one that was written"
    store.close()


def digest_rows(state: ServerState) -> list[bytes]:
    """Return digests of the data of all agents."""
    return [digest_chunk(np.ascontiguousarray(getattr(state.server.holdings, name)).data) for name in ARRAYS]


def join_agent(
    store: SqlStore, state: ServerState, journal: JournalWriter, statistics: Statistics, number: int
) -> None:
    """Let an agent enrol and upload."""
    with store.transaction():
        newcomer, before = add_agent(store, number.to_bytes(2) * 16, time.time()), state.position
        upload = Upload(agent=newcomer, sequence=1, cause=Cause.FORCED, statistics=statistics)
        record_upload(store, state, upload, 1)
        journal.write(store, state, before)


def measure_dashboard(store: SqlStore, upload_more: Callable[[], None]) -> None:
    """Open a page of the dashboard, and bring it up to date."""
    for what in ("dashboard: the first page opens", "dashboard: another page opens"):
        with timed(what):
            feed = read_feed_state(store, store.find_head().position, round(1000 * time.time()))
            build_view(store, feed.position, round(1000 * time.time()))
    upload_more()
    with timed("dashboard: an update"):
        build_update(feed, store, store.find_head().position, round(1000 * time.time()))


def write_snapshot(store: SqlStore, state: ServerState) -> None:
    """Write what has changed, a piece in each transaction, as a server does beside uploads."""
    snapshots.AGENTS_PER_UPLOAD = 10**9  # it is due now, not after an upload of every twentieth
    schedule = snapshots.SnapshotSchedule(1)
    while True:
        with store.transaction():
            schedule.advance(store, state, store.find_head().rewritten)
        if not schedule.is_busy:
            break
        time.sleep(0.001)
    schedule.close()


def start_server(url: str, policy: Policy) -> None:
    """Start a server as a process, and print when it is ready, its memory, and how long it takes to end."""
    command = [sys.executable, "-m", "fedcascade", "serve", "--store", url, "--port", "0", "--policy", policy.name]
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        next(line for line in process.stderr if " on http" in line)
        took = time.perf_counter() - began
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        held, most = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 2**20 for name in ("VmRSS", "VmHWM"))
        print(f"{'fedcascade serve: ready':<44} {took:9.3f} {'':9} {held:8.2f} {most:8.2f}", flush=True)
        process.terminate()


def main() -> None:
    """Fill a store and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--store", help="a URL, such as that of an empty PostgreSQL database; else a file that goes")
    parser.add_argument("--postgres", action="store_true", help="start a PostgreSQL server, which goes at the end")
    parser.add_argument("--no-server", action="store_true", help="start no server at the end")
    given = parser.parse_args()
    policy, templates = guard_policy(POLICIES["population"]), make_templates()
    warm_up(policy, DIMENSION)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, start_postgres(given.postgres) as database:
        url = database or given.store or f"sqlite:///{folder}/store.db"

        def open_it() -> SqlStore:
            store = open_store(url)
            assert isinstance(store, SqlStore)
            return store

        head = f"{given.agents:,} agents, {url.partition(':')[0]}, {os.cpu_count()} cores"
        print(f"{head:<44} {'seconds':>9} {'cpu':>9} {'GB':>8} {'most GB':>8}")
        store = open_it()
        state = make_state(policy, given.agents, templates)
        with timed("(rows are written)"):
            fill_rows(store, state, templates)
        with timed("(the first snapshot is written)"):
            fill_snapshot(store, state)
        del state
        store.close()
        reset_peak()
        measure(open_it, policy, given.agents, templates)
        if not given.no_server:
            start_server(url, policy)


@contextmanager
def start_postgres(is_wanted: bool) -> Iterator[str | None]:
    """Start a PostgreSQL server; yield the address of its database, or None if not wanted."""
    if not is_wanted:
        yield None
        return
    from tests.service.postgres import PostgresNode

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # another user runs it
        node = PostgresNode(Path(folder) / "postgres")
        node.create()
        node.start()
        try:
            yield node.url()
        finally:
            node.stop()


def fill_snapshot(store: SqlStore, state: ServerState) -> None:
    """Write the first snapshot, some chunks in each transaction, so that it is never in memory as a whole."""
    digests: list[bytes] = []
    for some in batched(gather_chunks(state.to_state() | {"names": state.names[1]}), 4096):
        chunks = {digest_chunk(chunk): chunk for chunk in some}
        digests += map(digest_chunk, some)
        with store.transaction():
            store.put_chunks(chunks)
        store.run_maintenance()
    with store.transaction():
        assert store.commit_snapshot(state.position, digests)


def batched(chunks: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield lists of ``size`` chunks each."""
    while some := list(islice(chunks, size)):
        yield some


def reset_peak() -> None:
    """Let the most memory be counted from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


if __name__ == "__main__":
    main()
