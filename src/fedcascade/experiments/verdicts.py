"""When a claim of the paper is confirmed: rules that look at the whole 95% interval, never at the mean alone.

A gap that is truly zero is confirmed in one case of forty, which is what a 95% interval means.
"""

from typing import Literal

from fedcascade.experiments.intervals import Interval

Verdict = Literal[
    "confirmed", "smaller than the paper's", "inconclusive", "contradicted", "not judged", "not comparable"
]

FEWEST_RUNS = 3  # with fewer, an interval is so wide that nothing can be judged
POINTS, SHARE = 0.02, 0.25  # a gap may fall short of the paper's by 2 points or a quarter of it, whichever is more
WITHIN = 0.05  # a count may differ from the paper's by 5%


def compute_needed_gap(paper: float | None) -> float:
    """Return how wide a gap has to be for the paper's claim; above zero is enough where it gives no number.

    >>> compute_needed_gap(0.82), round(compute_needed_gap(0.05), 12), compute_needed_gap(None)
    (0.615, 0.03, 0.0)
    """
    return 0.0 if paper is None else paper - max(POINTS, SHARE * paper)


def judge_gap(gap: Interval, paper: float | None) -> Verdict:
    """Judge how far one system is below another: whether there is a gap at all, and whether it is wide enough."""
    if gap.high < 0.0:
        return "contradicted"
    if gap.low <= 0.0:
        return "inconclusive"
    return "confirmed" if gap.high >= compute_needed_gap(paper) else "smaller than the paper's"


def judge_count(count: Interval, paper: float) -> Verdict:
    """Judge a count: confirmed if its whole interval is within 5% of the paper's, contradicted if all of it is not."""
    least, most = paper * (1.0 - WITHIN), paper * (1.0 + WITHIN)
    if count.high < least or count.low > most:
        return "contradicted"
    return "confirmed" if least <= count.low and count.high <= most else "inconclusive"
