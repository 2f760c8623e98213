"""The journal names clusters as people see them: a group keeps its name while most of its members stay."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.grouping.partition import Labels, relabel_canonically
from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.journal_writer import JournalWriter, LiveNames, assign_names
from fedcascade.service.server.operations import forget
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.testing.stores import make_unit_upload, record_upload

from ..helpers import read_clusters


def name_first(labels: list[int]) -> Labels:
    """Name the groups of agents that had no names."""
    return assign_names(np.zeros(len(labels), np.int64), np.array(labels))


partitions = st.lists(st.integers(0, 6), min_size=1, max_size=12)


@given(partitions, partitions)
def test_names_are_those_of_the_partition_and_renaming_changes_nothing(before: list[int], after: list[int]) -> None:
    known = np.zeros(len(after), np.int64)
    known[: len(before)] = name_first(before)[: len(after)]
    named = assign_names(known, np.array(after))
    assert relabel_canonically(named) == relabel_canonically(after)
    shuffled = np.array([{label: 50 - label for label in set(after)}[label] for label in after])
    assert assign_names(known, shuffled).tolist() == named.tolist()
    assert assign_names(named, shuffled).tolist() == named.tolist()


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=8), st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8)
)
def test_names_follow_those_who_move(start: list[int], steps: list[list[int]]) -> None:
    """Each step writes some numbers over the first labels, and appends the rest as newcomers."""
    labels = list(start)
    names = name_first(labels).tolist()
    live = LiveNames(np.array(labels), np.array(names))
    for step in steps:
        before = list(labels)
        fresh = [*step, *labels[len(step) :]]
        places = [place for place, label in enumerate(fresh) if place >= len(labels) or label != labels[place]]
        former = [labels[place] for place in places if place < len(labels)]
        known = [names[place] if place < len(names) else 0 for place in places]
        names += [0] * (len(fresh) - len(names))
        for place, name in zip(places, live.move(former, [fresh[place] for place in places], known), strict=True):
            names[place] = name
        labels = fresh
        assert relabel_canonically(names) == relabel_canonically(labels)
        stayed = [place for place in range(len(before)) if place not in places]
        assert all(live.names[labels[place]] == names[place] for place in stayed)
        assert max(names) <= len(before) + len(step)


def test_a_group_that_gets_another_label_keeps_its_name_among_many() -> None:
    live = LiveNames(np.array([5, 5, 7]), np.array([1, 1, 2]))
    assert live.move([5, 5], [9, 9], [1, 1]) == [1, 1]
    assert live.move([9], [4], [1]) == [3]
    assert live.move([7], [9], [2]) == [1]
    assert live.move([], [6], [0]) == [2]


def test_whoever_splits_off_gets_the_new_name() -> None:
    named = assign_names(np.full(10, 4), np.array([9] * 3 + [0] * 7))
    assert named.tolist() == [1] * 3 + [4] * 7


def test_the_larger_part_gives_its_name_when_two_join() -> None:
    assert assign_names(np.array([1, 2, 2]), np.array([0, 0, 0])).tolist() == [2, 2, 2]


def test_who_comes_when_somebody_leaves_is_not_taken_for_a_neighbour(tmp_path: Path) -> None:
    """One agent is forgotten and another joins in one batch: as many agents as before, in groups of the same labels."""
    store, state, journal = (
        open_store(f"sqlite:///{tmp_path}/store.db"),
        ServerState(POLICIES["fedc3ucb-h"], 3),
        JournalWriter(),
    )
    with store.transaction():
        agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(4)]
        for agent in agents[:3]:
            record_upload(store, state, make_unit_upload(agent, 1, 0), 1)
        journal.write(store, state, 0)
    assert read_clusters(store, 9).keys() == set(agents[:3])
    with store.transaction():
        forget(agents[1])(store, state)
        record_upload(store, state, make_unit_upload(agents[3], 1, 0), 1)
        journal.write(store, state, 3)
    assert read_clusters(store, 9).keys() == {agents[0], agents[2], agents[3]}
    store.close()


def test_who_comes_when_all_have_left_has_a_cluster(tmp_path: Path) -> None:
    store, state = open_store(f"sqlite:///{tmp_path}/store.db"), ServerState(POLICIES["fedc3ucb-h"], 3)
    journal = JournalWriter()
    with store.transaction():
        first, second = (add_agent(store, bytes([number]) * 32, 1.0) for number in range(2))
    for job in (
        lambda: record_upload(store, state, make_unit_upload(first, 1, 0), 1),
        lambda: forget(first)(store, state),
        lambda: record_upload(store, state, make_unit_upload(second, 1, 0), 1),
    ):
        with store.transaction():
            began = state.position
            job()
            journal.write(store, state, began)
    assert read_clusters(store, 9) == {second: 1}
    store.close()


@pytest.mark.parametrize("few", [1_000, 2])
def test_the_journal_follows_the_state_whoever_writes(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes take turns; what the journal says of clusters is the partition of the state, at every position."""
    monkeypatch.setattr("fedcascade.service.server.journal_writer.MOST_RENAMED", few)
    url, policy = f"sqlite:///{tmp_path}/store.db", POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.3)
    store, journals = open_store(url), [JournalWriter(), JournalWriter()]
    states = [ServerState(policy, 3), ServerState(policy, 3)]
    world = Synthetic(users=6, clusters=3, dimension=4, items=5, seed=1)
    with store.transaction():
        agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(6)]
    partition = {}
    for turn in range(30):
        writer = turn // 3 % 2
        with store.transaction():
            state = states[writer] = replay_log(store, policy, 3, states[writer])
            began, who = state.position, world.arrival(turn + 1)
            sequence = store.sum_uploads(agents[who]).uploads + 1
            axis = int(world.clusters[who])
            record_upload(store, state, make_unit_upload(agents[who], sequence, axis), turn)
            journals[writer].write(store, state, began)
        partition[state.position] = state.get_labels()
    assert 1 < len(set(partition[30].values())) < 6
    for position, labels in partition.items():
        placed = read_clusters(store, position)
        assert placed.keys() == labels.keys()
        assert relabel_canonically([placed[agent] for agent in labels]) == relabel_canonically(list(labels.values()))
        assert [row.clusters for row in store.read_changes(position - 1, position).exchanges] == [
            len(set(labels.values()))
        ]
    store.close()
