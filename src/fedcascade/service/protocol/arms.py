"""A/B tests: users are assigned to arms by a hash, lists and clicks are counted per arm, and a guardrail compares them.

Users differ, and the lists of one user are alike, so counts are kept in buckets of users: the variance between buckets
is that of the arm. The guardrail looks when the lists have doubled, and each look spends a part of the level, so the
chance of a false alarm at any time is at most the level, whenever and however often the result is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from statistics import NormalDist
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fedcascade.checks import require

CONTROL, TREATMENT = "control", "treatment"
BUCKETS = 200  # per arm
FIRST_LOOK = 2_000  # lists of both arms
SPENT = 0.6079271018540267  # 6 / pi^2: the parts of all looks, SPENT / k^2, sum to 1
Count = Annotated[int, Meta(ge=0, le=2**40)]


def choose_arm(user: str, *, share: float = 0.1, experiment: str = "") -> tuple[str, int]:
    """Return the arm and the bucket of a user: the control arm for a share of all users, always the same.

    Another ``experiment`` assigns users independently.

    >>> choose_arm("user-17"), choose_arm("user-17", share=1.0)
    (('treatment', 13), ('control', 13))
    """
    require(0 <= share <= 1, f"share must be in [0, 1], got {share}")
    digest = sha256(f"{experiment}\n{user}".encode()).digest()
    is_control = int.from_bytes(digest[:6]) < share * 2**48
    return CONTROL if is_control else TREATMENT, int.from_bytes(digest[6:12]) % BUCKETS


class ArmCount(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """New lists of a bucket of users, and how many of them were clicked."""

    arm: Annotated[str, Meta(pattern=f"^({CONTROL}|{TREATMENT})$")]
    bucket: Annotated[int, Meta(ge=0, lt=BUCKETS)]
    lists: Count
    clicks: Count


@dataclass
class ArmTotals:
    """Lists and clicked lists of an arm, by bucket."""

    lists: list[int]
    clicks: list[int]

    @property
    def rate(self) -> float:
        """The share of lists that were clicked."""
        return sum(self.clicks) / max(1, sum(self.lists))

    def measure_variance(self) -> float:
        """Estimate the variance of the rate from the differences between buckets."""
        rate, used = self.rate, [pair for pair in zip(self.lists, self.clicks, strict=True) if pair[0]]
        squares = sum((clicks - rate * lists) ** 2 for lists, clicks in used)
        return squares * len(used) / max(1, len(used) - 1) / max(1, sum(self.lists)) ** 2


@dataclass
class Trial:
    """The counts of both arms, and the last look of the guardrail."""

    arms: dict[str, ArmTotals]
    looks: int = 0
    looked_at: int = 0  # lists at the last look
    lower: float = -1.0  # of treatment's rate minus control's: the confidence sequence
    upper: float = 1.0

    @classmethod
    def from_text(cls, text: str | None) -> "Trial":
        """Read a trial from a store's setting; start one if there is none."""
        if text is not None:
            return msgspec.json.decode(text, type=cls)
        return cls({arm: ArmTotals([0] * BUCKETS, [0] * BUCKETS) for arm in (CONTROL, TREATMENT)})

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    def add(self, counts: list[ArmCount], level: float) -> None:
        """Add counts, and look if the lists have doubled since the last look."""
        for count in counts:
            totals = self.arms[count.arm]
            got = f"{count.clicks} of {count.lists}"
            require(count.clicks <= count.lists, f"clicks must be at most the lists, got {got}")
            totals.lists[count.bucket] += count.lists
            totals.clicks[count.bucket] += count.clicks
        lists = sum(sum(totals.lists) for totals in self.arms.values())
        if lists >= max(FIRST_LOOK, 2 * self.looked_at) and all(sum(totals.lists) for totals in self.arms.values()):
            self.looks, self.looked_at = self.looks + 1, lists
            self._look(level * SPENT / self.looks**2)

    def _look(self, level: float) -> None:
        """Narrow the interval, two-sided at this level."""
        control, treatment = self.arms[CONTROL], self.arms[TREATMENT]
        deviation = (control.measure_variance() + treatment.measure_variance()) ** 0.5
        width = NormalDist().inv_cdf(1 - level / 2) * deviation
        difference = treatment.rate - control.rate
        self.lower, self.upper = max(self.lower, difference - width), min(self.upper, difference + width)

    def is_worse(self, margin: float) -> bool:
        """Return whether the treatment's rate is below control's by more than ``margin``, at the trial's level."""
        return self.upper < -margin

    def describe(self, margin: float) -> Mapping[str, Any]:
        """Describe the trial for a page: lists and clicks by arm, interval and alarm."""
        arms = {arm: [sum(each.lists), sum(each.clicks)] for arm, each in self.arms.items()}
        alarm = self.is_worse(margin)
        return {"arms": arms, "lower": self.lower, "upper": self.upper, "alarm": alarm, "margin": margin}
