"""Grouping by evidence with more agents and more groups than are looked at one by one."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from fedcascade.federation.grouping.evidence import FEW, EvidencePartition
from fedcascade.federation.grouping.gibbs import compute_evidence, measure_row
from fedcascade.federation.grouping.listing import LISTED
from fedcascade.federation.grouping.rows import gather_rows, pack_row, unpack_row
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams
from fedcascade.numerics.grid import round_to_grid

D, AGENTS = 3, LISTED + 60
OURS = POLICIES["fedc3ucb-e"]


def draw_upload(random: np.random.Generator, agent: int, rounds: int, kinds: int) -> Statistics:
    """Rounds of a user of one of some kinds; the kind says which way the clicks go."""
    angle = 2 * np.pi * (agent % kinds) / kinds
    theta = np.array([np.cos(angle), np.sin(angle), 1.0]) / 2
    z = random.normal(size=(rounds, 2))
    x = round_to_grid(np.hstack([z / np.linalg.norm(z, axis=1, keepdims=True), np.ones((rounds, 1))]) / 1.5)
    total = Statistics.zero(D)
    for row, draw in zip(x, random.random(rounds), strict=True):
        total = total.observe(row[None], 0 if draw < row @ theta else None)
    return total


def play(policy: Policy, uploads: int, kinds: int, agents: int = AGENTS) -> tuple[Server, list[Upload]]:
    """A server with which everybody has spoken once and some again, and more uploads for it."""
    random, server = np.random.default_rng(5), Server(policy=policy, agents=agents, dimension=D)
    speakers = [*range(agents), *random.integers(agents, size=uploads).tolist()]
    sizes = 1 + random.geometric(0.2, len(speakers))
    messages = [
        Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=draw_upload(random, agent, size, kinds))
        for agent, size in zip(speakers, sizes.tolist(), strict=True)
    ]
    for message in messages[: agents + uploads // 2]:
        server.receive(message)
    return server, messages[agents + uploads // 2 :]


def get_groups(server: Server) -> EvidencePartition:
    assert isinstance(server.groups, EvidencePartition)
    return server.groups


def check_sums(server: Server) -> None:
    """Every listed group must hold the limited rows of its members, and everybody else must be alone."""
    groups = get_groups(server)
    listing, alone = groups.derived.listing, np.ones(groups.labels.size, np.bool_)
    assert len(listing.place_of) <= LISTED
    assert len(groups) == np.unique(groups.labels).size
    for label, place in listing.place_of.items():
        members = np.flatnonzero(groups.labels == label)
        assert listing.sizes[place] == members.size > 0
        assert listing.members[place] in members
        rows = gather_rows(server.holdings, members, groups.limit)
        np.testing.assert_array_equal(listing.sums[place], rows.sum(axis=0))
        assert listing.evidence[place] == measure_row(listing.sums[place], groups.model)
        alone[members] = False
    assert np.unique(groups.labels[alone]).size == alone.sum()


@pytest.mark.parametrize("policy", [OURS, guard_policy(OURS)], ids=["alone", "guarded"])
@pytest.mark.parametrize("kinds", [1, 4, AGENTS])
def test_groups_hold_the_exact_sums_of_their_members(policy: Policy, kinds: int) -> None:
    server, uploads = play(policy.with_constants(hurdle=6.0 if kinds == AGENTS else 3.0), 120, kinds)
    assert get_groups(server).spoken.size == AGENTS > FEW
    for upload in uploads:
        server.receive(upload)
        check_sums(server)
    if kinds == AGENTS:
        assert len(server.groups) > LISTED, "more groups than are listed, or this test shows little"


@pytest.mark.parametrize("policy", [OURS, guard_policy(OURS)], ids=["alone", "guarded"])
@pytest.mark.parametrize("kinds", [4, AGENTS])
def test_a_restored_server_goes_on_to_the_same_bits(policy: Policy, kinds: int) -> None:
    server, uploads = play(policy.with_constants(hurdle=6.0 if kinds == AGENTS else 3.0), 80, kinds)
    restored = Server.from_state(deepcopy(server.to_state()), policy=server.policy, dimension=D)
    for upload in uploads:
        ours, theirs = server.receive(upload)[0].statistics, restored.receive(upload)[0].statistics
        np.testing.assert_array_equal(ours.gram, theirs.gram)
        np.testing.assert_array_equal(ours.moment, theirs.moment)
        np.testing.assert_array_equal(server.groups.labels, restored.groups.labels)


def test_agents_join_and_leave_among_many() -> None:
    server, uploads = play(guard_policy(OURS), 20, 4)
    server.forget(7)
    newcomer = server.join()
    assert newcomer == AGENTS - 1
    assert server.groups.labels[newcomer] not in server.groups.labels[:-1]
    for upload in uploads:
        server.receive(replace(upload, agent=min(upload.agent, newcomer)))
        check_sums(server)


def test_with_a_guard_nobody_counts_for_more_than_the_limit() -> None:
    server, uploads = play(guard_policy(OURS), 60, 1)
    groups = get_groups(server)
    heavy = replace(uploads[0], agent=0, statistics=draw_upload(np.random.default_rng(1), 0, 2_000, 1))
    server.receive(heavy)
    assert server.holdings.count[0] > 10 * groups.limit
    assert gather_rows(server.holdings, np.arange(AGENTS), groups.limit)[:, -3].max() <= groups.limit
    check_sums(server)
    server.receive(uploads[1])
    told = server.answer(int(np.flatnonzero(groups.labels == groups.labels[uploads[1].agent])[0])).statistics
    assert told.count <= AGENTS * groups.limit


def test_a_row_is_what_its_statistics_are() -> None:
    statistics = draw_upload(np.random.default_rng(2), 1, 30, 3)
    again = unpack_row(pack_row(statistics, np.inf), D)
    np.testing.assert_array_equal(again.gram, statistics.gram)
    np.testing.assert_array_equal(again.moment, statistics.moment)
    assert (again.count, again.clicks, again.rounds) == (statistics.count, statistics.clicks, statistics.rounds)
    model = OURS.grouping.make_model(D)  # type: ignore[attr-defined]
    evidence = compute_evidence(statistics.gram, statistics.moment, model.variance, model.prior)
    assert measure_row(pack_row(statistics, np.inf), model) == evidence
    half = unpack_row(pack_row(statistics, 15.0), D)
    assert half.count == 15
    np.testing.assert_allclose(half.gram, statistics.gram / 2, atol=2.0**-24)
    assert (half.gram * 2.0**24 % 1 == 0).all()


@pytest.mark.parametrize("population", [11, 12, 40, 1_000])
def test_few_of_many_are_sampled_as_from_a_list(population: int) -> None:
    for round_ in range(50):
        few = streams.sample_few_indices(np.uint64(0), streams.VISIT, round_, population, 10)
        assert few.tolist() == streams.sample_indices(np.uint64(0), streams.VISIT, round_, population, 10).tolist()
