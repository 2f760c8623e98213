"""The server adds an upload, answers its sender over the graph as it stood, and refuses what does not fit."""

from typing import Any

import numpy as np
import pytest

from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.policies import POLICIES, Order, Policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics

from .graphs import get_edges


def axis(k: int, times: int, click: bool, dimension: int = 2) -> Statistics:
    """``times`` rounds with a list of the one item along axis ``k``."""
    listed = np.eye(dimension, dtype=np.float32)[k : k + 1]
    total = Statistics.zero(dimension)
    for _ in range(times):
        total = total.observe(listed, 0 if click else None)
    return total


def upload(agent: int, statistics: Statistics) -> Upload:
    return Upload(agent=agent, sequence=1, cause=Cause.DETERMINANT, statistics=statistics)


def server_of(policy: Policy = POLICIES["fedc3ucb-h"], agents: int = 3, dimension: int = 2) -> Server:
    return Server(policy=policy, agents=agents, dimension=dimension)


def only(downloads: Downloads) -> Statistics:
    [[_, statistics]] = downloads
    return statistics


def state(server: Server) -> tuple[Any, ...]:
    held, groups = server.holdings, server.groups
    arrays = (held.gram, held.moment, held.theta, held.count, held.clicks, held.rounds, groups.labels)
    pools = [groups.pooled(agent) for agent in range(len(held))]
    return (
        server.rounds,
        *(array.tobytes() for array in arrays),
        *((p.gram.tobytes(), p.moment.tobytes(), p.count, p.clicks, p.rounds) for p in pools),
        get_edges(server).tobytes(),
    )


def test_upload_first_answers_with_the_upload_in_it() -> None:
    server = server_of()
    first = only(server.receive(upload(0, axis(0, 2, True))))
    np.testing.assert_array_equal(first.gram, [[2.0, 0.0], [0.0, 0.0]])
    second = only(server.receive(upload(1, axis(1, 3, True))))
    np.testing.assert_array_equal(second.gram, [[2.0, 0.0], [0.0, 3.0]])
    np.testing.assert_array_equal(second.moment, [2.0, 3.0])
    assert (second.count, second.clicks) == (5, 5)


def test_aggregate_first_answers_without_the_upload() -> None:
    server = server_of(POLICIES["fedc3ucb-h"].with_constants(order=Order.AGGREGATE_FIRST))
    first = only(server.receive(upload(0, axis(0, 2, True))))
    np.testing.assert_array_equal(first.gram, np.zeros((2, 2)))
    assert first.count == 0
    second = only(server.receive(upload(1, axis(1, 3, True))))
    np.testing.assert_array_equal(second.gram, [[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(second.moment, [2.0, 0.0])
    third = only(server.receive(upload(2, axis(1, 1, False))))
    np.testing.assert_array_equal(third.gram, [[2.0, 0.0], [0.0, 3.0]])


def test_an_order_given_as_text_is_kept_or_refused_never_ignored() -> None:
    try:
        policy = POLICIES["fedc3ucb-h"].with_constants(order="aggregate-first")
    except ValueError:
        return
    assert only(server_of(policy).receive(upload(0, axis(0, 2, True)))).count == 0


@pytest.mark.parametrize("order", list(Order))
def test_deletions_take_effect_from_the_next_exchange(order: Order) -> None:
    # With a tiny alpha_d, an agent that always clicks and one that never does are split at the first comparison.
    server = server_of(POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.01, order=order), agents=2)
    server.receive(upload(0, axis(0, 50, True)))
    assert not get_edges(server)[0, 1]  # agent 1 has theta 0 and F(0) = 1, but alpha_d is tiny
    server = server_of(POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.5, order=order), agents=2)
    server.receive(upload(0, axis(0, 1, True)))
    server.receive(upload(0, axis(0, 100, False)))
    assert get_edges(server)[0, 1]
    before = server.groups.pooled(0).count
    answer = only(server.receive(upload(1, axis(0, 200, True))))
    assert not get_edges(server)[0, 1]
    assert len(server.groups) == 2
    # The answer was formed over the graph that still had the edge.
    assert answer.count == before + (200 if order is Order.UPLOAD_FIRST else 0)
    # From now on each has its own.
    again = only(server.receive(upload(1, axis(0, 1, True))))
    assert again.count == (201 if order is Order.UPLOAD_FIRST else 200)
    other = only(server.receive(upload(0, axis(0, 1, False))))
    assert other.count == (102 if order is Order.UPLOAD_FIRST else 101)


def test_nobody_but_the_sender_is_answered_and_held_statistics_are_the_senders() -> None:
    server = server_of()
    assert [server.receive(upload(agent, axis(0, 1, True)))[0][0] for agent in (2, 0, 2)] == [2, 0, 2]
    assert server.holdings.count.tolist() == [1, 0, 2]
    np.testing.assert_allclose(server.holdings.theta[2], [2 / (4 + 2), 0.0])


def test_a_server_counts_the_rounds_of_all_uploads() -> None:
    server = server_of(agents=5)
    server.receive(upload(0, axis(0, 3, True)))
    server.receive(upload(4, axis(1, 4, False)))
    assert server.rounds == 7


def test_a_download_is_a_value_that_later_uploads_do_not_change() -> None:
    server = server_of()
    first = only(server.receive(upload(0, axis(0, 1, True))))
    kept = first.gram.copy()
    server.receive(upload(1, axis(0, 5, True)))
    server.receive(upload(0, axis(1, 5, True)))
    np.testing.assert_array_equal(first.gram, kept)
    assert first.count == 1


def test_bytes_are_half_a_gram_a_moment_and_five_numbers() -> None:
    sent = upload(0, Statistics.zero(20))
    assert sent.bytes == 8 * (210 + 20 + 5)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (upload(-1, axis(0, 1, True)), "agent"),
        (upload(3, axis(0, 1, True)), "agent"),
        (upload(0, axis(0, 1, True, dimension=3)), "shape"),
        (upload(0, axis(0, 1, True, dimension=1)), "shape"),
    ],
)
def test_uploads_of_another_agent_or_dimension_are_refused_and_nothing_changes(sent: Upload, complaint: str) -> None:
    server = server_of()
    server.receive(upload(0, axis(0, 4, True)))
    before = state(server)
    with pytest.raises(ValueError, match=complaint):
        server.receive(sent)
    assert state(server) == before


@pytest.mark.parametrize(
    "statistics",
    [
        Statistics(np.eye(2), np.zeros(3), 2, 0, 1),
        Statistics(np.eye(2), np.zeros(1), 2, 0, 1),
        Statistics(np.full((2, 2), np.nan), np.zeros(2), 2, 0, 1),
        Statistics(-100.0 * np.eye(2), np.zeros(2), 2, 0, 1),
        Statistics(np.eye(2), np.array([0.0, np.nan]), 2, 1, 1),
    ],
    ids=["moment too long", "moment too short", "nan gram", "negative gram", "nan moment"],
)
def test_malformed_uploads_are_refused_and_nothing_changes(statistics: Statistics) -> None:
    server = server_of()
    server.receive(upload(0, axis(0, 4, True)))
    before = state(server)
    with pytest.raises(ValueError):  # noqa: PT011 (any one-line refusal will do)
        server.receive(upload(1, statistics))
    assert state(server) == before


@pytest.mark.parametrize(("agents", "dimension", "name"), [(0, 2, "agents"), (2, 0, "dimension")])
def test_a_server_of_nothing_is_refused(agents: int, dimension: int, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        server_of(agents=agents, dimension=dimension)
