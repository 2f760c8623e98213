"""The variance of a reward in [0, 1] with mean m: at most m (1 - m), and equal to it for clicks worth 1."""

from fedcascade.numerics.jit import jit_inline

PRIOR_CLICKS, PRIOR_COUNT = 2.0, 4.0  # pseudo-counts: the variance starts at 1/4
MIN_NOISE = 1e-3  # lower bound of the variance


@jit_inline
def estimate_noise(count: float, reward: float) -> float:
    """Estimate the variance of a reward from the number of examined items and the sum of their rewards."""
    rate = (reward + PRIOR_CLICKS) / (count + PRIOR_COUNT)
    return max(MIN_NOISE, rate * (1.0 - rate))
