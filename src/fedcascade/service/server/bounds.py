"""How much one agent may claim: bounds on the weight of uploads, checked before anything is logged.

They are decided with the server's clock, when an upload comes. What is in the log is never judged again, so a replay
does not depend on the clock or on the bounds of today.
"""

from dataclasses import dataclass

from fedcascade.checks import NONNEGATIVE, require_integer
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol.errors import Refused

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class UploadBounds:
    """What a server takes from one agent; the defaults suit people, and a simulation needs more rounds.

    An agent's rounds, all uploads together, are at most ``rounds_burst`` and ``rounds_per_hour`` for every hour since
    it enrolled. A round examines at most ``longest_list`` items. An upload holds at least ``min_observations``, 2 d if
    None: then its gram alone does not determine the items.
    """

    longest_list: int = 50
    min_observations: int | None = None
    rounds_burst: int = 1_000
    rounds_per_hour: float = 60.0

    def __post_init__(self) -> None:
        require_integer("longest list", self.longest_list)
        if self.min_observations is not None:
            require_integer("min observations", self.min_observations, 0)
        require_integer("rounds burst", self.rounds_burst, 1)
        NONNEGATIVE.check("rounds per hour", self.rounds_per_hour)

    def get_min_observations(self, dimension: int) -> int:
        """The fewest observations in an upload of that dimension."""
        return 2 * dimension if self.min_observations is None else self.min_observations

    def check(self, statistics: Statistics, *, held_rounds: int, seconds: float) -> None:
        """Refuse an upload that is too small or too heavy.

        Args:
            statistics: those of the upload.
            held_rounds: the agent's rounds that the server holds already.
            seconds: the time since the agent enrolled; a clock that was set back counts as none.
        """
        count, rounds = statistics.count, statistics.rounds
        least = self.get_min_observations(statistics.dimension)
        if count < least:
            raise Refused(422, "too-few", f"an upload must hold at least {least} observations, got {count}")
        if count > rounds * self.longest_list:
            limit = f"at most {self.longest_list} observations a round, the longest list"
            raise Refused(422, "too-heavy", f"an upload must hold {limit}, got {count} in {rounds} rounds")
        excess = held_rounds + rounds - self.rounds_burst
        if excess > max(0.0, seconds) * self.rounds_per_hour / SECONDS_PER_HOUR:
            self._refuse_rounds(held_rounds + rounds, excess, max(0.0, seconds))

    def _refuse_rounds(self, total: int, excess: int, seconds: float) -> None:
        allowed = f"{self.rounds_burst} rounds and {self.rounds_per_hour:g} an hour since it enrolled"
        line = f"an agent may play {allowed}, this one has {total} after {seconds / SECONDS_PER_HOUR:.2f} hours"
        if self.rounds_per_hour <= 0:
            raise Refused(429, "too-many-rounds", line)
        wait = excess / self.rounds_per_hour * SECONDS_PER_HOUR - seconds
        raise Refused(429, "too-many-rounds", f"{line}: try again in {wait:.0f} s", retry_after=wait)


# Simulated users play in seconds what people play in years, and upload as little as they like.
FOR_SIMULATIONS = UploadBounds(longest_list=1_000, min_observations=0, rounds_burst=LARGEST_TOTAL)
