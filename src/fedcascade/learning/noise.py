"""The variance of a click: c (1 - c) for a click rate of c."""

from fedcascade.numerics.jit import jit_inline

PRIOR_CLICKS, PRIOR_COUNT = 2.0, 4.0  # pseudo-counts: the variance starts at 1/4
MIN_NOISE = 1e-3  # lower bound of the variance


@jit_inline
def estimate_noise(count: float, clicks: float) -> float:
    """Estimate the variance of a click from the numbers of examined items and clicks."""
    rate = (clicks + PRIOR_CLICKS) / (count + PRIOR_COUNT)
    return max(MIN_NOISE, rate * (1.0 - rate))
