"""Logarithm and exponential with the same bits on every machine, unlike those of C libraries."""

import math

import numpy as np

from fedcascade.numerics.jit import jit_inline

_LN2_HIGH = 0.693147180369123816490  # 33 bits, so that its product with an exponent is exact
_LN2_LOW = 1.90821492927058770002e-10  # the rest of ln 2
_PER_LN2 = 1.4426950408889634
_FRACTION, _EXPONENT_OF_ONE = np.int64((1 << 52) - 1), np.int64(1023 << 52)
_ROOT_TWO = 1.4142135623730951
_ARTANH = tuple(1.0 / (2 * k + 1) for k in range(10, 0, -1))  # artanh(s) / s - 1, in powers of s^2 from the tenth down
_EXP = tuple(1.0 / math.factorial(k) for k in range(14, -1, -1))  # e^r, in powers of r from the fourteenth down


@jit_inline
def log(x: float) -> float:
    """Compute ln x of a positive number that is not subnormal; NaN for negative x or NaN, -inf for 0."""
    if not 2.0**-1022 <= x < np.inf:
        return x if x > 0.0 else (-np.inf if x == 0.0 else np.nan)
    bits = np.float64(x).view(np.int64)
    exponent = (bits >> 52) - 1023
    m = np.int64((bits & _FRACTION) | _EXPONENT_OF_ONE).view(np.float64)
    if m > _ROOT_TWO:
        m, exponent = 0.5 * m, exponent + 1
    # ln m = 2 artanh(s), with s = (m - 1) / (m + 1), |s| < 0.172
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 0.0
    for factor in _ARTANH:
        series = (series + factor) * z
    return exponent * _LN2_HIGH + (2.0 * s + (2.0 * s * series + exponent * _LN2_LOW))


@jit_inline
def exp(x: float) -> float:
    """Compute e^x, or 0 below 2^-1021."""
    if x < -707.0:
        return 0.0
    if not x < 709.0:
        return np.nan if np.isnan(x) else np.inf
    whole = np.floor(x * _PER_LN2 + 0.5)
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = 0.0
    for factor in _EXP:
        series = series * r + factor
    return series * np.int64((np.int64(whole) + 1023) << 52).view(np.float64)
