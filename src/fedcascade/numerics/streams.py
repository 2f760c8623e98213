"""Addressed random numbers: every policy gets the same users, items and clicks.

A number is a pure function of its address (seed, stream, round, index), computed by the counter-based generator
Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). The draws of one policy do not
shift those of another, and runs do not depend on the engine, the number of threads or restarts.

Normals use only + - * / sqrt, fused multiply-adds, integer operations and bit casts in a fixed order, so their float32
bits are the same on every processor.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.jit import fma, jit, jit_inline, jit_within
from fedcascade.numerics.simd import align_to_cache_line

ARRIVAL = 1  # arriving user
ITEMS = 2  # features of the items on offer
SHELF = 3  # number of items on offer
CLICK = 4  # attraction of an item
AUXILIARY = 5  # random exchanges
TIE = 6  # order of equal scores
THETA = 7  # users' preferences
CLUSTER = 8  # users' clusters
SAMPLE = 9  # users of a ratings file
KMEANS = 10  # start of k-means
RATINGS = 11  # generated ratings
VISIT = 12  # candidates of a new group
CATEGORY = 14  # categories of items
COST = 15  # costs of items
EXPLORATION = 16  # random lists
RESAMPLE = 17  # users of a bootstrap sample
REPLAY = 18  # acceptance of a logged list
PROPOSAL = 20  # start of k-means for proposed groups
ACTIVE_SAMPLE = 21  # active agents that a population is fitted to
STAY = 25  # whether a user continues after a click
LOOK = 26  # whether a user examines a position
REWARD = 27  # value of a click
DELAY = 28  # rounds between a list and its feedback
PRIVACY = 29  # noise of private uploads

BLOCK = 256  # items drawn together

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW32, _LOW24 = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFF)
_24, _32 = np.uint64(24), np.uint64(32)

# Typed: numba turns float32 * 1.0 into float64, and int32 + uint32 into int64.
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_U1, _SIGN = np.uint32(1), np.uint32(0x80000000)
_EXPONENT, _FULL_WORD = np.int32(-(1 << 23)), np.int32(32 << 23)  # masks and steps of float32's exponent
_TWO_THIRDS = np.int32(0x3F2AAAAB)  # the bits of 2/3
_TURN = np.float32(np.pi / 2.0**32)
# Minimax polynomials with rounded coefficients, found one after another; see decision 10.
# -2 ln(1 + f) / f for |f| <= 1/3, to 1.8e-7 of its size; its last line is -2 ln 2 per step of the exponent.
_L0, _L1, _L2 = np.float32(-1.9999996423721313), np.float32(0.9999998211860657), np.float32(-0.6667616963386536)
_L3, _L4, _L5 = np.float32(0.500083327293396), np.float32(-0.3958975672721863), np.float32(0.32948482036590576)
_L6, _L7 = np.float32(-0.3421010673046112), np.float32(0.30237478017807007)
_LN4 = np.float32(-2.0 * np.log(2.0) / (1 << 23))
# sin(t) / t, and cos(t), in powers of t^2 for |t| <= pi/2, to 6e-9 and 6e-8.
_S0, _S1, _S2 = np.float32(1.0), np.float32(-0.16666656732559204), np.float32(0.008333006873726845)
_S3, _S4 = np.float32(-0.00019805793999694288), np.float32(2.5981353246606886e-06)
_C0, _C1, _C2 = np.float32(0.9999999403953552), np.float32(-0.4999989867210388), np.float32(0.04166349023580551)
_C3, _C4 = np.float32(-0.001385320327244699), np.float32(2.3145015802583657e-05)

Integer = int | np.integer[Any]
Words = tuple[np.uint32, np.uint32, np.uint32, np.uint32]
_Wide = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


@jit
def _mix(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, k0: np.uint64, k1: np.uint64) -> _Wide:
    # Words are the low halves of 64 bits; high halves are ignored. A vector multiply reads low halves only, so this
    # needs neither widening nor narrowing.
    p, q = _M0 * (a & _LOW32), _M1 * (c & _LOW32)
    return (q >> _32) ^ b ^ k0, q, (p >> _32) ^ d ^ k1, p


@jit
def philox(seed: Integer, stream: Integer, round_: Integer, index: Integer, group: Integer) -> Words:
    """Return the four random words at an address."""
    a, b, c = np.uint64(index), np.uint64(group), np.uint64(round_)
    d = (np.uint64(stream) << _24) | ((c >> _32) & _LOW24)
    k0, k1 = np.uint64(seed), np.uint64(seed) >> _32
    for _ in range(10):
        a, b, c, d = _mix(a, b, c, d, k0, k1)
        k0, k1 = k0 + _W0, k1 + _W1
    return np.uint32(a), np.uint32(b), np.uint32(c), np.uint32(d)


class WordBuffer(NamedTuple):
    """Memory for one block of items: words shared by groups of coordinates, random words, squared lengths."""

    shared: NDArray[np.uint64]
    words: NDArray[np.uint32]
    squares: NDArray[np.float32]


@jit_within
def make_word_buffer() -> WordBuffer:
    """Allocate a buffer."""
    return WordBuffer(
        align_to_cache_line(np.empty(3 * BLOCK + 8, np.uint64)),
        align_to_cache_line(np.empty(4 * BLOCK + 16, np.uint32)),
        align_to_cache_line(np.empty(BLOCK + 16, np.float32)),
    )


@jit_inline
def share_rounds(seed: Integer, stream: Integer, round_: Integer, first: int, count: int, buffer: WordBuffer) -> None:
    """Compute the part of Philox's first three rounds that depends on the index and not on the group.

    After one round two words depend on the index alone and one on the group; after two rounds only one depends on both.
    """
    shared, low = buffer.shared, np.uint64(round_)
    high = (np.uint64(stream) << _24) | ((low >> _32) & _LOW24)
    k0, k1 = np.uint64(seed), np.uint64(seed) >> _32
    b = _M1 * (low & _LOW32)
    for i in range(count):
        p = _M0 * (np.uint64(first + i) & _LOW32)
        q = _M1 * (((p >> _32) ^ high ^ k1) & _LOW32)
        a = (q >> _32) ^ b ^ (k0 + _W0)
        shared[i] = p ^ (k1 + _W1)
        shared[BLOCK + i] = q ^ (k0 + _W0 + _W0)
        shared[2 * BLOCK + i] = _M0 * (a & _LOW32)


@jit_inline
def draw_group_words(seed: Integer, round_: Integer, group: Integer, count: int, buffer: WordBuffer) -> None:
    """Fill ``buffer.words`` with the four words of ``philox``, one after another."""
    shared, words = buffer.shared, buffer.words
    k0, k1 = np.uint64(seed), np.uint64(seed) >> _32
    p = _M0 * ((((_M1 * (np.uint64(round_) & _LOW32)) >> _32) ^ np.uint64(group) ^ k0) & _LOW32)
    k0, k1 = k0 + _W0 + _W0, k1 + _W1 + _W1
    high, low = p >> _32, p ^ k1
    for i in range(count):
        q, d = _M1 * ((high ^ shared[i]) & _LOW32), shared[2 * BLOCK + i]
        a, b, c = (q >> _32) ^ shared[BLOCK + i], q, (d >> _32) ^ low
        key0, key1 = k0 + _W0, k1 + _W1
        for _ in range(7):
            a, b, c, d = _mix(a, b, c, d, key0, key1)
            key0, key1 = key0 + _W0, key1 + _W1
        words[i], words[BLOCK + i] = np.uint32(a), np.uint32(b)
        words[2 * BLOCK + i], words[3 * BLOCK + i] = np.uint32(c), np.uint32(d)


@jit
def uniform(seed: Integer, stream: Integer, round_: Integer, index: Integer) -> float:
    """Return the uniform number in [0, 1) at an address, with 53 random bits."""
    a, b, _, _ = philox(seed, stream, round_, index, 0)
    return ((np.int64(a) >> 5 << 26) + (np.int64(b) >> 6)) * 2.0**-53


@jit
def uniforms(seed: Integer, stream: Integer, round_: Integer, count: Integer) -> NDArray[np.float64]:
    """Return the uniform numbers of a round at indices 0 to count - 1."""
    out = np.empty(count, np.float64)
    for i in range(count):
        out[i] = uniform(seed, stream, round_, i)
    return out


@jit
def words(seed: Integer, stream: Integer, round_: Integer, count: Integer) -> NDArray[np.uint32]:
    """Return the first random word at indices 0 to count - 1, for use as tie-breaks."""
    out = np.empty(count, np.uint32)
    draw_words_into(seed, stream, round_, out, make_word_buffer())
    return out


@jit
def sample_indices(seed: Integer, stream: Integer, round_: Integer, population: int, count: int) -> NDArray[np.int64]:
    """Sample ``count`` of 0..population - 1 without replacement, by the first steps of a Fisher-Yates shuffle.

    A smaller sample is a prefix of a larger one.
    """
    order, picks = np.arange(population), words(seed, stream, round_, count)
    for i in range(count):
        j = i + np.int64((np.uint64(picks[i]) * np.uint64(population - i)) >> _32)
        order[i], order[j] = order[j], order[i]
    return order[:count]


@jit_inline
def draw_words_into(
    seed: Integer, stream: Integer, round_: Integer, out: NDArray[np.uint32], buffer: WordBuffer
) -> None:
    """Fill ``out`` with the first random word at indices 0, 1, ..."""
    for first in range(0, out.size, BLOCK):
        count = min(BLOCK, out.size - first)
        share_rounds(seed, stream, round_, first, count, buffer)
        draw_group_words(seed, round_, 0, count, buffer)
        for i in range(count):
            out[first + i] = buffer.words[i]


@jit
def compute_radius(word: np.uint32) -> np.float32:
    """Compute sqrt(-2 ln u) for u = (word | 1) / 2^32 = m 2^e with m in [2/3, 4/3)."""
    bits = np.int32(np.float32(np.uint32(word | _U1)).view(np.int32) - _FULL_WORD)
    step = np.int32(np.int32(bits - _TWO_THIRDS) & _EXPONENT)  # e, where a float32 keeps it
    f = np.int32(bits - step).view(np.float32) - _ONE
    p = fma(fma(fma(fma(_L7, f, _L6), f, _L5), f, _L4), f, _L3)
    p = fma(fma(fma(p, f, _L2), f, _L1), f, _L0)
    return np.float32(np.sqrt(fma(p, f, np.float32(step) * _LN4)))


@jit
def compute_direction(word: np.uint32) -> tuple[np.float32, np.float32]:
    """Compute cosine and sine of an angle in [-pi/2, pi/2), from the low 31 bits of a word."""
    t = np.float32(np.uint32(word << _U1).view(np.int32)) * _TURN
    z = t * t
    cosine = fma(fma(fma(fma(_C4, z, _C3), z, _C2), z, _C1), z, _C0)
    sine = fma(fma(fma(fma(_S4, z, _S3), z, _S2), z, _S1), z, _S0) * t
    return cosine, sine


@jit
def normal_pair(length: np.uint32, angle: np.uint32) -> tuple[np.float32, np.float32]:
    """Compute two independent standard normals by Box-Muller; the top bit of ``angle`` is their sign."""
    radius = np.uint32(np.float32(compute_radius(length)).view(np.uint32) ^ np.uint32(angle & _SIGN)).view(np.float32)
    cosine, sine = compute_direction(angle)
    return radius * cosine, radius * sine


@jit_inline
def _draw_normal_pairs(
    buffer: WordBuffer, pair: int, xs: NDArray[np.float32], ys: NDArray[np.float32], count: int
) -> None:
    """Fill two rows with normals, and add their squares to ``buffer.squares``."""
    words, squares = buffer.words[2 * pair * BLOCK :], buffer.squares
    for i in range(count):
        x, y = normal_pair(words[i], words[BLOCK + i])
        squares[i] = fma(y, y, fma(x, x, squares[i]))
        xs[i], ys[i] = x, y


@jit_inline
def _draw_single_normals(buffer: WordBuffer, pair: int, xs: NDArray[np.float32], count: int) -> None:
    """Fill the first row of a pair with normals, and add their squares to ``buffer.squares``."""
    words, squares = buffer.words[2 * pair * BLOCK :], buffer.squares
    for i in range(count):
        x, _ = normal_pair(words[i], words[BLOCK + i])
        squares[i] = fma(x, x, squares[i])
        xs[i] = x


@jit_inline
def draw_normal_block(
    seed: Integer, stream: Integer, round_: Integer, first: int, out: NDArray[np.float32], buffer: WordBuffer
) -> int:
    """Fill a block of columns with normals and ``buffer.squares`` with squared lengths; return its width."""
    rows, count = out.shape[0], int(min(BLOCK, out.shape[1] - first))
    buffer.squares[:count] = _ZERO
    share_rounds(seed, stream, round_, first, count, buffer)
    for k in range(0, rows, 2):
        pair = k % 4 // 2
        if pair == 0:
            draw_group_words(seed, round_, k // 4, count, buffer)
        if k + 1 < rows:
            _draw_normal_pairs(buffer, pair, out[k, first:], out[k + 1, first:], count)
        else:
            _draw_single_normals(buffer, pair, out[k, first:], count)
    return count


@jit
def draw_normals_into(seed: Integer, stream: Integer, round_: Integer, out: NDArray[np.float32]) -> None:
    """Fill ``out`` (coordinates, items) with standard normals that do not depend on the shape of ``out``."""
    buffer = make_word_buffer()
    for first in range(0, out.shape[1], BLOCK):
        draw_normal_block(seed, stream, round_, first, out, buffer)


def draw_normals(seed: int, stream: int, round_: int, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Draw standard normals of that shape (coordinates, items), in single precision, as float64."""
    normals = np.empty(shape, np.float32)
    draw_normals_into(np.uint64(seed), stream, round_, normals)
    return normals.astype(np.float64)
