"""The readable side of ``own_data``: what an agent keeps of its own data, apart from what others sent."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.changes import follow_list
from fedcascade.federation.own_data import DEVIATION, NOISE, WEIGHT, OwnData, add_click, make_own_data
from fedcascade.federation.policies import Policy
from fedcascade.federation.rows import pack_row, unpack_row
from fedcascade.federation.trust import is_due, split_download, weigh_others
from fedcascade.learning.cascade import Examination
from fedcascade.learning.noise import estimate_noise
from fedcascade.learning.ridge import LinearEstimate
from fedcascade.learning.statistics import Statistics


def make_policy_data(policy: Policy, shape: Sequence[int], dimension: int) -> OwnData:
    """The own data of agents of a policy that have seen nothing."""
    return make_own_data(shape, dimension, has_blocks=policy.changes is not None)


def require_one_click(seen: Examination) -> None:
    """Refuse what a user did who clicked several items of a list."""
    require(len(seen.clicks) <= 1, "change detection learns from one click of a list")


class OwnDataKeeper:
    """Follows the lists of one user: finds changes, and weighs what others sent. It changes ``data`` in place."""

    def __init__(self, policy: Policy, dimension: int, data: OwnData | None = None) -> None:
        self.dimension = dimension
        self.data = make_policy_data(policy, (), dimension) if data is None else data
        self._detection = None if policy.changes is None else policy.changes.compile()
        self._trust = None if policy.trust is None else policy.trust.compile(policy.lambda_)

    @property
    def total(self) -> Statistics:
        """All own data since the last change of the user."""
        return unpack_row(self.data.total, self.dimension)

    @property
    def weight(self) -> float:
        """How much others' data count."""
        return float(self.data.numbers[WEIGHT])

    @property
    def deviation(self) -> float:
        """Standard deviation of a click, by which beta is scaled; 1 where scales are not learned."""
        return 1.0 if self._trust is None else float(self.data.numbers[DEVIATION])

    def follow(self, listed: NDArray[np.float32], seen: Examination, chosen_with: LinearEstimate) -> bool:
        """Learn from a list; returns whether the user has changed. ``total`` is then what belongs to the new one."""
        if self._detection is not None:
            require_one_click(seen)
        click, *others = seen.clicks or (-1,)
        features = np.ascontiguousarray(listed, np.float32)
        theta, root = chosen_with.theta, chosen_with.root
        has_changed = bool(follow_list(self.data, self._detection, features, seen.examined, click, theta, root))
        for position in others:
            add_click(self.data.total, features, position)
        self.data.total[-1] += seen.rounds - 1
        return has_changed

    def is_weighing_due(self) -> bool:
        """Return whether it is time to weigh others' data again."""
        return self._trust is not None and bool(is_due(self.data, self._trust))

    def receive(self, download: Statistics, pending: Statistics) -> Statistics:
        """The part of a download that is believed; ``pending`` is what of the agent's own it does not hold."""
        if self._trust is None:
            return download
        noise = estimate_noise(download.count, download.clicks)
        split_download(self.data, pending.gram, pending.moment, download.gram, download.moment, noise)
        return self.weigh(pending)

    def weigh(self, pending: Statistics) -> Statistics:
        """The last download, of which others' part has the weight that it deserves."""
        assert self._trust is not None
        gram, moment = np.empty_like(pending.gram), np.empty_like(pending.moment)
        weigh_others(self.data, self._trust, pending.gram, pending.moment, gram, moment)
        own = self.total - pending
        return Statistics(gram, moment, own.count, own.clicks, own.rounds)

    def restart(self, kept: Statistics) -> None:
        """Forget all but ``kept``, which may be what ``follow`` has left, and what others sent."""
        data = self.data
        if not np.array_equal(data.total, row := pack_row(kept)):
            for array in (data.blocks, data.levels, data.used, data.since, data.numbers):
                array[...] = 0
            data.total[:] = row
            if len(data.blocks):
                data.blocks[0], data.used[0] = row, int(kept.count > 0)
        data.others_gram[:], data.others_moment[:], data.numbers[WEIGHT] = 0.0, 0.0, 0.0
        data.numbers[NOISE], data.numbers[DEVIATION] = 0.25, 0.5
