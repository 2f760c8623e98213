"""Priors for newcomers. A prior is published, not computed for a caller: newcomers get the last publication.

A publication needs uploads of several agents since the one before, so no single upload and no deletion changes what is
sent. It is rounded, and stored, so that all servers of a store send the same one.
"""

import msgspec
import numpy as np

from fedcascade.learning.statistics import Statistics, estimate_noise
from fedcascade.service.protocol import wire
from fedcascade.service.store.contract import Store

PUBLICATION = "publication"  # name of the setting
MARGIN = 2  # agents that must have uploaded since the last publication, as a multiple of ``min_others`` + 1
GROWTH, MIN_UPLOADS = 1.2, 10  # publish after 1.2x as many uploads, and at least 10 more
DAY = 86_400.0  # seconds; publish after a day, and withdraw a prior a day after one of its agents was forgotten
STEP = 2.0**-6  # precision of the mean and of a root of the covariance


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A published prior, the position of the log and the time at which it was made, and when it expires, if it does."""

    position: int
    at: float
    prior: wire.PriorMessage | None = None
    expires: float | None = None

    def is_due(self, position: int, now: float) -> bool:
        """Return whether enough uploads or a day have passed since."""
        later = max(GROWTH * self.position, self.position + MIN_UPLOADS)
        return position >= later or now >= self.at + DAY or (self.expires is not None and now >= self.expires)


NOTHING = Publication(position=0, at=0.0)


def load_publication(store: Store) -> Publication:
    """Load the last publication of a store."""
    text = store.get_setting(PUBLICATION)
    return NOTHING if text is None else msgspec.json.decode(text, type=Publication)


def save_publication(store: Store, publication: Publication) -> None:
    """Replace the last publication of a store."""
    store.set_setting(PUBLICATION, msgspec.json.encode(publication).decode())


def round_prior(prior: Statistics, lambda_: float) -> Statistics:
    """Round a prior: multiples of ``STEP`` for its mean, and for the Cholesky root of its covariance.

    The root's diagonal is at least ``STEP``, so the result is a prior again.
    """
    d, noise = prior.dimension, estimate_noise(0, 0.0)
    covariance = noise * np.linalg.inv(prior.gram + lambda_ * np.eye(d))
    mean = covariance @ prior.moment / noise
    root = STEP * np.round(np.linalg.cholesky((covariance + covariance.T) / 2) / STEP)
    root[np.diag_indices(d)] = np.maximum(root.diagonal(), STEP)
    precision = noise * np.linalg.inv(root @ root.T)
    precision = (precision + precision.T) / 2
    moment = precision @ (STEP * np.round(mean / STEP))
    return Statistics(precision - lambda_ * np.eye(d), moment, 0, 0, 0)
