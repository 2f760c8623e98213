"""The keeper of an agent's own data: drift detection and weights of others' data, on the arrays of ``own_data``."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.changes import follow_list
from fedcascade.federation.own_data import (
    FIRST_DEVIATION,
    FIRST_NOISE,
    MOST_BLOCKS,
    OwnData,
    add_click,
    compute_width,
    pack_row,
    unpack_row,
)
from fedcascade.federation.policies import Policy
from fedcascade.federation.trust import is_due, weigh_others
from fedcascade.learning.cascade import Examination
from fedcascade.learning.ridge import LinearEstimate
from fedcascade.learning.statistics import Statistics, estimate_noise


def make_policy_data(policy: Policy, shape: Sequence[int], dimension: int) -> OwnData:
    """Make the empty own data of agents that run a policy, in an array of this shape; () for one agent."""
    lead, width = tuple(shape), compute_width(dimension)
    blocks = 0 if policy.changes is None else MOST_BLOCKS
    return OwnData(
        total=np.zeros((*lead, width)),
        blocks=np.zeros((*lead, blocks, width)),
        levels=np.zeros((*lead, blocks), np.int64),
        used=np.zeros((*lead, 1), np.int64),
        since=np.zeros((*lead, width)),
        others_gram=np.zeros((*lead, dimension, dimension)),
        others_moment=np.zeros((*lead, dimension)),
        cusum=np.zeros((*lead, 1)),
        weight=np.zeros((*lead, 1)),
        noise=np.full((*lead, 1), FIRST_NOISE),
        deviation=np.full((*lead, 1), FIRST_DEVIATION),
    )


class OwnDataKeeper:
    """Own data of one user, with drift detection and weights of others' data. ``data`` changes in place."""

    def __init__(self, policy: Policy, dimension: int, data: OwnData | None = None) -> None:
        self.dimension = dimension
        self.data = make_policy_data(policy, (), dimension) if data is None else data
        self._detection = None if policy.changes is None else policy.changes.compile()
        self._is_private = policy.privacy is not None
        self._trust, self._lambda = policy.trust, float(policy.lambda_)

    @property
    def total(self) -> Statistics:
        """All own data since the last change of the user."""
        return unpack_row(self.data.total, self.dimension)

    @property
    def deviation(self) -> float:
        """Standard deviation of a click, which scales beta; 1 if the policy learns no scale."""
        return 1.0 if self._trust is None else float(self.data.deviation[0])

    def follow(self, listed: NDArray[np.float32], seen: Examination, chosen_with: LinearEstimate) -> bool:
        """Learn from a list and return whether the user has changed; ``total`` then holds the changed user's data."""
        if self._detection is not None:
            require(len(seen.clicks) <= 1, "change detection learns from one click of a list")
        (click, reward), *others = seen.outcomes
        features = np.ascontiguousarray(listed, np.float32)
        outcome = seen.examined, click, reward
        has_changed = bool(
            follow_list(self.data, self._detection, features, *outcome, chosen_with.theta, chosen_with.root)
        )
        for position, value in others:
            add_click(self.data.total, features, position, value)
        self.data.total[-2] += seen.rounds - 1
        return has_changed

    def correct(self, difference: Statistics, round_: int) -> None:
        """Add the difference of a late reward to the total, and to the block that holds the list of a round."""
        row, used = pack_row(difference), int(self.data.used[0])
        self.data.total[:] += row
        if used:
            ends = np.cumsum(self.data.blocks[:used, -2])  # a row has its rounds there
            self.data.blocks[min(int(np.searchsorted(ends, round_)), used - 1)] += row

    def is_weighing_due(self) -> bool:
        """Return whether others' data are due to be weighed again."""
        return self._trust is not None and bool(is_due(self.data, float(self._trust.every)))

    def receive(self, download: Statistics, pending: Statistics) -> Statistics:
        """Return a download with others' data weighed; ``pending`` are own data that the server did not have."""
        if self._trust is None:
            return download
        self.data.noise[0] = estimate_noise(download.count, download.reward)  # that the server assumed for its prior
        held = self.total - pending
        if self._is_private:  # the server's copy of own data has noise, and is not in the answer
            download = download + held
        np.subtract(download.gram, held.gram, out=self.data.others_gram)
        np.subtract(download.moment, held.moment, out=self.data.others_moment)
        return self.weigh(pending)

    def weigh(self, pending: Statistics) -> Statistics:
        """Return the last download with others' data weighed."""
        gram, moment = np.empty_like(pending.gram), np.empty_like(pending.moment)
        weigh_others(self.data, self._lambda, pending.gram, pending.moment, gram, moment)
        own = self.total - pending
        return Statistics(gram, moment, own.count, own.clicks, own.rounds, own.shortfall)

    def restart(self, kept: Statistics) -> None:
        """Drop all own data but ``kept``, and others' data. The order of time stays if ``kept`` is ``total``."""
        data = self.data
        if not np.array_equal(data.total, row := pack_row(kept)):
            for array in (data.blocks, data.levels, data.used, data.since, data.cusum):
                array[...] = 0
            data.total[:] = row
            if len(data.blocks):
                data.blocks[0], data.used[0] = row, int(kept.count > 0)
        for array in (data.others_gram, data.others_moment, data.weight):
            array[...] = 0
        data.noise[0], data.deviation[0] = FIRST_NOISE, FIRST_DEVIATION
