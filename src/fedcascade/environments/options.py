"""Options of environments, for the library, the command line, plans and Gymnasium."""

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

from fedcascade.checks import (
    NUMBER,
    POSITIVE,
    PROBABILITY,
    SHARE,
    Range,
    one_of,
    parse_value,
    read_flag,
    require,
    require_integer,
    require_known,
    split_assignments,
    whole_numbers,
)
from fedcascade.constants import Checked, check_constants, constant

Destination = Literal["new", "existing"]
Attack = Literal["inverted", "promoted", "near"]
ClickModel = Literal["cascade", "dcm", "dbn", "pbm"]
FeatureKind = Literal["lifted", "gaussian", "logistic"]
RewardKind = Literal["click", "beta"]
DirectionKind = Literal["orthonormal", "random"]
Selection = Literal["independent", "nested"]
Values = Literal["stars", "counts", "threshold"]
Preset = Literal["catalogue", "paper"]

STEPS = 64  # steps of a gradual change
NO_ROUND = 2**62  # larger than the last round of any run
COUNT = whole_numbers(1)


def _choices(literal: Any) -> Range:
    return one_of(*get_args(literal))


@dataclass(frozen=True, kw_only=True)
class Change(Checked):
    """A change of theta for a share of each cluster; abrupt unless ``until`` or ``every`` is given."""

    at: int = constant(meaning="first round of the change", range=COUNT)
    share: float = constant(0.5, meaning="share of the users of each cluster", range=SHARE)
    to: Destination = constant(
        "new",
        meaning="new: a theta that no user had; existing: that of the next cluster",
        range=_choices(Destination),
    )
    until: int | None = constant(None, meaning="last round of a gradual change", range=COUNT)
    every: int | None = constant(
        None, meaning="period of a recurring change, in rounds: users alternate between both thetas", range=COUNT
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.until is None or self.every is None, "a change is gradual (until) or recurring (every), not both")
        require(self.until is None or self.until > self.at, f"until must be a round after {self.at}, got {self.until}")

    def measure_progress(self, round_: int) -> float:
        """Return the progress of the change in a round, from 0 to 1.

        >>> gradual, recurring = Change(at=101, until=165), Change(at=101, every=50)
        >>> [gradual.measure_progress(t) for t in (100, 101, 133, 165, 999)]
        [0.0, 0.0, 0.5, 1.0, 1.0]
        >>> [recurring.measure_progress(t) for t in (100, 101, 151, 201)]
        [0.0, 1.0, 0.0, 1.0]
        """
        if round_ < self.at:
            return 0.0
        if self.until is not None:
            return min(self._count_steps(round_, self.until), STEPS) / STEPS
        return 1.0 if self.every is None else float((round_ - self.at) // self.every % 2 == 0)

    def find_next(self, round_: int) -> int:
        """Return the first round after ``round_`` in which the progress may differ."""
        if round_ < self.at:
            return self.at
        if self.until is not None:
            step = self._count_steps(round_, self.until) + 1
            return self.at - (step * (self.at - self.until) // STEPS) if step <= STEPS else NO_ROUND
        return NO_ROUND if self.every is None else round_ + self.every - (round_ - self.at) % self.every

    def _count_steps(self, round_: int, until: int) -> int:
        return (round_ - self.at) * STEPS // (until - self.at)


@dataclass(frozen=True, kw_only=True)
class Poisoning(Checked):
    """Users that click according to a false theta. Their regret is not counted."""

    share: float = constant(meaning="share of all users", range=PROBABILITY)
    attack: Attack = constant(
        "inverted",
        meaning="inverted: the opposite of the user's own theta; promoted: one that no honest user has, the same for "
        "all; near: one close to the first cluster, the same for all",
        range=_choices(Attack),
    )
    since: int = constant(1, meaning="first round of the attack; before it these users are honest", range=COUNT)


@dataclass(frozen=True, kw_only=True)
class Turnover(Checked):
    """Users that join late, or leave, one after another between two rounds."""

    share: float = constant(meaning="share of all users", range=PROBABILITY)
    since: int = constant(1, meaning="the first of them joins or leaves after this round", range=COUNT)
    until: int = constant(meaning="the last of them joins or leaves in this round", range=COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.until > self.since, f"until must be a round after {self.since}, got {self.until}")


@dataclass(frozen=True)
class _EventRange(Range):
    """Events of one kind, in text such as 'at=500,to=existing'.

    >>> _events(Change).parse("change", "at=500,to=existing")
    Change(at=500, share=0.5, to='existing', until=None, every=None)
    """

    kind: Any = None

    def parse(self, name: str, text: str) -> Any:
        pairs = split_assignments(name, text.split(","), "share=0.2")
        values = {key: parse_value(value) for key, value in pairs.items()}
        known = {declared.name: declared.default is MISSING for declared in fields(self.kind)}
        for key in values:
            require_known(f"key of {name}", key, known)
        missing = [key for key, is_needed in known.items() if is_needed and key not in values]
        require(not missing, f"{name} needs {' and '.join(missing)}, got '{text}'")
        return self.kind(**values)


def _events(kind: type) -> Range:
    return _EventRange(f"a {kind.__name__}", lambda value: isinstance(value, kind), kind=kind)


def _is_sequence(value: object, contains: Range, least: int = 1) -> bool:
    return isinstance(value, tuple | list) and len(value) >= least and all(map(contains.contains, value))


def _read_clusters(text: str) -> int | tuple[int, ...]:
    sizes = tuple(COUNT.parse("clusters", part.strip()) for part in text.split(","))
    return sizes[0] if len(sizes) == 1 else sizes


def _read_items(text: str) -> int | tuple[int, ...]:
    ends = tuple(COUNT.parse("items", part.strip()) for part in text.split("-"))
    require(len(ends) <= 2 and ends[0] <= ends[-1], text)
    return ends[0] if len(ends) == 1 else ends


def _read_arrivals(text: str) -> tuple[float, ...] | str:
    return text if text in NAMED_ARRIVALS else tuple(float(part) for part in text.split(","))


NAMED_ARRIVALS = ("uniform", "zipf")
CLUSTERS = Range(
    "a whole number >= 1 or the size of each",
    lambda value: COUNT.contains(value) or _is_sequence(value, COUNT),
    _read_clusters,
)
ITEMS = Range(
    "a whole number or a range like 150-250",
    lambda value: COUNT.contains(value) or (_is_sequence(value, COUNT, 2) and len(value) == 2 and value[0] <= value[1]),
    _read_items,
)
ARRIVALS = Range(
    "uniform, zipf or a weight for each user",
    lambda value: value in NAMED_ARRIVALS if isinstance(value, str) else _is_sequence(value, POSITIVE),
    _read_arrivals,
)
FLAG = Range("true or false", lambda value: isinstance(value, bool), read_flag)


@dataclass(frozen=True, kw_only=True)
class ClusteredOptions:
    """Options of all environments with clustered users."""

    users: int = constant(40, meaning="number of users, each with an agent", range=COUNT)
    clusters: int | tuple[int, ...] = constant(
        10, meaning="J, the number of clusters, or the sizes of synthetic ones: 20,10,10", range=CLUSTERS
    )
    dimension: int = constant(
        20, meaning="d, the number of features, including the lifting coordinate", range=whole_numbers(2)
    )
    items: int | tuple[int, ...] = constant(
        200, meaning="items per round, or a range to draw from: 150-250", range=ITEMS
    )
    scale: float = constant(
        1.0, meaning="factor of all thetas in (0, 1]; smaller means fewer clicks, 1 is the paper's", range=SHARE
    )
    arrivals: tuple[float, ...] | Literal["uniform", "zipf"] = constant(
        "uniform", meaning="arrivals of users: uniform, zipf (1, 1/2, 1/3, ...), or a weight for each", range=ARRIVALS
    )
    clicks: ClickModel = constant(
        "cascade", meaning="click model; dcm, dbn and pbm allow several clicks per list", range=_choices(ClickModel)
    )
    click_level: float | None = constant(
        None, meaning="dcm: probability to continue after a click; pbm: decay by position. [0.5]", range=PROBABILITY
    )
    change: Change | None = constant(
        None,
        meaning="drift of a share of each cluster, separated by commas: at=50000, share=0.5, to=new or existing, "
        "until=ROUND or every=ROUNDS. [none]",
        range=_events(Change),
    )
    poisoning: Poisoning | None = constant(
        None,
        meaning="poisoning users, whose regret is not counted: share=0.2, attack=inverted, promoted or near, "
        "since=ROUND. [none]",
        range=_events(Poisoning),
    )
    joins: Turnover | None = constant(
        None, meaning="users that join late: share=0.2, since=ROUND, until=ROUND. [none]", range=_events(Turnover)
    )
    leaves: Turnover | None = constant(
        None, meaning="users that leave: share=0.2, since=ROUND, until=ROUND. [none]", range=_events(Turnover)
    )

    def __post_init__(self) -> None:
        for name in ("clusters", "items", "arrivals"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        check_constants(self)
        has_model = self.clicks != "cascade" or self.click_level is None
        require(has_model, "click_level needs a click model: set clicks to dcm or pbm, or omit it")
        moving = sum(turnover.share for turnover in (self.joins, self.leaves) if turnover is not None)
        require(moving < 1, f"the shares of joins and leaves must add up to less than 1, got {moving:g}")

    @property
    def has_events(self) -> bool:
        """True with change, poisoning, joins or leaves."""
        return any(event is not None for event in (self.change, self.poisoning, self.joins, self.leaves))

    @property
    def item_range(self) -> tuple[int, int]:
        """Smallest and largest number of items in a round."""
        return (self.items, self.items) if isinstance(self.items, int) else (self.items[0], self.items[-1])


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(ClusteredOptions):
    """Options of ``Synthetic``."""

    features: FeatureKind = constant(
        "lifted",
        meaning="lifted: <theta, x> is a probability; gaussian: it is clipped to [0, 1]; logistic: "
        "clicks are rare, with probability sigmoid(12 <theta, x> - 11.3)",
        range=_choices(FeatureKind),
    )
    directions: DirectionKind = constant(
        "orthonormal", meaning="theta directions: orthonormal, or independent (random)", range=_choices(DirectionKind)
    )
    gap: float | None = constant(
        None, meaning="distance between the thetas of two clusters, before scaling. [by directions]", range=POSITIVE
    )
    drift: int | None = constant(
        None, meaning="round in which every second user of each cluster changes its theta. [none]", range=COUNT
    )
    categories: int | None = constant(
        None, meaning="number of item categories, for the oracle per-category. [none]", range=COUNT
    )
    rewards: RewardKind = constant(
        "click",
        meaning="reward of a click: 1 (click), or a draw in [0, 1] whose mean follows a second theta (beta)",
        range=_choices(RewardKind),
    )
    costs: bool = constant(False, meaning="draw item costs in (0, 1], for the oracle budget", range=FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.drift is None or not self.has_events,
            "drift cannot be combined with change, poisoning, joins or leaves: use one or the other",
        )
        is_steady = self.drift is None and not self.has_events and self.clicks == "cascade"
        require(
            self.rewards == "click" or is_steady,
            "rewards 'beta' need users that do not change, and clicks 'cascade': leave out drift, events and clicks",
        )


@dataclass(frozen=True, kw_only=True)
class RatingsOptions(ClusteredOptions):
    """Options of ``Ratings``."""

    preset: Preset = constant(
        "catalogue", meaning="catalogue: items of the file; paper: random items, lifted users", range=_choices(Preset)
    )
    top_users: int = constant(1_000, meaning="keep this many of the most active users", range=COUNT)
    top_items: int = constant(1_000, meaning="keep this many of the most rated items", range=COUNT)
    selection: Selection = constant(
        "independent",
        meaning="independent: both by all ratings; nested: items by the ratings of three times as many users, then "
        "users by their ratings of those items",
        range=_choices(Selection),
    )
    values: Values = constant(
        "stars", meaning="entries: stars, counts of ratings, or 1 for stars >= threshold", range=_choices(Values)
    )
    threshold: float = constant(4.0, meaning="fewest stars that count, with values 'threshold'", range=NUMBER)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("clusters", self.clusters)
