"""Operations: nothing of a forgotten agent can be found or computed from what is kept; the others lose no bit."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from nacl.signing import SigningKey

from fedcascade.federation.grouping.partition import relabel_canonically
from fedcascade.federation.holdings import ARRAYS
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import AgentClient, enrol_agent
from fedcascade.service.protocol import wire
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.operations import forget
from fedcascade.service.server.snapshots import SnapshotSchedule
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.testing.stores import record_upload

from ..helpers import RunningService, read_clusters, serve_in_process

GRID = 2.0**-12


def draw_statistics(random: np.random.Generator, rounds: int = 12) -> Statistics:
    """What an honest agent may have seen, with features on the grid."""
    total = Statistics.zero(3)
    for _ in range(rounds):
        drawn = random.normal(size=(4, 3))
        listed = np.trunc(drawn / np.linalg.norm(drawn, axis=1, keepdims=True) / GRID) * GRID
        total = total.observe(listed.astype(np.float32), int(random.integers(0, 4)))
    return total


def exchange(agent: AgentClient, sequence: int, statistics: Statistics) -> None:
    upload = Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=statistics)
    agent.exchange(wire.UploadMessage.from_upload(upload))


def enrol(running: RunningService, key: SigningKey) -> AgentClient:
    return AgentClient(
        running.transport, key, enrol_agent(running.transport, running.operator.create_tokens()[0], key).agent
    )


def list_secrets(agent: AgentClient, uploads: list[Statistics]) -> list[bytes]:
    """What must not be found in any file: the key, and the numbers of each upload and of their sums, as bytes."""
    sums = [uploads[0]]
    for upload in uploads[1:]:
        sums.append(sums[-1] + upload)
    arrays = [array for held in (*uploads, *sums) for array in (held.gram.ravel(), held.moment)]
    return [bytes(agent.key.verify_key), *(array.tobytes() for array in arrays), *map(wire.pack_numbers, uploads)]


def search_files(folder: Path, secrets: list[bytes]) -> int:
    """Count the secrets that are in some file: the database with its free pages, its write-ahead log, or another."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return sum(any(secret in content for content in contents) for secret in secrets)


