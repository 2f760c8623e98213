"""Random numbers with addresses, so that every policy meets the same users, items and luck.

A number is never the next one of a sequence. It is a pure function of its address (seed, stream, round,
index), computed by the counter-based generator Philox4x32-10 (Salmon et al., Parallel random numbers: as
easy as 1, 2, 3, SC 2011). What one policy looks at cannot shift what another one meets, and any engine, any
number of threads and any restart halfway gives the same run.

The normals use only + - * / sqrt, integer operations and bit casts, in a written order and without a maths
library, so that their float32 bits are the same on every processor.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.compiled import compiled

ARRIVAL = 1  # which user comes
ITEMS = 2  # the features of the items on the shelf
SHELF = 3  # how many items are on the shelf
CLICK = 4  # whether an item attracts the user
AUXILIARY = 5  # the random exchanges
TIE = 6  # the order of equally good items
THETA = 7  # the users' preferences
CLUSTER = 8  # which users are alike

_LANES = 16  # scratch rows are a multiple of this long, so that no vector loop has a slow remainder

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW32, _LOW24 = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFF)
_24, _32 = np.uint64(24), np.uint64(32)

# Typed, because numba turns float32 * 1.0 into float64 and int32 + uint32 into int64.
_HALF, _ONE, _MINUS_TWO, _TINY = np.float32(0.5), np.float32(1.0), np.float32(-2.0), np.float32(1e-30)
_STEP = np.float32(2.0**-23)
_ROOT_HALF = np.float32(0.5**0.5)
_ROOT_HALF_BITS, _TO_ROOT_HALF = np.int32(0x3F3504F3), np.int32(0x3F800000 - 0x3F3504F3)
_MANTISSA, _BIAS, _23 = np.int32(0x7FFFFF), np.int32(127), np.int32(23)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# The polynomials are those of Cephes's logf, sinf and cosf (S. Moshier), good to about 1e-7.
_L0, _L1, _L2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_L3, _L4, _L5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_L6, _L7, _L8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
_S0, _S1, _S2 = np.float32(-1.9515295891e-4), np.float32(8.3321608736e-3), np.float32(-1.6666654611e-1)
_C0, _C1, _C2 = (
    np.float32(2.443315711809948e-5),
    np.float32(-1.388731625493765e-3),
    np.float32(4.166664568298827e-2),
)
_ANGLE, _MIDDLE = np.float32(np.pi / 2.0**31), np.int32(1 << 29)
_WITHIN, _ODD, _SIGN = np.uint32(0x3FFFFFFF), np.uint32(0x40000000), np.uint32(0x80000000)
_U1, _U9 = np.uint32(1), np.uint32(9)

Integer = int | np.integer[Any]
Words = tuple[np.uint32, np.uint32, np.uint32, np.uint32]
_Wide = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


@compiled
def _mix(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, k0: np.uint64, k1: np.uint64) -> _Wide:
    # Words live in the low halves of 64 bits and the high halves may hold rubbish: a vector multiply reads
    # low halves only, so this needs neither widening nor narrowing.
    p, q = _M0 * (a & _LOW32), _M1 * (c & _LOW32)
    return (q >> _32) ^ b ^ k0, q, (p >> _32) ^ d ^ k1, p


@compiled
def philox(seed: Integer, stream: Integer, round_: Integer, index: Integer, group: Integer) -> Words:
    """The four random words at one address."""
    a, b, c = np.uint64(index), np.uint64(group), np.uint64(round_)
    d = (np.uint64(stream) << _24) | ((c >> _32) & _LOW24)
    k0, k1 = np.uint64(seed), np.uint64(seed) >> _32
    for _ in range(10):
        a, b, c, d = _mix(a, b, c, d, k0, k1)
        k0, k1 = k0 + _W0, k1 + _W1
    return np.uint32(a), np.uint32(b), np.uint32(c), np.uint32(d)


@compiled
def _padded(count: Integer) -> np.int64:
    return (np.int64(count) + _LANES - 1) // _LANES * _LANES


@compiled
def _blocks_into(seed: Integer, stream: Integer, round_: Integer, group: Integer, out: NDArray[np.uint32]) -> None:
    # The same as philox at indices 0, 1, ... The loop over Philox's rounds is written again here, because
    # LLVM finds philox too long to inline, and without inlining this would not vectorise.
    low = np.uint64(round_)
    high = (np.uint64(stream) << _24) | ((low >> _32) & _LOW24)
    for i in range(out.shape[1]):
        a, b, c, d = np.uint64(i), np.uint64(group), low, high
        k0, k1 = np.uint64(seed), np.uint64(seed) >> _32
        for _ in range(10):
            a, b, c, d = _mix(a, b, c, d, k0, k1)
            k0, k1 = k0 + _W0, k1 + _W1
        out[0, i], out[1, i], out[2, i], out[3, i] = np.uint32(a), np.uint32(b), np.uint32(c), np.uint32(d)


@compiled
def _fraction(a: np.uint32, b: np.uint32) -> float:
    return ((np.int64(a) >> 5 << 26) + (np.int64(b) >> 6)) * 2.0**-53


@compiled
def uniform(seed: Integer, stream: Integer, round_: Integer, index: Integer) -> float:
    """The uniform number in [0, 1) at one address, with 53 random bits."""
    a, b, _, _ = philox(seed, stream, round_, index, 0)
    return _fraction(a, b)


@compiled
def uniforms(seed: Integer, stream: Integer, round_: Integer, count: Integer) -> NDArray[np.float64]:
    """The uniform numbers of one round at indices 0 to count - 1."""
    out, block = np.empty(count, np.float64), np.empty((4, _padded(count)), np.uint32)
    _blocks_into(seed, stream, round_, 0, block)
    for i in range(count):
        out[i] = _fraction(block[0, i], block[1, i])
    return out


@compiled
def uniforms_of_rounds(
    seed: Integer, stream: Integer, first: Integer, count: Integer, index: Integer = 0
) -> NDArray[np.float64]:
    """The uniform numbers at one index in rounds first to first + count - 1."""
    out = np.empty(count, np.float64)
    for i in range(count):
        out[i] = uniform(seed, stream, np.uint64(first) + np.uint64(i), index)
    return out


@compiled
def shelf(seed: Integer, round_: Integer, fewest: int, most: int) -> int:
    """How many items a round offers, between fewest and most."""
    if fewest == most:
        return most
    return fewest + int(uniform(seed, SHELF, round_, 0) * (most - fewest + 1))


@compiled
def arrivals(seed: Integer, first: Integer, steps: NDArray[np.float64], out: NDArray[np.int64]) -> None:
    """Fill out with who arrives in rounds first, first + 1, ...; steps are the inner steps of the distribution."""
    for i in range(out.size):
        draw = uniform(seed, ARRIVAL, np.uint64(first) + np.uint64(i), 0)
        out[i] = np.searchsorted(steps, draw, side="right")


@compiled
def words(seed: Integer, stream: Integer, round_: Integer, count: Integer) -> NDArray[np.uint32]:
    """The first random word at indices 0 to count - 1; as sort keys they break ties evenly."""
    block = np.empty((4, _padded(count)), np.uint32)
    _blocks_into(seed, stream, round_, 0, block)
    return block[0, :count].copy()


@compiled
def _radius(word: np.uint32) -> np.float32:
    # sqrt(-2 ln u) for u in (0, 1), with u = m 2^e and m in [sqrt(1/2), sqrt(2)).
    u = np.float32((np.float32(np.int32(word >> _U9)) + _HALF) * _STEP)
    bits = np.int32(u.view(np.int32) + _TO_ROOT_HALF)
    e = np.float32(np.int32((bits >> _23) - _BIAS))
    f = np.int32((bits & _MANTISSA) + _ROOT_HALF_BITS).view(np.float32) - _ONE
    p = (((_L0 * f + _L1) * f + _L2) * f + _L3) * f + _L4
    p = (((p * f + _L5) * f + _L6) * f + _L7) * f + _L8
    square = f * f
    log = f + (p * f * square + _LN2_LOW * e - _HALF * square) + _LN2_HIGH * e
    return np.float32(np.sqrt(_MINUS_TWO * log))


@compiled
def _direction(word: np.uint32) -> tuple[np.float32, np.float32]:
    # Cosine and sine: the top two bits are the quadrant, the others the angle in it, within pi/4 of 0.
    t = np.float32(np.int32(np.int32(word & _WITHIN) - _MIDDLE)) * _ANGLE
    z = t * t
    sine = np.float32(((_S0 * z + _S1) * z + _S2) * z * t + t).view(np.uint32)
    cosine = np.float32(((_C0 * z + _C1) * z + _C2) * z * z - _HALF * z + _ONE).view(np.uint32)
    odd = (word & _ODD) != 0
    x, y = (sine, cosine) if odd else (cosine, sine)
    x, y = x ^ ((word ^ (word << _U1)) & _SIGN), y ^ (word & _SIGN)
    return np.uint32(x).view(np.float32), np.uint32(y).view(np.float32)


@compiled
def _pair_into(
    lengths: NDArray[np.uint32],
    angles: NDArray[np.uint32],
    xs: NDArray[np.float32],
    ys: NDArray[np.float32],
) -> None:
    for i in range(lengths.size):
        radius = _radius(lengths[i])
        cosine, sine = _direction(angles[i])
        xs[i], ys[i] = radius * cosine, radius * sine


@compiled
def normals_into(seed: Integer, stream: Integer, round_: Integer, out: NDArray[np.float32]) -> None:
    """Fill out (coordinates, items) with standard normals; a value does not depend on out's shape."""
    coordinates, items = out.shape
    block, rows = np.empty((4, _padded(items)), np.uint32), np.empty((4, _padded(items)), np.float32)
    for first in range(0, coordinates, 4):
        _blocks_into(seed, stream, round_, first // 4, block)
        into = out[first : first + 4] if first + 4 <= coordinates and items == _padded(items) else rows
        _pair_into(block[0], block[1], into[0], into[1])
        _pair_into(block[2], block[3], into[2], into[3])
        for k in range(first, min(first + 4, coordinates) if into is rows else first):
            for i in range(items):
                out[k, i] = rows[k - first, i]


@compiled
def _resize(rows: NDArray[np.float32], length: np.float32) -> None:
    scales = np.zeros(rows.shape[1], np.float32)
    for k in range(rows.shape[0]):
        for i in range(scales.size):
            scales[i] += rows[k, i] * rows[k, i]
    for i in range(scales.size):
        scales[i] = length / np.sqrt(max(scales[i], _TINY))
    for k in range(rows.shape[0]):
        for i in range(scales.size):
            rows[k, i] *= scales[i]


@compiled
def unit_items_into(seed: Integer, round_: Integer, out: NDArray[np.float32], lifted: bool) -> None:
    """Fill out (dimension, items) with items of length 1, uniform on the sphere.

    Lifted items are uniform on a sphere of one dimension less, and their last coordinate is the constant
    1/sqrt(2).
    """
    free = out.shape[0] - 1 if lifted else out.shape[0]
    normals_into(seed, ITEMS, round_, out[:free])
    _resize(out[:free], _ROOT_HALF if lifted else _ONE)
    out[free:] = _ROOT_HALF
