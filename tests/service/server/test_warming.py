"""A server that starts from a log: its users are members of groups, survive restarts, and can be forgotten."""

import csv
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.warm_start import warm_server
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.log_sums import LogSums
from fedcascade.service.agent.ledger import unpack_answer
from fedcascade.service.server.operations import forget
from fedcascade.service.server.state import replay_log
from fedcascade.service.server.warming import WarmStart, warm_store
from fedcascade.service.store.contract import Store, add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.snapshot import encode_state

from ..helpers import build_unit_upload, serve_in_process

POLICY, D, USERS = POLICIES["population"], 3, 6


def make_sums() -> LogSums:
    """Users who like the first feature, and users who like the second, ten lists each."""
    sums = LogSums(D)
    users = np.repeat(np.arange(USERS), 10)
    items = np.tile([0, 1], (users.size, 1))
    clicks = np.zeros((users.size, 2), bool)
    clicks[np.arange(users.size), users % 2] = True
    sums.add(ClickLog(users=users, items=items, clicks=clicks), np.eye(D, dtype=np.float32))
    return sums


def make_warm_start(folder: Path) -> WarmStart:
    return WarmStart(path=folder / "warm.npz", sums=make_sums(), users=tuple("abcdef"), policy=POLICY.name, digest="1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as opened:
        yield opened


def warm(store: Store, start: WarmStart, dimension: int = D) -> int:
    with store.transaction():
        return warm_store(store, start, POLICY, dimension, now=0.0)


def test_users_of_a_log_are_agents_that_a_restart_and_a_replay_keep(store: Store, tmp_path: Path) -> None:
    start = make_warm_start(tmp_path)
    assert warm(store, start) == USERS
    assert warm(store, start) == 0  # with the same option, as a service manager starts it again
    restarted = replay_log(store, POLICY, D)
    store.commit_snapshot(0, [])
    replayed = replay_log(store, POLICY, D)  # the log alone explains the state
    assert [record.action for record in store.read_audit()] == ["started warm"]
    store.verify()
    assert restarted.rounds == 60
    server, _ = warm_server(POLICY, start.sums)
    assert (restarted.server.holdings.gram == server.holdings.gram).all()
    for state in (restarted.server.to_state(), replayed.server.to_state()):
        assert encode_state(state) == encode_state(restarted.server.to_state())


def test_a_newcomer_learns_from_users_of_the_log_who_can_be_forgotten_by_name(store: Store, tmp_path: Path) -> None:
    warm(store, make_warm_start(tmp_path))
    path = tmp_path / "warm.agents.csv"
    assert path.stat().st_mode & 0o077 == 0
    with path.open(encoding="utf-8") as file:
        agents = {row["user"]: int(row["agent"]) for row in csv.DictReader(file)}
    with serve_in_process(tmp_path / "store.db", policy=POLICY, dimension=D) as running:
        newcomer = running.enrol()
        answers = [newcomer.exchange(build_unit_upload(sequence, 0, D)) for sequence in range(1, 9)]
        assert answers[-1].agents == USERS + 1
        assert unpack_answer(answers[-1], D).gram[1, 1] > 0.0  # the newcomer has looked at item 0
        assert running.writer is not None
        running.writer.submit(forget(agents["c"])).result()
        assert running.writer.submit(lambda _, state: state.rounds).result() == 50 + 8


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(store: Store, tmp_path: Path) -> None:
    start, broken = make_warm_start(tmp_path), make_sums()
    broken.gram[2, 0, 0] += 1e-9
    for other, dimension, words in [
        (replace(start, policy="fedc3ucb-h"), D, "is for fedc3ucb-h, the server runs population: fit"),
        (start, 4, "has 3 features per item, the server 4: give --dimension 3"),
        (replace(start, sums=broken), D, "impossible sums for user c: gram and moment must hold multiples"),
    ]:
        with pytest.raises(ValueError, match=words):
            warm(store, other, dimension)
    assert store.list_agents(0, 0).enrolled == 0
    warm(store, start)
    with pytest.raises(ValueError, match="but from another file"):
        warm(store, replace(start, digest="2"))


def test_a_store_that_has_agents_is_refused(store: Store, tmp_path: Path) -> None:
    with store.transaction():
        add_agent(store, b"k" * 32, 0.0)
    with pytest.raises(ValueError, match="needs an empty store"):
        warm(store, make_warm_start(tmp_path))
