"""The variance of a click: c (1 - c) for a click rate of c."""

from fedcascade.numerics.jit import jit_inline

TYPICAL_CLICKS, TYPICAL_COUNT = 2.0, 4.0  # added to the data, so that the variance starts at 1/4
LEAST_NOISE = 1e-3  # the variance where nearly nothing, or nearly everything, is clicked


@jit_inline
def estimate_noise(count: float, clicks: float) -> float:
    """Return the variance of a click of a user with so many examined items and clicks."""
    rate = (clicks + TYPICAL_CLICKS) / (count + TYPICAL_COUNT)
    return max(LEAST_NOISE, rate * (1.0 - rate))