def find_grams(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Find the upper triangles of all that may be a gram in any value of the database, whatever its format.

    Nine numbers on the grid in a row are either a triangle and a moment, or a whole gram.
    """
    grams = [np.zeros((1, 6))]
    with closing(sqlite3.connect(path)) as database:
        for [table] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f"SELECT * FROM {table}"):
                for value in row:
                    if isinstance(value, bytes) and len(value) >= 72:
                        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(value, np.uint8), 72)
                        numbers = np.ascontiguousarray(windows).view("<f8")
                        numbers = numbers[(np.abs(numbers) < 1e6).all(axis=1) & (numbers[:, 0] > 1e-3)]
                        numbers = numbers[(numbers * 2.0**24 % 1 == 0).all(axis=1)]
                        grams += [numbers[:, :6], numbers[:, [0, 1, 2, 4, 5, 8]]]
    return np.unique(np.concatenate(grams), axis=0)


def recover_by_differences(path: Path, secret: Statistics) -> float:
    """How near a gram in the database, less up to two others or with them, comes to the gram of an agent.

    The answers to two others, one before and one after the agent spoke, differ by its upload and by the later one's
    own, which is in the log.
    """
    grams, wanted = find_grams(path), secret.gram[np.triu_indices(3)]
    signed = np.concatenate([grams, -grams])
    rest = (signed[:, None] + signed[None]).reshape(-1, 6) - wanted
    return float(min(np.abs(rest + gram).max(axis=1).min() for gram in grams))


@pytest.mark.parametrize("policy", ["fedc3ucb-h", "population", "fedlinucb"])
def test_nothing_of_a_forgotten_agent_is_left_or_can_be_computed(policy: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    with serve_in_process(tmp_path / "store.db", policy=POLICIES[policy], snapshot_every=5) as running:
        agents = [enrol(running, SigningKey.generate()) for _ in range(4)]
        secret = [draw_statistics(random) for _ in range(2)]
        for sequence, upload in enumerate(secret, 1):
            for number, agent in enumerate(agents):
                exchange(agent, sequence, upload if number == 1 else draw_statistics(random))
        secrets = list_secrets(agents[1], secret)
        assert search_files(tmp_path, secrets) > 1
        assert recover_by_differences(tmp_path / "store.db", secret[-1]) == 0.0
        agents[1].leave()
        exchange(agents[0], 4, draw_statistics(random))
        assert search_files(tmp_path, secrets) == 0
    assert search_files(tmp_path, secrets) == 0
    for held in (*secret, secret[0] + secret[1]):
        assert recover_by_differences(tmp_path / "store.db", held) > 1e-3


@pytest.mark.parametrize("policy", ["fedc3ucb-h", "population"])
def test_the_rest_is_to_the_bit_as_if_the_agent_had_never_been(policy: str, tmp_path: Path) -> None:
    """Sums, estimates and edges are; names of groups, positions and, under population, what is drawn are not."""
    keys = [SigningKey(bytes([number]) * 32) for number in range(5)]
    states, places = [], []
    for name, present in (("with", [0, 1, 2, 3, 4]), ("without", [0, 1, 3, 4])):
        system = POLICIES[policy].with_constants(**({"alpha_d": 0.3} if policy == "fedc3ucb-h" else {}))
        with serve_in_process(tmp_path / f"{name}.db", policy=system) as running:
            agents = {number: enrol(running, keys[number]) for number in present}
            for sequence in range(1, 5):
                for number, agent in agents.items():
                    exchange(agent, sequence, draw_statistics(np.random.default_rng([number, sequence])))
            if 2 in agents:
                agents[2].leave()
        with closing(open_store(f"sqlite:///{tmp_path}/{name}.db")) as store:
            states.append(replay_log(store, system, 3))
        places.append([states[-1].places[agents[number].agent] for number in (0, 1, 3, 4)])
    left, right = (state.server for state in states)
    assert left is not None
    assert right is not None
    ours, theirs = places
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(left.holdings, name)[ours], getattr(right.holdings, name)[theirs])
    assert left.rounds == right.rounds
    if policy == "population":  # the last answer, which a snapshot holds, had the agent's data in it
        assert not left.groups.last_answer.gram.any()  # type: ignore[attr-defined]
    if policy == "fedc3ucb-h":
        edges, expected = left.groups.edges, right.groups.edges  # type: ignore[attr-defined]
        np.testing.assert_array_equal(edges[np.ix_(ours, ours)], expected[np.ix_(theirs, theirs)])
        assert not edges[~np.eye(4, dtype=np.bool_)].all()
        for place, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(left.groups.pooled(place).gram, right.groups.pooled(other).gram)


@pytest.mark.parametrize(
    ("policy", "people"), [("fedc3ucb-h", 12), ("fedlinucb", 12), ("population", 12), ("population", 80)]
)
def test_whoever_joins_speaks_and_is_forgotten_in_any_order_the_rest_is_as_if_the_forgotten_had_never_been(
    policy: str, people: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held of those who are left has the same bits; the store and its journal follow at every step."""
    monkeypatch.setattr("fedcascade.service.server.journal_writer.MOST_RENAMED", 5)
    random, system = np.random.default_rng(people), POLICIES[policy]
    state, journal, schedule = ServerState(system, 3), JournalWriter(), SnapshotSchedule(every=20)
    uploads: dict[int, list[Upload]] = {}
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        for step in range(3 * people):
            with store.transaction():
                before, spoken = state.position, sorted(uploads)
                if step % (people // 4) == 2:
                    gone = spoken[int(random.integers(len(spoken)))]
                    forget(gone)(store, state)
                    del uploads[gone]
                    spoken.remove(gone)
                if len(spoken) < people * min(1.0, step / people + 0.1):
                    speaker = add_agent(store, random.bytes(32), 1.0)
                else:
                    speaker = spoken[int(random.integers(len(spoken)))]
                statistics = draw_statistics(random, 4)
                own = uploads.setdefault(speaker, [])
                own.append(Upload(agent=speaker, sequence=len(own) + 1, cause=Cause.FORCED, statistics=statistics))
                record_upload(store, state, own[-1], step)
                journal.write(store, state, before)
                schedule.advance(store, state, store.find_head().rewritten)
            if step % 17 == 16:  # as where a server starts again
                schedule.drop()
                state, journal = replay_log(store, system, 3), JournalWriter()
            named, labels = read_clusters(store, state.position), state.get_labels()
            assert named.keys() == labels.keys() == uploads.keys()
            agents = sorted(labels)
            assert relabel_canonically([named[agent] for agent in agents]) == relabel_canonically(
                [labels[agent] for agent in agents]
            )
        schedule.close()
        assert replay_log(store, system, 3).dump() == state.dump()
    assert len(uploads) > people // 2
    never = ServerState(system, 3)
    for position, upload in enumerate((upload for own in uploads.values() for upload in own), 1):
        never.apply(upload, position)
    ours, theirs = ([each.places[agent] for agent in sorted(uploads)] for each in (state, never))
    for name in ARRAYS:
        np.testing.assert_array_equal(
            getattr(state.server.holdings, name)[ours], getattr(never.server.holdings, name)[theirs]
        )
    assert (state.rounds, state.observations) == (never.rounds, never.observations)
