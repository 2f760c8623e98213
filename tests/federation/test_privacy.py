"""Private uploads have the stated noise, sensitivity and guarantee; servers refuse what noise cannot explain."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedcascade.federation import agent as transitions
from fedcascade.federation.agent import Agent, LocalState, ShownList
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, PRIVATE_POPULATION, make_private
from fedcascade.federation.privacy import (
    STEP,
    NoiseSource,
    PrivateUploads,
    SimulatedNoise,
    SystemNoise,
    Unit,
    compute_epsilon,
    find_rho,
    parse_privacy,
    sample_discrete_gaussian,
)
from fedcascade.federation.server import Server
from fedcascade.federation.triggers import Determinant, Doubling
from fedcascade.federation.warm_start import warm_up
from fedcascade.learning.cascade import Examination
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import normalise

LISTS, LENGTH, D = 20, 3, 3


@dataclass
class NoNoise:
    """A source that notes the variances and adds nothing."""

    variances: list[list[int]] = field(default_factory=list)

    def draw(self, agent: int, sequence: int, variances: list[int]) -> NDArray[np.float64]:
        self.variances.append(variances)
        return np.zeros(len(variances))


def make_history(seed: int) -> list[tuple[NDArray[np.float32], Any]]:
    drawn = np.random.default_rng(seed)
    features = [normalise(drawn.normal(size=(LENGTH, D))) for _ in range(LISTS)]
    clicks = [None, 0, 1, 2, Examination(3, (0, 2)), Examination(1, (0,), (0.25,))]
    return [(listed, clicks[drawn.integers(len(clicks))]) for listed in features]


def list_uploads(policy: Any, history: list[tuple[NDArray[np.float32], Any]], source: NoiseSource) -> list[Statistics]:
    """Return what an agent sends that has shown these lists, whatever it would have chosen itself."""
    state: LocalState = transitions.begin(policy, D)
    sent = []
    for round_, (listed, click) in enumerate(history, 1):
        shown = ShownList(0, round_, np.arange(LENGTH), listed)
        state, upload = transitions.observe(policy, state, shown, click, round_=round_, draw=0.5)
        released = None if upload is None else policy.privacy.release(upload, source)
        if released is not None:
            sent.append(released.statistics)
            state = transitions.receive(policy, state, Statistics.zero(D))
    return sent


def to_row(sums: Statistics) -> NDArray[np.float64]:
    """The released numbers of an upload: the triangle of the gram and the moment in grid steps, and the clicks."""
    return np.array([*(sums.gram[np.triu_indices(D)] / STEP), *(sums.moment / STEP), sums.clicks])


def measure_divergence(policy: Any, history: Any, neighbour: Any) -> list[float]:
    """Half the squared distance of each pair of uploads, in standard deviations of the noise: their zCDP."""
    source = NoNoise()
    pairs = zip(list_uploads(policy, history, source), list_uploads(policy, neighbour, NoNoise()), strict=True)
    distances = [to_row(one) - to_row(other) for one, other in pairs]
    return [float((d**2 / np.array(v)).sum() / 2) for d, v in zip(distances, source.variances, strict=True)]


NOTHING = (np.zeros((LENGTH, D), np.float32), None)  # stands for a list that is not there


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 15), st.floats(0.1, 20.0), st.floats(1e-9, 1e-3))
def test_histories_that_differ_in_one_list_differ_in_one_upload_and_within_rho(
    seed: int, left_out: int, epsilon: float, delta: float
) -> None:
    privacy = PrivateUploads(epsilon=epsilon, delta=delta)
    policy = replace(PRIVATE_POPULATION, privacy=privacy)
    history = make_history(seed)
    neighbour = [NOTHING if place == left_out else each for place, each in enumerate(history)]
    spent = measure_divergence(policy, history, neighbour)
    assert len(spent) == 5  # after 1, 2, 4, 8 and 16 lists
    assert sum(rho > 0 for rho in spent) == 1
    assert max(spent) <= privacy.rho
    if history[left_out][1] == 0:
        assert max(spent) > 0.9 * privacy.rho  # the bound is nearly reached


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_with_the_user_as_unit_all_uploads_together_stay_within_rho(seed: int, uploads: int) -> None:
    privacy = PrivateUploads(epsilon=2.0, unit=Unit.USER, uploads=uploads)
    policy = replace(PRIVATE_POPULATION, privacy=privacy)
    spent = measure_divergence(policy, make_history(seed), [NOTHING] * LISTS)
    assert len(spent) == uploads  # then the budget is spent, and the agent sends no more
    assert sum(spent) <= find_rho(2.0, 1e-6)


@pytest.mark.parametrize("variance", [1, 4, 300])
def test_the_sampler_has_the_probabilities_of_a_discrete_gaussian(variance: int) -> None:
    drawn = np.array([sample_discrete_gaussian(variance) for _ in range(20_000)])
    values = np.arange(-40 * math.isqrt(variance) - 40, 40 * math.isqrt(variance) + 41)
    weights = np.exp(-(values**2) / (2.0 * variance))
    expected = weights / weights.sum() * drawn.size
    counted = np.array([np.count_nonzero(drawn == value) for value in values])
    is_common = expected > 10
    observed = np.append(counted[is_common], counted[~is_common].sum())
    likely = np.append(expected[is_common], expected[~is_common].sum())
    assert stats.chisquare(observed, likely * observed.sum() / likely.sum()).pvalue > 1e-7


@pytest.mark.parametrize("source", [SystemNoise(), SimulatedNoise(7)])
def test_a_released_upload_has_the_stated_distribution(source: NoiseSource) -> None:
    privacy, d = PrivateUploads(epsilon=3.0), 8
    sums = Statistics.zero(d).observe(normalise(np.ones((1, d))), 0)
    scales = privacy.compute_scales(1)
    noisy = [
        privacy.release(Upload(agent=2, sequence=k, cause=Cause.FORCED, statistics=sums), source) for k in range(1, 81)
    ]
    grams = np.array([each.statistics.gram - sums.gram for each in noisy if each is not None])
    moments = np.array([each.statistics.moment - sums.moment for each in noisy if each is not None])
    for errors, scale in (
        (grams.diagonal(axis1=1, axis2=2), scales.gram),
        (grams[:, np.triu(np.ones((d, d), bool), 1)], scales.gram / math.sqrt(2)),
        (moments, scales.moment),
    ):
        assert stats.kstest(errors.ravel() / scale, "norm").pvalue > 1e-7
    assert stats.pearsonr(grams[:, 0, 1], moments[:, 0]).pvalue > 1e-7
    assert len({each.statistics.clicks for each in noisy if each is not None}) == 2  # clipped to 0..lists


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_rho_is_safe_and_close_to_the_best_for_one_gaussian(epsilon: float, delta: float) -> None:
    def compute_delta(rho: float) -> float:  # of a Gaussian mechanism, exactly (Balle, Wang 2018)
        shift = math.sqrt(2 * rho)
        return float(
            stats.norm.cdf(shift / 2 - epsilon / shift)
            - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)
        )

    rho = find_rho(epsilon, delta)
    assert compute_delta(rho) <= delta
    assert compute_delta(1.5 * rho) > delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 10.0])
def test_epsilon_is_that_of_the_divergences_of_two_discrete_gaussians(epsilon: float) -> None:
    # Sums over the whole numbers, and the exact delta of the privacy loss, in the place of the paper's formula: for one
    # Gaussian with all of rho.
    rho, delta = find_rho(epsilon, 1e-6), 1e-6
    variance = 1e9
    shift = round(math.sqrt(2 * rho * variance))
    points = np.arange(-450_000, 450_000 + shift)
    first, second = (-((points - centre) ** 2) / (2 * variance) for centre in (0, shift))
    total = np.log(np.exp(first).sum())
    assert np.log(np.exp(second).sum()) == pytest.approx(total, abs=1e-9)
    for order in (1.5, 2.0, 4.0):  # rho-zCDP bounds each of them by order rho
        divergence = np.log(np.exp(order * first + (1 - order) * second - total).sum()) / (order - 1)
        assert divergence == pytest.approx(order * rho, rel=2e-3)
    exact = np.maximum(0.0, np.exp(first - total) - np.exp(epsilon + second - total)).sum()
    assert 0.02 * delta < exact <= delta
    assert compute_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-6)


def test_an_attacker_guesses_one_list_as_often_as_the_noise_says_and_less_than_epsilon_allows() -> None:
    # The attacker knows all other lists, and has to tell an upload with the list from one without it: 10,000 games.
    privacy, d, games = PrivateUploads(epsilon=1.0), 2, 10_000
    present = Statistics.zero(d).observe(normalise([[1.0, 0.0]]), 0)
    absent = Statistics.zero(d).observe(np.zeros((1, d), np.float32), None)
    scales, drawn = privacy.compute_scales(1), np.random.default_rng(3).integers(2, size=games)
    won = 0
    for game, truth in enumerate(drawn):
        chosen = present if truth else absent
        sent = privacy.release(Upload(agent=0, sequence=game + 1, cause=Cause.FORCED, statistics=chosen), SystemNoise())
        assert sent is not None
        # The likelihood ratio is the best test of two Gaussians; clipped clicks add nearly nothing.
        score = (sent.statistics.gram[0, 0] - 0.5) / scales.gram**2 + (
            sent.statistics.moment[0] - 0.5
        ) / scales.moment**2
        won += int(score > 0) == truth
    interval = stats.binomtest(won, games).proportion_ci(1 - 1e-6)
    allowed = math.e / (1 + math.e) + privacy.delta
    expected = stats.norm.cdf(math.sqrt(1 / scales.gram**2 + 1 / scales.moment**2) / 2)
    assert interval.low <= expected <= interval.high
    assert interval.high < allowed


def make_noisy(privacy: PrivateUploads, d: int, lists: int, sequence: int) -> Statistics:
    drawn = np.random.default_rng(sequence)
    sums = Statistics.zero(d)
    for listed in normalise(drawn.normal(size=(lists, d))):
        sums = sums.observe(listed[None], 0 if drawn.random() < 0.5 else None)
    sent = privacy.release(Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=sums), SimulatedNoise(1))
    assert sent is not None
    return sent.statistics


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_a_server_takes_honest_noise_and_refuses_what_noise_cannot_explain(epsilon: float) -> None:
    privacy, d = PrivateUploads(epsilon=epsilon), 6
    for sequence in range(1, 100):
        noisy = make_noisy(privacy, d, sequence % 9 + 1, sequence)
        privacy.check(noisy, d)
        taken = privacy.discount(noisy)
        values = np.linalg.eigvalsh(taken.gram)
        assert values[0] >= -1e-9
        assert values[-1] <= noisy.rounds + 1e-9  # an upload never counts for more than its lists
        assert np.isfinite(taken.moment).all()
    far = 10.0 * privacy.compute_scales(noisy.rounds).gram * math.sqrt(2 * d) + noisy.rounds
    for sign in (-1.0, 1.0):
        with pytest.raises(ValueError, match="eigenvalues of gram must be in"):
            privacy.check(replace(noisy, gram=noisy.gram + sign * far * np.eye(d)), d)
    with pytest.raises(ValueError, match="moment must have length"):
        privacy.check(replace(noisy, moment=noisy.moment + far * 10), d)
    with pytest.raises(ValueError, match="one item for each of its lists"):
        privacy.check(replace(noisy, count=noisy.count + 1), d)


def test_nearly_without_noise_the_evidence_is_that_of_the_data() -> None:
    privacy = PrivateUploads(epsilon=1e9)
    noisy = make_noisy(privacy, 5, 40, 1)
    taken = privacy.discount(noisy)
    np.testing.assert_allclose(taken.gram, noisy.gram, atol=1e-2)
    np.testing.assert_allclose(taken.moment, noisy.moment, atol=1e-2)


def test_policies_and_calls_that_would_break_the_guarantee_are_refused() -> None:
    with pytest.raises(ValueError, match="a scheduled trigger, like Doubling"):
        replace(PRIVATE_POPULATION, trigger=Determinant() | Doubling())
    with pytest.raises(ValueError, match="no ChangeDetection"):
        PRIVATE_POPULATION.with_constants(drift="restart")
    with pytest.raises(ValueError, match=r"needs Trust\(\)"):
        replace(POLICIES["fedc3ucb-h"], trigger=Doubling(), privacy=PrivateUploads(epsilon=1.0))
    with pytest.raises(ValueError, match="private uploads need the policy population, got fedc3ucb-h"):
        make_private(POLICIES["fedc3ucb-h"], PrivateUploads(epsilon=1.0))
    problem = ProblemSize(users=2, dimension=4, list_length=2, rounds=10)
    agent = Agent(id=0, policy=PRIVATE_POPULATION, problem=problem, oracle=TopK(length=2))
    assert agent.take_back(Statistics(np.eye(4), np.ones(4) / 2, 4, 1, 4), least=1) is None  # sent once only
    assert agent.state.buffer.count == 0
    server = Server(policy=PRIVATE_POPULATION, agents=2, dimension=4)
    with pytest.raises(ValueError, match="a warm start uploads a log without noise"):
        warm_up(server, [agent, agent], LogSums(4))
    with pytest.raises(ValueError, match="a private agent uploads on its schedule only"):
        agent.send_buffer(Cause.FORCED)  # its sums have no noise yet
    off_grid = Upload(
        agent=0, sequence=1, cause=Cause.FORCED, statistics=Statistics(np.eye(2) / 3, np.zeros(2), 1, 0, 1)
    )
    with pytest.raises(ValueError, match="features on the grid"):
        PrivateUploads(epsilon=1.0).release(off_grid, SystemNoise())


def test_a_private_agent_is_saved_with_its_first_items() -> None:
    problem = ProblemSize(users=2, dimension=4, list_length=2, rounds=10)
    agent = Agent(id=0, policy=PRIVATE_POPULATION, problem=problem, oracle=TopK(length=2))
    items = normalise(np.random.default_rng(1).normal(size=(5, 4)))
    for round_ in range(1, 4):
        agent.observe(agent.recommend(items, np.arange(5, dtype=np.uint32)), 0, round_=round_, draw=0.5)
    again = Agent(id=0, policy=PRIVATE_POPULATION, problem=problem, oracle=TopK(length=2))
    again.load_state(agent.to_state())
    assert again.state.first is not None
    assert again.state.first.rounds == 1  # the third list; the first two are uploaded


@pytest.mark.parametrize(("text", "line"), [
    ("epsilon=1e-5", "private uploads of epsilon 1e-05, delta 1e-06, unit list"),
    ("epsilon=0.01,delta=1e-300", "of epsilon 0.01, delta 1e-300, unit list"),
    ("epsilon=2,unit=user,uploads=1000000000", "uploads 1000000000 would be noise alone: give a larger epsilon"),
    ("epsilon=2,epsilon=30", "privacy must give each constant once"),
])  # fmt: skip
def test_a_promise_that_cannot_be_kept_is_refused(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        parse_privacy(text)


def test_more_uploads_of_a_user_are_less_privacy() -> None:
    # An agent that has spent all of rho in 16 uploads would spend half of it again in 16 more of 32.
    known = PrivateUploads(epsilon=2.0, unit=Unit.USER, uploads=16)
    assert known.weakens(replace(known, uploads=17))
    assert not known.weakens(replace(known, uploads=8))
    assert not PrivateUploads(epsilon=2.0, uploads=16).weakens(replace(known, uploads=17))
    assert known.weakens(replace(known, unit=Unit.LIST))


class HugeNoise:
    """A source whose noise has more than the 53 bits of a float."""

    def draw(self, agent: int, sequence: int, variances: list[int]) -> NDArray[Any]:
        return np.array([2**60 + 129] * len(variances), object)


def test_a_sum_beyond_53_bits_is_rounded_once() -> None:
    # Rounded before it is added, noise leaves the low bits of the data: 2^60 + 129 is halfway between two floats.
    sums = Statistics.zero(1).observe(np.array([[0.5 + 2.0**-12]], np.float32), 0)
    upload = Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=sums)
    sent = PrivateUploads(epsilon=1.0).release(upload, HugeNoise())
    assert sent is not None
    steps = int(sums.gram[0, 0] / STEP)
    assert sent.statistics.gram[0, 0] / STEP == float(2**60 + 129 + steps)
    assert SystemNoise().draw(0, 1, [2**200])[0] != 0
    assert isinstance(SystemNoise().draw(0, 1, [4])[0], int)
    assert abs(SimulatedNoise(1).draw(0, 1, [2**80])[0]) > 2.0**30  # a user's noise, with many lists in an upload
