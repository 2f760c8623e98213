"""Formulas by NumPy, for comparison."""

import numpy as np


def measure_evidence(gram: np.ndarray, moment: np.ndarray, variance: float, prior: float) -> float:
    """Return the log marginal likelihood of data for theta ~ N(0, variance / prior I)."""
    shifted = gram + prior * np.eye(moment.size)
    fit = moment @ np.linalg.solve(shifted, moment) / variance
    return float(0.5 * (fit - np.linalg.slogdet(shifted)[1] + moment.size * np.log(prior)))
