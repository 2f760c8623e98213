"""Clustering error, canonical labels, checkpoints, and what a Trace says of a run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.federation.agent import ShownList
from fedcascade.federation.grouping.partition import relabel_canonically
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.ledger import ExchangeLedger, LedgerEntry
from fedcascade.simulation.trace import (
    Checkpoint,
    Recorder,
    Round,
    Trace,
    compute_clustering_error,
    space_checkpoints,
)

LABELS = st.integers(1, 12).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(-3, 5), min_size=size, max_size=size)] * 2)
)


def find_group(labels: list[int], user: int) -> set[int]:
    return {member for member in range(len(labels)) if labels[member] == labels[user]}


@settings(deadline=None, max_examples=150)
@given(LABELS)
def test_clustering_error_is_the_share_of_users_whose_cluster_is_not_exactly_theirs(
    labels: tuple[list[int], list[int]],
) -> None:
    ours, truth = labels
    wrong = sum(find_group(ours, user) != find_group(truth, user) for user in range(len(ours)))
    assert compute_clustering_error(ours, truth) == pytest.approx(wrong / len(ours), abs=1e-12)
    assert compute_clustering_error(truth, truth) == 0.0
    assert compute_clustering_error(truth, ours) == compute_clustering_error(ours, truth)


def test_clustering_error_by_hand() -> None:
    assert compute_clustering_error([0, 0, 0, 0], [0, 0, 1, 1]) == 1.0
    assert compute_clustering_error([0, 1, 2, 3], [0, 0, 1, 2]) == 0.5
    assert compute_clustering_error([9, 9, 4, 4], [0, 0, 1, 1]) == 0.0


@settings(deadline=None, max_examples=100)
@given(LABELS)
def test_canonical_labels_are_equal_iff_the_partitions_are(labels: tuple[list[int], list[int]]) -> None:
    labels_u, labels_v = labels
    same = all(find_group(labels_u, user) == find_group(labels_v, user) for user in range(len(labels_u)))
    assert (relabel_canonically(labels_u) == relabel_canonically(labels_v)) == same
    assert compute_clustering_error(relabel_canonically(labels_u), labels_u) == 0.0
    assert relabel_canonically(relabel_canonically(labels_u)) == relabel_canonically(labels_u)
    assert sorted(set(relabel_canonically(labels_u))) == list(range(len(set(labels_u))))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 10**7), st.integers(1, 200))
def test_checkpoints_are_evenly_spaced_and_include_the_last_round(rounds: int, checkpoints: int) -> None:
    if checkpoints > rounds:
        with pytest.raises(ValueError, match="checkpoints"):
            space_checkpoints(rounds, checkpoints)
        return
    stops = space_checkpoints(rounds, checkpoints)
    assert len(stops) == checkpoints
    assert stops[-1] == rounds
    gaps = np.diff([0, *stops])
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(("rounds", "checkpoints"), [(0, 1), (-5, 1), (10, 0), (10, -1), (2.5, 1)])
def test_checkpoints_that_cannot_be_are_refused(rounds: int, checkpoints: int) -> None:
    with pytest.raises(ValueError, match=r"rounds|checkpoints"):
        space_checkpoints(rounds, checkpoints)


def trace() -> Trace:
    return Trace(
        policy="p",
        engine="reference",
        rounds=10,
        observations=25,
        curve=(Checkpoint(5, 1.5, 3, 1, 0.5), Checkpoint(10, 2.5, 7, 3, 0.25)),
        ledger=ExchangeLedger(
            [
                LedgerEntry(2, 0, Cause.AUXILIARY, 10, 20),
                LedgerEntry(6, 1, Cause.DETERMINANT, 10, 20),
                LedgerEntry(9, 1, Cause.AUXILIARY, 10, 20),
            ]
        ),
        partition=(0, 1, 1, 2),
        seconds=1.0,
    )


def test_a_trace_ends_with_its_last_checkpoint() -> None:
    run = trace()
    assert (run.regret, run.reward, run.clustering_error, run.clusters) == (2.5, 7, 0.25, 3)
    assert run.communications() == 3
    assert [run.communications(cause) for cause in Cause] == [1, 2, 0, 0, 0, 0]


def test_traces_are_equal_but_for_seconds() -> None:
    assert trace() == replace(trace(), seconds=99.0)
    assert trace() != replace(trace(), observations=26)
    assert trace() != replace(trace(), ledger=trace().ledger[:2])
    assert trace() != replace(trace(), partition=(0, 1, 1, 1))


def test_a_recorder_keeps_totals_exchanges_and_lists() -> None:
    recorder = Recorder(rounds=4, checkpoints=2, truth=np.array([0, 0, 1]), list_length=3)
    upload = Upload(agent=2, sequence=1, cause=Cause.FORCED, statistics=Statistics.zero(4))
    download = (2, Statistics.zero(4))
    for t, click in enumerate([None, 1, 0, None], 1):
        shown = ShownList(0, t, np.arange(t % 3 + 1), np.zeros((t % 3 + 1, 4), np.float32))
        recorder.record_round(t, 0, Round(shown, click, None, 0.25 * t, t))
        if t == 3:
            recorder.record_exchange(t, [upload], (download, download))
        recorder.record_checkpoint(t, np.array([0, 0, 0]) if t < 4 else np.array([5, 5, 1]))
    run = recorder.build_trace("p", "e", np.array([5, 5, 1]))
    assert run.curve == (Checkpoint(2, 0.75, 1, 0, 1.0), Checkpoint(4, 2.5, 2, 1, 0.0))
    assert run.ledger == (LedgerEntry(3, 2, Cause.FORCED, upload.bytes, 2 * upload.bytes),)
    assert (run.observations, run.partition, run.policy, run.engine) == (10, (0, 0, 1), "p", "e")
    assert run.lists is not None
    assert run.lists.tolist() == [[0, 1, -1], [0, 1, 2], [0, -1, -1], [0, 1, -1]]
    assert run.seconds >= 0


def test_a_ledger_is_the_sequence_of_its_exchanges() -> None:
    lines = trace().ledger
    assert list(lines) == [lines[0], lines[1], lines[-1]]
    assert lines[1:] == (lines[1], lines[2])
    assert lines == ExchangeLedger(lines)
    assert hash(lines) == hash(ExchangeLedger(lines))
    assert lines != ExchangeLedger(reversed(lines))
    assert lines.sum_bytes() == (30, 60)
    assert repr(lines).startswith("ExchangeLedger([LedgerEntry(round=2")


def test_a_trace_becomes_a_table() -> None:
    world = Synthetic(users=4, clusters=2, dimension=3, items=5)
    trace = simulate(world, POLICIES["fedind"], rounds=20, checkpoints=2, engine="reference")
    frame = trace.to_polars()
    assert frame["reward"].to_list() == [point.reward for point in trace.curve]
