"""The random numbers are the published generator's, addressed, well distributed and the same everywhere."""

import hashlib
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedcascade.numerics import streams

SEEDS = st.integers(0, 2**64 - 1)
ROUNDS = st.integers(0, 2**56 - 1)
STREAMS = st.integers(1, 11)
SIZES = st.integers(0, 70)


def normals(seed: int, stream: int, round_: int, coordinates: int, items: int) -> NDArray[np.float32]:
    out = np.full((coordinates, items), np.nan, np.float32)
    # Through np.uint64, so that seeds below and above 2^63 need one compilation and not two.
    streams.draw_normals_into(np.uint64(seed), stream, round_, out)
    return out


def block(seed: int, stream: int, round_: int, index: int, group: int) -> tuple[int, ...]:
    words = streams.philox(np.uint64(seed), stream, round_, index, group)
    return tuple(int(word) for word in words)


def reference_block(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ d ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, answer: str) -> None:
    index, group, low, high = (int(word, 16) for word in counter.split())
    k0, k1 = (int(word, 16) for word in key.split())
    found = block(k1 << 32 | k0, high >> 24, (high & 0xFFFFFF) << 32 | low, index, group)
    assert found == tuple(int(word, 16) for word in answer.split())


@settings(deadline=None, max_examples=60)  # the first example may compile
@given(
    seed=SEEDS,
    stream=STREAMS,
    round_=ROUNDS,
    index=st.integers(0, 2**32 - 1),
    group=st.integers(0, 2**32 - 1),
)
def test_every_part_of_an_address_has_its_place_in_the_counter(
    seed: int, stream: int, round_: int, index: int, group: int
) -> None:
    counter = (index, group, round_ & 0xFFFFFFFF, stream << 24 | round_ >> 32)
    assert block(seed, stream, round_, index, group) == reference_block(counter, (seed & 0xFFFFFFFF, seed >> 32))


def test_streams_are_different_and_fit_in_their_byte() -> None:
    names = ("ARRIVAL", "ITEMS", "SHELF", "CLICK", "AUXILIARY", "TIE", "THETA", "CLUSTER")
    assert [getattr(streams, name) for name in names] == list(range(1, 9))


@settings(deadline=None, max_examples=60)  # the first example may compile
@given(seed=SEEDS, stream=STREAMS, round_=ROUNDS, count=SIZES)
def test_uniforms_and_words_are_the_numbers_at_their_addresses(seed: int, stream: int, round_: int, count: int) -> None:
    key = np.uint64(seed)
    found = streams.uniforms(key, stream, round_, count)
    blocks = [block(seed, stream, round_, i, 0) for i in range(count)]
    assert streams.words(key, stream, round_, count).tolist() == [a for a, _, _, _ in blocks]
    assert found.tolist() == [((a >> 5) * 2**26 + (b >> 6)) / 2**53 for a, b, _, _ in blocks]
    assert found.tolist() == [streams.uniform(key, stream, round_, i) for i in range(count)]


@settings(deadline=None, max_examples=60)  # the first example may compile
@given(seed=SEEDS, stream=STREAMS, round_=ROUNDS, shape=st.tuples(SIZES, SIZES), larger=st.tuples(SIZES, SIZES))
def test_a_normal_does_not_depend_on_how_many_are_asked_for(
    seed: int, stream: int, round_: int, shape: tuple[int, int], larger: tuple[int, int]
) -> None:
    k, i = min(shape[0], larger[0]), min(shape[1], larger[1])
    first, second = normals(seed, stream, round_, *shape), normals(seed, stream, round_, *larger)
    assert first[:k, :i].tobytes() == second[:k, :i].tobytes()


@settings(deadline=None, max_examples=60)  # the first example may compile
@given(seed=SEEDS, rounds=st.lists(ROUNDS, min_size=2, max_size=5, unique=True))
def test_the_order_of_asking_does_not_matter(seed: int, rounds: list[int]) -> None:
    forwards = {r: normals(seed, streams.ITEMS, r, 5, 7).tobytes() for r in rounds}
    backwards = {r: normals(seed, streams.ITEMS, r, 5, 7).tobytes() for r in reversed(rounds)}
    assert forwards == backwards
    assert len(set(forwards.values())) == len(rounds)


