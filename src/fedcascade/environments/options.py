"""The options of environments, declared once: for the library, the command line, plans and Gymnasium."""

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
from fedcascade.constants import check_constants, constant

Destination = Literal["new", "existing"]
Lie = Literal["inverted", "promoted", "near"]
ClickModel = Literal["cascade", "dcm", "dbn", "pbm"]
FeatureKind = Literal["lifted", "gaussian", "logistic"]
DirectionKind = Literal["orthonormal", "random"]
Selection = Literal["independent", "nested"]
Values = Literal["stars", "counts", "threshold"]
Scaling = Literal["root", "none"]
Shelf = Literal["catalogue", "random"]
Preset = Literal["catalogue", "paper"]

STEPS = 64  # in which a gradual change goes on
NEVER = 2**62  # a round that no run reaches


@dataclass(frozen=True, kw_only=True)
class Change:
    """A share of each cluster comes to want something else, all of them the same.

    Abrupt, unless one of the last two is given.

    Args:
        at: the round from which on they do.
        share: of the users of each cluster.
        to: "new": what nobody wanted before; "existing": what the next cluster wants.
        until: gradual: they come nearer to it, step by step, until this round.
        every: recurring: after so many rounds they want again what they wanted first, and so on.
    """

    at: int
    share: float = 0.5
    to: Destination = "new"
    until: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        require_integer("change: at", self.at)
        SHARE.check("change: share", self.share)
        require_known("destination of a change", self.to, get_args(Destination))
        require(self.until is None or self.every is None, "a change is gradual (until) or recurring (every), not both")
        if self.until is not None:
            require_integer("change: until", self.until, self.at + 1)
        if self.every is not None:
            require_integer("change: every", self.every)

    def measure_progress(self, round_: int) -> float:
        """Return how far the change has gone in a round, from 0 to 1.

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
            return self.at - (step * (self.at - self.until) // STEPS) if step <= STEPS else NEVER
        return NEVER if self.every is None else round_ + self.every - (round_ - self.at) % self.every

    def _count_steps(self, round_: int, until: int) -> int:
        return (round_ - self.at) * STEPS // (until - self.at)


@dataclass(frozen=True, kw_only=True)
class Liars:
    """A share of all users who click as if they wanted something else; their regret does not count.

    Args:
        share: of all users.
        lie: "inverted": the opposite of what they want; "promoted": all of them the same, which nobody wants; "near":
            all of them nearly what the first cluster wants.
        since: the round from which on they lie; before it they are honest, as mimics are.
    """

    share: float
    lie: Lie = "inverted"
    since: int = 1

    def __post_init__(self) -> None:
        PROBABILITY.check("liars: share", self.share)
        require_known("lie", self.lie, get_args(Lie))
        require_integer("liars: since", self.since)


@dataclass(frozen=True, kw_only=True)
class Turnover:
    """A share of all users who come late, or who leave, one after another between two rounds.

    Args:
        share: of all users.
        since: the round after which the first of them comes or leaves.
        until: the round in which the last one does.
    """

    share: float
    since: int = 1
    until: int

    def __post_init__(self) -> None:
        PROBABILITY.check("turnover: share", self.share)
        require_integer("turnover: since", self.since)
        require_integer("turnover: until", self.until, self.since + 1)


def read_event(name: str, kind: Any, text: str) -> Any:
    """Read 'at=500,to=existing' as an event of that kind.

    >>> read_event("change", Change, "at=500,to=existing")
    Change(at=500, share=0.5, to='existing', until=None, every=None)
    """
    values = {key: parse_value(value) for key, value in split_assignments(name, text.split(","), "share=0.2").items()}
    known = {declared.name: declared.default is MISSING for declared in fields(kind)}
    for key in values:
        require_known(f"word of {name}", key, known)
    missing = [key for key, is_needed in known.items() if is_needed and key not in values]
    require(not missing, f"{name} needs {' and '.join(missing)}, got '{text}'")
    return kind(**values)


@dataclass(frozen=True)
class _EventRange(Range):
    """Events of one kind; the event itself says what is wrong with a text."""

    kind: Any = None

    def parse(self, name: str, text: str) -> Any:
        return read_event(name, self.kind, text)


def _events(kind: type) -> Range:
    return _EventRange(f"a {kind.__name__}", lambda value: isinstance(value, kind), kind=kind)


def _words(literal: Any) -> Range:
    return one_of(*get_args(literal))


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
COUNT = whole_numbers(1)
CLUSTERS = Range(
    "a whole number >= 1 or the size of each", lambda value: COUNT.contains(value) or _is_sequence(value, COUNT),
    _read_clusters,
)  # fmt: skip
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
    """The options of every environment of clustered users."""

    users: int = constant(40, meaning="how many users, each with an agent", range=COUNT)
    clusters: int | tuple[int, ...] = constant(
        10, meaning="J, how many clusters; of a synthetic environment, of equal size, or the sizes: 20,10,10",
        range=CLUSTERS,
    )  # fmt: skip
    dimension: int = constant(
        20, meaning="d, how many features an item has, the lifting coordinate included", range=whole_numbers(2)
    )
    items: int | tuple[int, ...] = constant(
        200, meaning="items on offer in a round, or a range to draw from: 150-250", range=ITEMS
    )
    scale: float = constant(
        1.0, meaning="a factor in (0, 1] of all thetas; smaller means fewer clicks, 1 is the paper's", range=SHARE
    )
    arrivals: tuple[float, ...] | Literal["uniform", "zipf"] = constant(
        "uniform", meaning="how likely each user is to arrive: uniform, zipf (1, 1/2, 1/3, ...), or a weight for each",
        range=ARRIVALS,
    )  # fmt: skip
    clicks: ClickModel = constant(
        "cascade", meaning="how users click: the cascade, or a model in which they click several items or skip "
        "positions (dcm, dbn, pbm)", range=_words(ClickModel),
    )  # fmt: skip
    click_level: float | None = constant(
        None, meaning="dcm: the chance to go on after a click; pbm: that to look at a position, by that above. [0.5]",
        range=PROBABILITY,
    )  # fmt: skip
    change: Change | None = constant(
        None, meaning="a share of each cluster changes its mind: at=50000, share=0.5, to=new or existing, until=ROUND "
        "or every=ROUNDS, joined by commas. [nobody]", range=_events(Change),
    )  # fmt: skip
    liars: Liars | None = constant(
        None, meaning="a share of users lies, and its regret does not count: share=0.2, lie=inverted, promoted or "
        "near, since=ROUND. [nobody]", range=_events(Liars),
    )  # fmt: skip
    joins: Turnover | None = constant(
        None, meaning="a share of users comes late: share=0.2, since=ROUND, until=ROUND. [nobody]",
        range=_events(Turnover),
    )  # fmt: skip
    leaves: Turnover | None = constant(
        None, meaning="a share of users leaves: share=0.2, since=ROUND, until=ROUND. [nobody]", range=_events(Turnover)
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("clusters", "items", "arrivals"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        check_constants(self)
        has_model = self.clicks != "cascade" or self.click_level is None
        require(has_model, "click_level belongs to clicks: name a click model, or leave it out")
        moving = sum(turnover.share for turnover in (self.joins, self.leaves) if turnover is not None)
        require(moving < 1, f"somebody must stay all the time: the shares of joins and leaves add up to {moving:g}")

    @property
    def is_living(self) -> bool:
        """Whether users change, lie, join or leave."""
        return any(event is not None for event in (self.change, self.liars, self.joins, self.leaves))

    @property
    def item_range(self) -> tuple[int, int]:
        """The fewest and the most items of a round."""
        return (self.items, self.items) if isinstance(self.items, int) else (self.items[0], self.items[-1])


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(ClusteredOptions):
    """The options of ``Synthetic``."""

    features: FeatureKind = constant(
        "lifted", meaning="lifted: <theta, x> is always a probability; gaussian: it is clipped to [0, 1]; logistic: "
        "clicks are rare, with probability sigmoid(12 <theta, x> - 11.3)", range=_words(FeatureKind),
    )  # fmt: skip
    directions: DirectionKind = constant(
        "orthonormal", meaning="theta directions: orthonormal, or independent (random)", range=_words(DirectionKind)
    )
    gap: float | None = constant(
        None, meaning="distance between the thetas of any two clusters before scaling. [that of their directions]",
        range=POSITIVE,
    )  # fmt: skip
    drift: int | None = constant(
        None, meaning="from this round on, every second user of each cluster wants something else; 'clusters' then "
        "tells apart those who will differ. [never]", range=COUNT,
    )  # fmt: skip
    categories: int | None = constant(
        None, meaning="how many categories items belong to, for the oracle per-category. [none]", range=COUNT
    )
    costs: bool = constant(False, meaning="give items costs, uniform in (0, 1], for the oracle budget", range=FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.drift is None or not self.is_living,
            "drift is one change of its own: give it, or change, liars, joins and leaves, not both",
        )


@dataclass(frozen=True, kw_only=True)
class RatingsOptions(ClusteredOptions):
    """The options of ``Ratings``; None in one of the last three is what the preset says."""

    preset: Preset = constant(
        "catalogue", meaning="catalogue: rounds offer the file's own items; paper: random ones, and users are lifted",
        range=_words(Preset),
    )  # fmt: skip
    top_users: int = constant(1_000, meaning="how many of the most active users to keep, at most", range=COUNT)
    top_items: int = constant(1_000, meaning="how many of the most rated items to keep, at most", range=COUNT)
    selection: Selection = constant(
        "independent", meaning="independent: both by all ratings; nested: the items by the ratings of three times as "
        "many users, then the users by their ratings of those items", range=_words(Selection),
    )  # fmt: skip
    values: Values = constant(
        "stars", meaning="what the matrix holds: stars; counts of ratings; or 1 for stars of at least the threshold",
        range=_words(Values),
    )  # fmt: skip
    threshold: float = constant(
        4.0, meaning="stars from which on a rating counts, with values 'threshold'", range=NUMBER
    )
    scaling: Scaling | None = constant(
        None, meaning="root: singular vectors times the roots of their singular values; none: without. [the preset's]",
        range=_words(Scaling),
    )  # fmt: skip
    lifted: bool | None = constant(
        None, meaning="whether vectors become (., 1) / sqrt(2), with one singular vector less. [the preset's]",
        range=FLAG,
    )  # fmt: skip
    shelf: Shelf | None = constant(
        None, meaning="catalogue: a round offers items of the file; random: fresh random ones. [the preset's]",
        range=_words(Shelf),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("clusters", self.clusters)

    def choose_step(self, name: str) -> Any:
        """Return how a step is taken: as given, or else as the preset says."""
        value = getattr(self, name)
        return PRESETS[self.preset][name] if value is None else value


PRESETS = {
    "catalogue": {"scaling": "root", "lifted": False, "shelf": "catalogue"},
    "paper": {"scaling": "none", "lifted": True, "shelf": "random"},
}
