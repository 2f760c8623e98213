"""What a store of many agents costs, operation by operation: ``python benchmarks/store_size.py --agents 1000000``.

Fills a store fast: rows are written in bulk, each agent with one upload, and the state that such a log leads to is
built from a few templates, with ten clusters. Then it does by turns what a server does, and prints seconds for each,
and the peak of memory. No network and no other process is involved.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedcascade.federation.grouping.evidence import EvidencePartition
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.dashboard.view import build_update, build_view, read_feed_state
from fedcascade.service.protocol.wire import pack_numbers
from fedcascade.service.server import operations, snapshots
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.state import ServerState, replay_log, warm_up
from fedcascade.service.store.chain import GENESIS, digest_upload, extend_link
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sql_store import SqlStore

POLICY = guard_policy(POLICIES["fedc3ucb-e"])
DIMENSION, TEMPLATES, CLUSTERS, ROUNDS, BATCH = 20, 100, 10, 10, 64
AGENT_COLUMNS = ["id", "public_key", "enrolled", "revoked", "folded"]
UPLOAD_COLUMNS = ["position", "agent", "sequence", "cause", "count", "clicks", "rounds", "numbers", "nonce"]
UPLOAD_COLUMNS += ["uploads", "salt", "link"]
JOURNAL_COLUMNS = ["position", "at", "agent", "cause", "rounds", "count", "clicks", "clusters", "exchanges"]
MOVE_COLUMNS = ["position", "at", "agent", "cluster"]
NUMBER = 10**11  # of the first agent


def make_templates() -> list[Statistics]:
    """What agents may have seen in ten rounds each, some of each cluster."""
    random = np.random.default_rng(0)
    templates = []
    for _ in range(TEMPLATES):
        seen = Statistics.zero(DIMENSION)
        for _ in range(ROUNDS):
            drawn = random.normal(size=(4, DIMENSION))
            listed = round_to_grid(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
            seen = seen.observe(listed, int(random.integers(0, 4)))
        templates.append(seen)
    return templates


def fill_rows(
    store: SqlStore, agents: int, templates: list[Statistics], keys: Mapping[int, bytes] | None = None
) -> None:
    """Write agents, one upload of each, and what the journal says of it; ``keys`` are public keys of some places."""
    keys = keys or {}
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
            rows = ((row[0], now, row[1], 1 + (row[0] - 1) % CLUSTERS) for row in uploads)
            store.write_table("move", MOVE_COLUMNS, rows)


def make_state(agents: int, templates: list[Statistics]) -> ServerState:
    """A state in which each agent has spoken once, in ten clusters."""
    state = ServerState(POLICY, DIMENSION)
    state.server = Server(policy=POLICY, agents=agents, dimension=DIMENSION)
    held, small = state.server.holdings, Server(policy=POLICY, agents=TEMPLATES, dimension=DIMENSION).holdings
    for number, each in enumerate(templates):
        small.add(number, each)
    kinds = np.arange(agents) % TEMPLATES
    for name in ("gram", "moment", "theta", "length", "width", "count", "clicks", "rounds"):
        array = getattr(held, name)
        for start in range(0, agents, 10_000):
            array[start : start + 10_000] = getattr(small, name)[kinds[start : start + 10_000]]
    groups = state.server.groups
    assert isinstance(groups, EvidencePartition)
    groups.labels, groups.spoken = np.arange(agents) % CLUSTERS, np.arange(agents)
    groups.own_evidence = np.array([POLICIES["fedc3ucb-e"].grouping.measure(each) for each in templates])[kinds]
    groups.listed_labels[:CLUSTERS], groups.samplings = np.arange(CLUSTERS), agents
    groups.median_bits = int(np.median(held.count)).bit_length()
    groups.rebuild()
    state.server.rounds = agents * ROUNDS
    state.places = dict(zip(range(NUMBER, NUMBER + agents), range(agents), strict=True))
    state.position, state.observations = agents, int(held.count.sum())
    return state


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took, in seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = f"{time.perf_counter() - began:9.3f} {time.process_time() - cpu:9.3f}"
    print(f"{what:<44} {took} {peak:8.2f}", flush=True)


def upload_batch(store: SqlStore, state: ServerState, journal: JournalWriter, templates: list[Statistics]) -> None:
    """A transaction of a server, with uploads of agents here and there."""
    with store.transaction():
        before = state.position
        for number in range(BATCH):
            agent = NUMBER + (before * 7_919 + number * 104_729) % (len(state.places) - BATCH)
            sequence = store.find_last_sequence(agent) + 1
            statistics = templates[number % TEMPLATES]
            upload = Upload(agent=agent, sequence=sequence, cause=Cause.FORCED, statistics=statistics)
            operations.record_upload(store, state, upload, before + number)
        journal.write(store, state, before)


def measure(open_it: Callable[[], SqlStore], agents: int, templates: list[Statistics]) -> None:
    """Start as a server does, then do what it does."""
    store = open_it()
    with timed("start: read the snapshot, replay"), store.transaction():
        state = replay_log(store, POLICY, DIMENSION)
    journal = JournalWriter()
    with timed("first batch: names of clusters are read"):
        upload_batch(store, state, journal, templates)
    with timed(f"ten batches of {BATCH} uploads"):
        for _ in range(10):
            upload_batch(store, state, journal, templates)
    with timed("an agent joins"), store.transaction():
        newcomer = store.add_agent(b"n" * 32, time.time())
        before = state.position
        upload = Upload(agent=newcomer, sequence=1, cause=Cause.FORCED, statistics=templates[0])
        operations.record_upload(store, state, upload, 1)
        journal.write(store, state, before)
    with timed("overview"), store.transaction():
        operations.read_overview(store, state)
    with timed("a page of 100 agents"), store.transaction():
        operations.describe_agents(store.list_agents(0, 100), more=True)(store, state)
    with timed("dashboard: a page opens"):
        feed = read_feed_state(store, store.find_head(), round(1000 * time.time()))
        build_view(store, feed.position, round(1000 * time.time()))
    upload_batch(store, state, journal, templates)
    with timed("dashboard: an update"):
        build_update(feed, store, store.find_head(), round(1000 * time.time()))
    with timed("a snapshot after few uploads"):
        snapshots.AGENTS_PER_UPLOAD = 10**9  # it is due now, not after an upload of every twentieth
        schedule = snapshots.SnapshotSchedule(1)
        while True:
            with store.transaction():
                schedule.advance(store, state)
            if not schedule.is_busy:
                break
            time.sleep(0.001)
        schedule.close()
    with timed("an agent is forgotten"), store.transaction():
        operations.forget(NUMBER + agents // 2)(store, state)
    store.close()


def main() -> None:
    """Fill a store and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--store", help="a URL, such as that of an empty PostgreSQL database; else a file that goes")
    given = parser.parse_args()
    templates = make_templates()
    warm_up(POLICY, DIMENSION)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        url = given.store or f"sqlite:///{folder}/store.db"

        def open_it() -> SqlStore:
            store = open_store(url)
            assert isinstance(store, SqlStore)
            return store

        print(f"{given.agents:,} agents, {os.cpu_count()} cores{'seconds':>27}{'cpu':>10}{'peak GB':>9}")
        store = open_it()
        with timed("(rows are written)"):
            fill_rows(store, given.agents, templates)
        with timed("(the first snapshot is written)"), store.transaction():
            snapshots.save_snapshot(store, make_state(given.agents, templates))
        store.close()
        measure(open_it, given.agents, templates)


if __name__ == "__main__":
    main()