@settings(deadline=None, max_examples=60)  # the first example may compile
@given(seed=SEEDS, stream=STREAMS, round_=ROUNDS)
def test_normals_agree_with_box_muller_in_double_precision(seed: int, stream: int, round_: int) -> None:
    found = normals(seed, stream, round_, 8, 40)
    blocks = [[block(seed, stream, round_, i, group) for i in range(40)] for group in range(2)]
    words = np.array(blocks, np.uint32).transpose(0, 2, 1)  # (group, lane, item)
    radius, angle = exact_radius(words[:, ::2]), exact_angle(words[:, 1::2])
    radius *= np.where(words[:, 1::2] >> 31, -1, 1)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(8, 40)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def exact_radius(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    u = (words | np.uint32(1)).astype(np.float32).astype(np.float64) / 2**32
    return np.asarray(np.sqrt(-2 * np.log(u)))


def exact_angle(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    return np.asarray((words << np.uint32(1)).view(np.int32) * (np.pi / 2**32))


def telling_words() -> NDArray[np.uint32]:
    """Words of every size, both ends, and those beside which the logarithm's halves meet."""
    rng = np.random.default_rng(0)
    ends = np.arange(200)
    meeting = np.concatenate([np.array(2.0**k / 3 + ends, np.int64) for k in range(9, 34)])
    sizes = (2.0 ** rng.uniform(0, 32, 4_000)).astype(np.int64)
    every = np.concatenate([ends, 2**32 - 1 - ends, meeting, sizes, rng.integers(0, 2**32, 4_000)])
    return (every & (2**32 - 1)).astype(np.uint32)


def test_radius_and_direction_are_good_to_a_few_units_of_single_precision() -> None:
    words = telling_words()
    radius = np.array([streams.compute_radius(word) for word in words], np.float64)
    cosine, sine = np.array([streams.compute_direction(word) for word in words], np.float64).T
    assert np.abs(radius - exact_radius(words)).max() < 6e-7  # of up to 6.66
    np.testing.assert_allclose(radius, exact_radius(words), rtol=3e-7, atol=1e-12)
    assert np.abs(cosine - np.cos(exact_angle(words))).max() < 3e-7
    assert np.abs(sine - np.sin(exact_angle(words))).max() < 2e-7


def test_compiled_normals_are_those_of_plain_python_to_the_bit() -> None:
    words = telling_words()[::7]
    radius, direction = cast(Any, streams.compute_radius), cast(Any, streams.compute_direction)
    for length, angle in zip(words, words[::-1], strict=True):
        plain = radius.py_func(length), *direction.py_func(angle)
        compiled = radius(length), *direction(angle)
        assert [float(number).hex() for number in compiled] == [float(number).hex() for number in plain]


def checksum(arrays: list[NDArray[np.float32]]) -> str:
    return hashlib.sha256(b"".join(array.astype("<f4").tobytes() for array in arrays)).hexdigest()


def test_the_bits_of_normals_are_pinned() -> None:
    """If this fails, the arithmetic has changed, and with it every published run."""
    drawn = [normals(0, streams.ITEMS, round_, 19, 203) for round_ in (1, 2, 3)]
    assert checksum(drawn) == "93bcd3a504f73d696a3b09f62a7231e5017324bea564c74aecd1da9589ae1b7c"


def test_uniforms_are_uniform() -> None:
    for sample in (
        streams.uniforms(11, streams.CLICK, 5, 1_000_000),
        np.array([streams.uniform(12, streams.CLICK, round_, 0) for round_ in range(1, 1_000_001)]),
    ):
        assert sample.min() >= 0
        assert sample.max() < 1
        assert stats.kstest(sample, "uniform").pvalue > 1e-4


def test_normals_are_normal() -> None:
    sample = normals(13, streams.THETA, 9, 20, 50_000).astype(np.float64)
    assert stats.kstest(sample.ravel(), "norm").pvalue > 1e-4
    assert min(stats.kstest(row, "norm").pvalue for row in sample[:4]) > 1e-4
    # Moments and tails, which a Kolmogorov test hardly sees; each within 5 standard errors.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((sample**power).mean() - expected) < 5 * np.sqrt(variance / sample.size)
    beyond = 2 * stats.norm.sf(4) * sample.size
    assert abs((np.abs(sample) > 4).sum() - beyond) < 5 * np.sqrt(beyond)


def uncorrelated(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> bool:
    # Squares too: the two normals of one pair share their radius.
    pairs = ((x, y), (x.astype(np.float64) ** 2, y.astype(np.float64) ** 2))
    return all(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(x.size) for a, b in pairs)


def test_neighbours_are_uncorrelated() -> None:
    here = normals(14, streams.ITEMS, 100, 8, 40_000)
    for seed, stream, round_ in (
        (15, streams.ITEMS, 100),
        (14 + 2**32, streams.ITEMS, 100),
        (14, streams.SHELF, 100),
        (14, streams.ITEMS, 101),
        (14, streams.ITEMS, 100 + 2**32),
    ):
        assert uncorrelated(here, normals(seed, stream, round_, 8, 40_000))
    assert uncorrelated(here[:, 1:], here[:, :-1])
    assert all(uncorrelated(here[k], here[j]) for k in range(8) for j in range(k))


def test_neighbouring_rounds_of_uniforms_are_uncorrelated() -> None:
    rounds = range(1, 500_001)
    sample = np.array([streams.uniform(16, streams.ARRIVAL, round_, 0) for round_ in rounds])
    other = np.array([streams.uniform(16, streams.ARRIVAL, round_, 1) for round_ in rounds])
    assert uncorrelated(sample[1:], sample[:-1])
    assert uncorrelated(sample, other)
