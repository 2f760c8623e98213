"""What an answer lets in of others: no single peer, a bounded weight of each, no more than own data believe."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import measure_members
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.federation.sharing import MIN_GAIN, Sharing, find_weight
from fedcascade.learning.statistics import Statistics

from .formulas import measure_evidence

D = 3
POLICY_NAMES = ("fedc3ucb-h", "fedlinucb")  # whose answers are sums over a group


def observe(random: np.random.Generator, theta: list[float], rounds: int) -> Statistics:
    total = Statistics.zero(D)
    for _ in range(rounds):
        drawn = random.normal(size=(1, D))
        listed = (drawn / np.linalg.norm(drawn)).astype(np.float32)
        clicked = random.random() < listed[0] @ np.array(theta) / 2 + 0.5
        total = total.observe(listed, 0 if clicked else None)
    return total


def serve(name: str, sharing: Sharing, uploads: list[Statistics]) -> tuple[Server, list[Statistics]]:
    policy = replace(POLICIES[name], sharing=sharing)
    server = Server(policy=policy, agents=len(uploads), dimension=D)
    answers = []
    for agent, statistics in enumerate(uploads):
        upload = Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics)
        answers.append(server.receive(upload)[0][1])
    return server, answers


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_nobody_can_subtract_itself_and_read_its_only_peer(name: str) -> None:
    random = np.random.default_rng(1)
    uploads = [observe(random, [1.0, 0.0, 0.0], 40) for _ in range(3)]
    _, answers = serve(name, Sharing(min_others=2), uploads)
    for agent in (0, 1):  # an only peer, or none
        assert np.array_equal(answers[agent].gram, uploads[agent].gram)
        assert answers[agent].count == uploads[agent].count
    _, told = serve(name, Sharing(min_others=1, max_weight=np.inf), uploads)
    assert np.trace(told[1].gram) > np.trace(uploads[1].gram)
    assert answers[2].count > uploads[2].count


def test_members_without_data_hide_nobody() -> None:
    random = np.random.default_rng(1)
    policy = replace(POLICIES["fedc3ucb-h"], sharing=Sharing(min_others=2))
    server = Server(policy=policy, agents=9, dimension=D)
    for agent in (0, 1):
        statistics = observe(random, [1.0, 0.0, 0.0], 40)
        upload = Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics)
        assert server.receive(upload)[0][1].count == statistics.count


def limit_group(counts: NDArray[np.int64], max_weight: float, agent: int = 0) -> float:
    """The limit of two groups that have these counts together, beside one that has more."""
    labels = np.concatenate([np.arange(counts.size) % 2 * 4 + 3, np.full(counts.size, 5)])
    all_counts = np.concatenate([counts, 7 * counts + 1])
    others, median, heaviest = measure_members(agent, np.array([3, 7]), labels, all_counts)
    without = np.delete(counts, agent) if counts.size else counts
    assert (others, heaviest) == (int(np.count_nonzero(without)), int(without.max(initial=0)))
    return float(max_weight * 2.0**median)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.sampled_from([1.0, 2.0, 5.0]))
def test_nobody_counts_more_than_so_many_medians(counts: list[int], max_weight: float) -> None:
    limit = limit_group(np.array(counts), max_weight)
    median = np.sort(counts)[(len(counts) - 1) // 2]
    assert max_weight * median < limit <= 2 * max_weight * median
    assert limit_group(np.array(counts), np.inf) == np.inf


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.integers(0, 10**9))
def test_the_limit_is_a_power_of_two_above_the_median(counts: list[int], agent: int) -> None:
    bits = sorted(count.bit_length() for count in counts if count)
    median = bits[(len(bits) - 1) // 2] if bits else 1
    assert limit_group(np.array(counts, np.int64), 3.0, agent % len(counts)) == 3.0 * 2**median


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([1.0, 2.0]))
def test_an_answer_holds_of_each_other_no_more_than_the_limit(seed: int, agents: int, max_weight: float) -> None:
    random = np.random.default_rng(seed)
    policy = replace(POLICIES["fedc3ucb-h"], sharing=None)
    server = Server(policy=policy, agents=agents, dimension=D)
    for agent in range(agents):
        for _ in range(int(random.integers(0, 3))):
            statistics = observe(random, [1.0, 0.0, 0.0], int(2 ** random.integers(1, 8)))
            server.take(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=statistics))
    counts, asker = server.holdings.count, int(random.integers(agents))
    server.groups.guard = Sharing(min_others=1, max_weight=max_weight)
    answer = server.groups.sum_groups(asker, np.zeros(1, np.int64))
    limit = limit_group(counts, max_weight, asker)
    shares = [min(1.0, limit / count) if count and agent != asker else 1.0 for agent, count in enumerate(counts)]
    if np.count_nonzero(np.delete(counts, asker)):
        assert np.allclose(answer.gram, np.tensordot(shares, server.holdings.gram, 1))
        assert np.allclose(answer.moment, np.tensordot(shares, server.holdings.moment, 1))
        assert abs(answer.count - np.dot(shares, counts)) <= agents
    else:
        assert answer.count == counts[asker]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_heavy_liar_sways_no_more_than_two_others(name: str) -> None:
    """Its million observations once were all that anybody heard."""
    random = np.random.default_rng(2)
    honest = [observe(random, [1.0, 0.0, 0.0], 200) for _ in range(6)]
    lie = observe(random, [-1.0, 0.0, 0.0], 200).scale(5_000.0)
    _, answers = serve(name, Sharing(), [lie, *honest])
    _, plain = serve(name, Sharing(min_others=0, max_weight=np.inf), [lie, *honest])
    assert all(answer.count <= 200 * (6 + 4) for answer in answers[1:])
    theta = [np.linalg.solve(answer.gram + 4 * np.eye(D), answer.moment) for answer in answers[4:]]
    assert all(estimate[0] > 0.1 for estimate in theta)
    assert max(answer.count for answer in plain[1:]) <= 10**6 * 1.01


def test_others_count_whole_where_they_are_alike_and_not_at_all_where_they_mislead() -> None:
    random = np.random.default_rng(3)
    own = observe(random, [1.0, 0.0, 0.0], 300)
    alike, unlike = observe(random, [1.0, 0.0, 0.0], 2_000), observe(random, [-1.0, 0.0, 0.0], 2_000)
    sharing = Sharing()
    assert sharing.limit(own, own + alike).count > 1.3 * own.count
    prior = sharing.compute_prior(D)
    assert find_weight(own.gram, own.moment, unlike.gram, unlike.moment, 0.2, prior) <= 1 / 16
    assert sharing.limit(own, own + unlike).count < own.count + 200
    assert sharing.limit(Statistics.zero(D), alike) is alike
    nothing = sharing.limit(own, own)
    assert np.array_equal(nothing.gram, own.gram)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.floats(-1, 1))
def test_the_weight_is_never_worse_than_to_believe_nobody(seed: int, turn: float) -> None:
    """By a likelihood that is computed another way: as a difference of log-determinants and fits by NumPy."""
    random = np.random.default_rng(seed)
    own, others = observe(random, [1.0, 0.0, 0.0], 30), observe(random, [turn, 0.0, 0.0], 100)
    weight = find_weight(own.gram, own.moment, others.gram, others.moment, 0.2, 0.6)

    def likelihood(share: float) -> float:
        gram, moment = share * others.gram, share * others.moment
        together = measure_evidence(own.gram + gram, own.moment + moment, 0.2, 0.6)
        return together - measure_evidence(gram, moment, 0.2, 0.6)

    assert likelihood(weight) >= max(likelihood(0.0), likelihood(1.0)) - 1e-9
    assert weight in {0.0, *(2.0**-halving for halving in range(9))}


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_the_weight_is_that_of_one_share_after_the_other(noise: float) -> None:
    """Shares are measured side by side, as each alone would be."""
    random, variance, prior = np.random.default_rng(6), 0.2, 0.6
    for _ in range(40):
        own = observe(random, [1.0, 0.0, 0.0], int(random.integers(1, 200)))
        others = observe(random, [1.0 - noise * random.normal(), noise * random.normal(), 0.0], 300)

        def measure(own_share: float, share: float, own: Statistics = own, others: Statistics = others) -> float:
            gram, moment = own_share * own.gram + share * others.gram, own_share * own.moment + share * others.moment
            return measure_evidence(gram, moment, variance, prior)

        likelihoods = [measure(1.0, share) - measure(0.0, share) for share in 2.0 ** -np.arange(9)]
        chosen = 0
        while chosen < 8 and likelihoods[chosen + 1] > likelihoods[chosen] + MIN_GAIN:
            chosen += 1
        alone = measure(1.0, 0.0)
        is_doubted = likelihoods[chosen] < alone or (chosen > 0 and likelihoods[-1] < alone)
        expected = 0.0 if is_doubted else 2.0**-chosen
        assert find_weight(own.gram, own.moment, others.gram, others.moment, variance, prior) == expected
