"""k-means, small and seeded: k-means++ (Arthur and Vassilvitskii 2007), Lloyd's steps, the best of several starts."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.numerics import streams

MOST_STEPS = 300

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


def cluster_points(points: Points, clusters: int, *, seed: int, starts: int = 10) -> tuple[Points, Labels]:
    """The centres and each point's cluster, of the start that leaves the least squared distance.

    >>> centres, labels = cluster_points(np.array([[0.0], [0.2], [5.0]]), 2, seed=0)
    >>> sorted(centres.ravel().tolist()), bool(labels[0] == labels[1])
    ([0.1, 5.0], True)
    """
    different = len(np.unique(points, axis=0))
    require(clusters <= different, f"clusters must be <= {different}, as many as users who differ, got {clusters}")
    tries = [_refine_centres(points, _choose_centres(points, clusters, seed, start)) for start in range(starts)]
    rows = np.arange(len(points))
    squares = [_compute_squared_distances(points, centres)[rows, labels].sum() for centres, labels in tries]
    return tries[int(np.argmin(squares))]


def _choose_centres(points: Points, clusters: int, seed: int, start: int) -> Points:
    """Points as first centres, each as likely as its squared distance to the nearest earlier one."""
    draws = streams.uniforms(np.uint64(seed), streams.KMEANS, start, clusters)
    chosen = [int(draws[0] * len(points))]
    for draw in draws[1:]:
        steps = np.cumsum(_compute_squared_distances(points, points[chosen]).min(axis=1))
        chosen.append(int(np.searchsorted(steps, draw * steps[-1], side="right")))
    return points[chosen]


def _refine_centres(points: Points, centres: Points) -> tuple[Points, Labels]:
    """Lloyd's steps, until no point changes its cluster."""
    labels = _assign_points(points, centres)
    for _ in range(MOST_STEPS):
        centres = np.array([points[labels == label].mean(axis=0) for label in range(len(centres))])
        before, labels = labels, _assign_points(points, centres)
        if np.array_equal(before, labels):
            break
    return np.array([points[labels == label].mean(axis=0) for label in range(len(centres))]), labels


def _assign_points(points: Points, centres: Points) -> Labels:
    """Each point's nearest centre; a centre that has none takes the point that is farthest from its own."""
    squared = _compute_squared_distances(points, centres)
    labels: Labels = squared.argmin(axis=1)
    for empty in np.setdiff1d(np.arange(len(centres)), labels):
        distance = squared[np.arange(len(points)), labels]
        shared = np.bincount(labels, minlength=len(centres))[labels] > 1
        labels[np.where(shared, distance, -1.0).argmax()] = empty
    return labels


def _compute_squared_distances(points: Points, centres: Points) -> Points:
    squared: Points = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    return squared
