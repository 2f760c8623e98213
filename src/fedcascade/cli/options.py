"""The options that commands share, and those that describe the environment that is simulated."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter, Token

from fedcascade.checks import read_whole, require, require_known, whole_numbers

if TYPE_CHECKING:
    from fedcascade.data.logs import Log
    from fedcascade.environments.environment import Environment
    from fedcascade.environments.life import Life
    from fedcascade.environments.matrices import Triplets
    from fedcascade.environments.ratings import Ratings

SYNTHETIC_OPTIONS = ("features", "directions", "gap", "drift", "categories", "costs")
_PLAIN = Group("Options", sort_key=0)
_RATINGS = Parameter(group=Group("Ratings", sort_key=2), show_default=False)


def option(text: str, group: Group = _PLAIN, **more: Any) -> Parameter:
    """Describe an option for ``--help``."""
    return Parameter(group=group, help=text, negative="", **more)


def _convert_whole(_type: object, tokens: Sequence[Token]) -> int:
    return read_whole(tokens[0].value)  # without this, 300.7 rounds would quietly become 301


Whole = Annotated[int, Parameter(converter=_convert_whole)]


def take_settings(kind: Any, group: Group) -> Any:
    """Let the command line take a dataclass of settings: a flag and an environment variable for each field."""
    options = []
    for declared, hint in zip(fields(kind), get_type_hints(kind).values(), strict=True):
        meaning, within = declared.metadata["meaning"].rstrip("."), declared.metadata["range"]
        words = f"{meaning}; {within.words}." if within and not meaning.endswith("]") else meaning
        help_ = words if words.endswith((".", "]")) else f"{words}."
        variable, is_shown = f"FEDCASCADE_{declared.name.upper()}", declared.default not in ((), False)
        flag = Parameter(help=help_, env_var=variable, show_default=is_shown)
        plain = {int: Whole, int | None: Whole | None}.get(hint, hint)
        options.append((declared.name, Annotated[plain, flag], field(default=declared.default)))
    names = {"__module__": kind.__module__}  # cyclopts takes a class of the standard library for a plain value
    derived = make_dataclass(kind.__name__, options, bases=(kind,), namespace=names, frozen=True, kw_only=True)
    return Parameter(name="*", group=group, negative="")(derived)


ListLength = Annotated[Whole, option("K, the longest list an agent may show.")]
Rounds = Annotated[Whole, option("T, how many rounds to play.")]
Checkpoints = Annotated[Whole, option("At how many evenly spaced rounds the curve is kept.")]
Json = Annotated[bool, option("Print JSON on stdout and nothing else there.", name="--json", show_default=False)]


@Parameter(name="*", group=Group("Environment", sort_key=1), negative="")
@dataclass(frozen=True, kw_only=True)
class RatingsOptions:
    """Sizes of an environment, and how it is made from a file of ratings.

    Attributes:
        seed: Names the environment: users, items, clicks and luck all follow from it.
        users: How many users, each with an agent.
        clusters: How many clusters; of a synthetic environment, of equal size, or the sizes: 20,10,10.
        dimension: d, how many features an item has.
        items: Items on offer in a round, or a range to draw from: 150-250.
        scale: A factor in (0, 1] of all thetas; smaller means fewer clicks.
        arrivals: How likely each user is to arrive: uniform, zipf, or a weight for each: 3,1,1,...
        change: A share of each cluster changes its mind: at=50000, share=0.5, to=new or existing, until=ROUND or
            every=ROUNDS, joined by commas. [nobody]
        liars: A share of users lies, and its regret does not count: share=0.2, lie=inverted, promoted or near,
            since=ROUND. [nobody]
        joins: A share of users comes late: share=0.2, since=ROUND, until=ROUND. [nobody]
        leaves: A share of users leaves: share=0.2, since=ROUND, until=ROUND. [nobody]
        preset: catalogue: rounds offer the file's own items; paper: random ones, and users are lifted. [catalogue]
        step: Take a step in another way than the preset, such as selection=nested or values=counts. Repeatable.
        columns: The file's columns of users, items and ratings, as user,item,rating. [the usual names]
    """

    seed: Whole = 0
    users: Whole = 40
    clusters: str = "10"
    dimension: Whole = 20
    items: str = "200"
    scale: float = 1.0
    arrivals: str = "uniform"
    change: str | None = None
    liars: str | None = None
    joins: str | None = None
    leaves: str | None = None
    preset: Annotated[Literal["catalogue", "paper"] | None, _RATINGS] = None
    step: Annotated[list[str], _RATINGS] = field(default_factory=list)
    columns: Annotated[str | None, _RATINGS] = None

    def parse_sizes(self) -> dict[str, Any]:
        """Return the arguments that every environment takes."""
        plain = {"users": self.users, "dimension": self.dimension, "scale": self.scale, "seed": self.seed}
        clusters, items, arrivals = (
            parse_clusters(self.clusters),
            parse_items(self.items),
            parse_arrivals(self.arrivals),
        )
        return plain | {"clusters": clusters, "items": items, "arrivals": arrivals, "life": self.parse_life()}

    def parse_life(self) -> "Life | None":
        """Return what happens to the population; None if nothing does."""
        from fedcascade.environments.life import Change, Liars, Life, Turnover

        kinds = {"change": Change, "liars": Liars, "joins": Turnover, "leaves": Turnover}
        texts = {name: getattr(self, name) for name in kinds if getattr(self, name) is not None}
        return Life(**{name: parse_event(name, kinds[name], text) for name, text in texts.items()}) if texts else None

    def read(self, path: Path) -> "Triplets":
        """Read the ratings in a file."""
        from fedcascade.data import Columns, read_ratings

        names = self.columns.split(",") if self.columns else []
        require(len(names) in (0, 3), f"columns must be three names, as user,item,rating, got '{self.columns}'")
        return read_ratings(path, columns=Columns(*names) if names else None)

    def build_from(self, ratings: "Triplets") -> "Ratings":
        """Build the environment made from ratings."""
        from fedcascade.environments.ratings import Ratings

        return Ratings(ratings, preset=self.preset or "catalogue", **self.parse_sizes(), **parse_steps(self.step))


@Parameter(name="*", group=Group("Log", sort_key=3), negative="")
@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """How a log of lists is read.

    Attributes:
        format: A published format: yandex, open-bandit, kuairand or finn. [the columns of the file say]
        item_table: A table of items: a name and a number per feature for each.
        normalise: Divide the features of each item of that table by their length.
        column: Say which column of the file is what: items=shown. Repeatable.
    """

    format: Annotated[str | None, Parameter(show_default=False)] = None
    item_table: Annotated[Path | None, Parameter(show_default=False)] = None
    normalise: Annotated[bool, Parameter(show_default=False)] = False
    column: Annotated[list[str], Parameter(show_default=False)] = field(default_factory=list)

    def is_log(self, path: Path) -> bool:
        """Whether a file is a log of lists: these options say so, or the names of its columns do."""
        from fedcascade.data.logs.columns import has_log_columns
        from fedcascade.data.logs.files import SCANNERS, TEXTS, list_columns, scan_file
        from fedcascade.data.text import read_header, strip_packing

        if self != LogOptions():
            return True
        known = path.is_file() and any(ending in SCANNERS for ending in path.suffixes[-2:])
        try:
            return known and has_log_columns(list(list_columns(scan_file(path), path)))
        except ValueError:  # the log's reader says what is wrong with it
            return strip_packing(path) in TEXTS and has_log_columns(read_header(path))

    def open(self, path: Path) -> "Log":
        """Open a log."""
        from fedcascade.data.logs import read_log
        from fedcascade.data.logs.items import read_items

        table = None if self.item_table is None else read_items(self.item_table, normalise=self.normalise)
        columns = split_assignments("column", self.column, "items=shown")
        return read_log(path, columns=columns, form=self.format, items=table)


@Parameter(name="*", group=Group("Environment", sort_key=1), negative="")
@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions(RatingsOptions):
    """The environment: synthetic, made from a file of ratings, or one of another package.

    Attributes:
        environment: synthetic, or the name of a plug-in's environment (see 'fedcascade plugins').
        set_env: Set an argument of a plug-in's environment: name=value. Repeatable.
        ratings: Make the environment from this file of ratings instead of a synthetic one.
        features: lifted: <theta, x> is always a probability; gaussian: it is clipped to [0, 1];
            logistic: clicks are rare, with probability sigmoid(12 <theta, x> - 11.3).
        directions: Theta directions: orthonormal, or independent.
        gap: Distance between the thetas of any two clusters. [as far as their directions say]
        drift: From this round on, every second user of each cluster wants something else. [never]
        categories: How many categories items belong to, for --oracle per-category. [none]
        costs: Give items costs, uniform in (0, 1], for --oracle budget.
    """

    environment: str = "synthetic"
    set_env: Annotated[list[str], Parameter(show_default=False)] = field(default_factory=list)
    ratings: Annotated[Path | None, _RATINGS] = None
    features: Literal["lifted", "gaussian", "logistic"] = "lifted"
    directions: Literal["orthonormal", "random"] = "orthonormal"
    gap: float | None = None
    drift: Whole | None = None
    categories: Whole | None = None
    costs: Annotated[bool, Parameter(show_default=False)] = False

    def build(self) -> "Environment":
        """Build the environment that these options describe."""
        from fedcascade.environments.synthetic import Synthetic

        if self.environment != "synthetic":
            return self._build_plugin()
        require(not self.set_env, "--set-env belongs to an --environment of a plug-in")
        if self.ratings is not None:
            plain = EnvironmentOptions()
            is_plain = all(getattr(self, name) == getattr(plain, name) for name in SYNTHETIC_OPTIONS)
            words = f"{', '.join(SYNTHETIC_OPTIONS[:-1])} and {SYNTHETIC_OPTIONS[-1]} belong to a synthetic environment"
            require(is_plain, f"{words}: leave them out with --ratings")
            return self.build_from(self.read(self.ratings))
        ratings_options = (self.preset, self.columns, *self.step)
        require(not any(ratings_options), "preset, step and columns belong to --ratings FILE")
        options = {name: getattr(self, name) for name in SYNTHETIC_OPTIONS}
        return Synthetic(**options, **self.parse_sizes())

    def _build_plugin(self) -> "Environment":
        """Build an environment of another package, which takes its arguments from --set-env and its seed."""
        from fedcascade.plugins import get_plugin

        plugin = get_plugin("environment", self.environment)
        plain = EnvironmentOptions(seed=self.seed, environment=self.environment, set_env=self.set_env)
        flags = [f"--{name.replace('_', '-')}" for name in vars(self) if getattr(self, name) != getattr(plain, name)]
        require(not flags, f"{self.environment} takes its own arguments, by --set-env, and not {', '.join(flags)}")
        arguments = {name: parse_value(text) for name, text in split_assignments("set-env", self.set_env).items()}
        environment: Environment = plugin.build(seed=self.seed, **arguments)
        return environment


def parse_clusters(text: str) -> int | list[int]:
    """Read '10' as 10 clusters, '20,10,10' as their sizes.

    >>> parse_clusters("10"), parse_clusters("20,10,10")
    (10, [20, 10, 10])
    """
    sizes = [_parse_whole("clusters", part) for part in text.split(",")]
    return sizes[0] if len(sizes) == 1 else sizes


def parse_items(text: str) -> int | tuple[int, int]:
    """Read '200' as 200 items, '150-250' as any number between.

    >>> parse_items("200"), parse_items("150-250")
    (200, (150, 250))
    """
    ends = [_parse_whole("items", part) for part in text.split("-")]
    is_range = len(ends) <= 2 and ends[0] <= ends[-1]
    require(is_range, f"items must be a whole number or a range like 150-250, got '{text}'")
    return ends[0] if len(ends) == 1 else (ends[0], ends[1])


def parse_arrivals(text: str) -> list[float] | Literal["zipf"] | None:
    """Read 'uniform' as None, '3,1,1' as those weights.

    >>> parse_arrivals("zipf"), parse_arrivals("3,1")
    ('zipf', [3.0, 1.0])
    """
    if text in ("uniform", "zipf"):
        return "zipf" if text == "zipf" else None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"arrivals must be uniform, zipf or a weight for each user, got '{text}'") from None


def parse_event(name: str, kind: Any, text: str) -> Any:
    """Read 'at=500,to=existing' as the event of that kind.

    >>> from fedcascade.environments.life import Change
    >>> parse_event("change", Change, "at=500,to=existing")
    Change(at=500, share=0.5, to='existing', until=None, every=None)
    """
    values = {key: _parse_number(value) for key, value in split_assignments(name, text.split(","), "share=0.2").items()}
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for key in values:
        require_known(f"word of {name}", key, known)
    missing = [key for key, is_needed in known.items() if is_needed and key not in values]
    require(not missing, f"{name} needs {' and '.join(missing)}, got '{text}'")
    return kind(**values)


def parse_steps(texts: Sequence[str]) -> dict[str, Any]:
    """Read 'values=counts' as a step and how to take it; numbers and true or false are read as such.

    >>> parse_steps(["values=counts", "top_users=500", "lifted=true"])
    {'values': 'counts', 'top_users': 500, 'lifted': True}
    """
    return {name: parse_value(value) for name, value in split_assignments("step", texts, "selection=nested").items()}


def split_assignments(option_name: str, texts: Sequence[str], example: str = "name=value") -> dict[str, str]:
    """Split texts at their first equals sign.

    >>> split_assignments("set", ["beta=2", "fedind.beta=1"])
    {'beta': '2', 'fedind.beta': '1'}
    """
    pairs = [text.partition("=") for text in texts]
    is_good = all(name and sign for name, sign, _ in pairs)
    require(is_good, f"{option_name} must be like {example}, got '{' '.join(texts)}'")
    return {name: value for name, _, value in pairs}


def parse_value(text: str) -> object:
    """Read true and false, whole numbers and numbers as such, anything else as text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parse_number(text: str) -> object:
    """Read whole numbers, also those written as 5e4; else what ``parse_value`` reads."""
    try:
        return read_whole(text)
    except ValueError:
        return parse_value(text)


def _parse_whole(name: str, text: str) -> int:
    number: int = whole_numbers(1).parse(name, text.strip())
    return number
