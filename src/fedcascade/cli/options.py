"""Options that commands share: flags made from the options of library classes, and a few more."""

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Group, Parameter, Token

from fedcascade.checks import NUMBER, parse_value, read_whole, require, split_assignments
from fedcascade.environments.options import ClusteredOptions, RatingsOptions, SyntheticOptions

if TYPE_CHECKING:
    from fedcascade.data.logs import Log
    from fedcascade.environments.environment import Environment
    from fedcascade.environments.matrices import Triplets
    from fedcascade.environments.ratings import Ratings
    from fedcascade.learning.oracles import Oracle

PLAIN = Group("Options", sort_key=0)
_ENVIRONMENT = Group("Environment", sort_key=1)
_RATINGS = Group("Ratings", sort_key=2)


def option(text: str, group: Group = PLAIN, **more: Any) -> Parameter:
    """Describe an option for ``--help``."""
    return Parameter(group=group, help=text, negative="", **more)


Whole = Annotated[int, Parameter(converter=lambda _, tokens: read_whole(tokens[0].value))]  # int() would round 300.7


def take_options(kind: Any, group: Group = PLAIN, *, variables: str | None = None) -> Any:
    """Derive a class of flags from a dataclass of options; ``variables`` is the prefix of environment variables."""
    names = {"__module__": kind.__module__}  # cyclopts reads a class of the standard library as a plain value
    flags = list_flags(kind, group, variables=variables)
    derived = make_dataclass(kind.__name__, flags, bases=(kind,), namespace=names, frozen=True, kw_only=True)
    return Parameter(name="*", group=group, negative="")(derived)


def list_flags(kind: Any, group: Group, *, without: Collection[str] = (), variables: str | None = None) -> list[Any]:
    """List the flags of a dataclass of options, as fields of another dataclass."""
    hints = get_type_hints(kind)
    return [
        _make_flag(each, hints[each.name], group, variables=variables)
        for each in fields(kind)
        if each.name not in without
    ]


def _make_flag(declared: Any, hint: Any, group: Group, *, variables: str | None) -> tuple[str, Any, Any]:
    """Make the flag of an option; its range parses the text, or else its type does."""
    default, meaning, allowed = declared.default, declared.metadata["meaning"], declared.metadata["range"]
    sentence = meaning if meaning.split()[0][-1] in ":," else meaning[0].upper() + meaning[1:]
    whole = {int: Whole, int | None: Whole | None}
    if allowed is None or isinstance(default, bool) or (allowed is NUMBER and hint in whole):
        converter, kind = None, whole.get(hint, hint)
    else:
        plain = next((kind for kind in (int, float) if hint in (kind, kind | None)), str)
        kind = type(default) if isinstance(default, int | float) else plain

        def converter(_type: object, tokens: Sequence[Token]) -> Any:
            return allowed.parse(declared.name, tokens[0].value)

    flag = option(
        sentence if sentence.endswith("]") else f"{sentence}.",
        group,
        converter=converter,
        env_var=None if variables is None else f"{variables}{declared.name.upper()}",
        show_default=default not in (None, False, ()),
    )
    return declared.name, Annotated[kind, flag], field(default=default, metadata=declared.metadata)


def select_options(kind: Any, flags: object) -> Any:
    """Build a class of options from the flags of the same names."""
    return kind(**{each.name: getattr(flags, each.name) for each in fields(kind)})


Json = Annotated[bool, option("Print JSON on stdout.", name="--json", show_default=False)]


_COMMON = {each.name for each in fields(ClusteredOptions)}
_RATINGS_ALONE = [each.name for each in fields(RatingsOptions) if each.name not in _COMMON]
_SYNTHETIC_ALONE = [each.name for each in fields(SyntheticOptions) if each.name not in _COMMON]
_RatingsFlags = make_dataclass(
    "_RatingsFlags",
    list_flags(ClusteredOptions, _ENVIRONMENT) + list_flags(RatingsOptions, _RATINGS, without=_COMMON),
    frozen=True, kw_only=True,
)  # fmt: skip
_SyntheticFlags = make_dataclass(
    "_SyntheticFlags", list_flags(SyntheticOptions, _ENVIRONMENT, without=_COMMON), frozen=True, kw_only=True
)


@Parameter(name="*", group=_ENVIRONMENT, negative="")
@dataclass(frozen=True, kw_only=True)
class RatingsFlags(_RatingsFlags):  # type: ignore[misc, valid-type]
    """An environment made from a ratings file.

    Attributes:
        seed: Seed of the environment: users, items and clicks.
        columns: The file's columns of users, items and ratings, as user,item,rating. [default: usual names]
    """

    seed: Whole = 0
    columns: Annotated[str | None, Parameter(group=_RATINGS, show_default=False)] = None

    def read(self, path: Path) -> "Triplets":
        from fedcascade.data.readers import Columns, read_ratings

        names = self.columns.split(",") if self.columns else []
        require(len(names) in (0, 3), f"columns must be three names, as user,item,rating, got '{self.columns}'")
        return read_ratings(path, columns=Columns(*names) if names else None)

    def build_from(self, ratings: "Triplets") -> "Ratings":
        from fedcascade.environments.ratings import Ratings

        return Ratings(ratings, select_options(RatingsOptions, self), seed=self.seed)

    def list_given(self, names: Iterable[str]) -> list[str]:
        """Return the flags whose values are not the defaults."""
        plain = type(self)()
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != getattr(plain, name)]


@Parameter(name="*", group=Group("Log", sort_key=3), negative="")
@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The format of a log of lists.

    Attributes:
        item_table: A file with the name and features of each item.
        normalise: Divide the features of each item by their norm.
        column: Map a role to a column of the file: items=shown. Repeatable.
        skip_invalid: Skip rows that break a rule, and say how many and why, instead of stopping at the first.
    """

    item_table: Annotated[Path | None, Parameter(show_default=False)] = None
    normalise: Annotated[bool, Parameter(show_default=False)] = False
    column: Annotated[list[str], Parameter(show_default=False)] = field(default_factory=list)
    skip_invalid: Annotated[bool, Parameter(show_default=False)] = False

    def is_log(self, path: Path) -> bool:
        """Return whether a file is a log of lists, by these options or by the names of its columns."""
        from fedcascade.data.logs.reader import has_log_columns
        from fedcascade.data.tables import SCANNERS, TEXTS, list_columns, read_header, scan_file, strip_packing

        if self != LogOptions():
            return True
        known = path.is_file() and any(ending in SCANNERS for ending in path.suffixes[-2:])
        try:
            return known and has_log_columns(list(list_columns(scan_file(path), path)))
        except ValueError:  # the log's reader reports the error
            return strip_packing(path) in TEXTS and has_log_columns(read_header(path))

    def open(self, path: Path) -> "Log":
        from fedcascade.data.logs import read_log
        from fedcascade.data.logs.items import read_items

        table = None if self.item_table is None else read_items(self.item_table, normalise=self.normalise)
        columns = split_assignments("column", self.column, "items=shown")
        return read_log(path, columns=columns, items=table, skip_invalid=self.skip_invalid)

    def print_notes(self, log: "Log") -> None:
        """Print to stderr how a log was ordered, and which rows were skipped."""
        for note in log.list_notes():
            print(f"fedcascade: {note}", file=sys.stderr)


@Parameter(name="*", group=_ENVIRONMENT, negative="")
@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions(_SyntheticFlags, RatingsFlags):  # type: ignore[misc, valid-type]
    """The environment: synthetic, made from a file of ratings, or one of another package.

    Attributes:
        environment: synthetic, or the name of a plug-in's environment (see 'fedcascade doctor').
        set_env: Set an argument of a plug-in's environment: name=value. Repeatable.
        ratings: Make the environment from this ratings file.
    """

    environment: str = "synthetic"
    set_env: Annotated[list[str], Parameter(show_default=False)] = field(default_factory=list)
    ratings: Annotated[Path | None, Parameter(group=_RATINGS, show_default=False)] = None

    def build(self) -> "Environment":
        from fedcascade.environments.synthetic import Synthetic

        if self.environment != "synthetic":
            return self._build_plugin()
        require(not self.set_env, "--set-env belongs to an --environment of a plug-in")
        if self.ratings is not None:
            others = ", ".join(self.list_given(_SYNTHETIC_ALONE))
            require(not others, f"{others}: only for a synthetic environment, leave it out with --ratings")
            return self.build_from(self.read(self.ratings))
        others = ", ".join(self.list_given([*_RATINGS_ALONE, "columns"]))
        require(not others, f"{others}: belongs to --ratings FILE")
        return Synthetic(select_options(SyntheticOptions, self), seed=self.seed)

    def _build_plugin(self) -> "Environment":
        """Build an environment of another package from --set-env and the seed."""
        from fedcascade.plugins import get_plugin

        plugin = get_plugin("environment", self.environment)
        flags = self.list_given(name for name in vars(self) if name not in ("seed", "environment", "set_env"))
        require(not flags, f"{self.environment} takes its arguments by --set-env, not {', '.join(flags)}")
        environment: Environment = plugin.build(seed=self.seed, **parse_assignments("set-env", self.set_env))
        return environment


@Parameter(name="*", group=PLAIN, negative="")
@dataclass(frozen=True, kw_only=True)
class OracleFlags:
    """The oracle, which chooses lists by scores.

    Attributes:
        list_length: K, the longest list that an agent may show. [default: 4, or that of a log]
        oracle: top-k; per-category, with at most 'limit' of each (--categories);
            budget, with costs within 'budget' (--costs); plackett-luce (temperature); epsilon (epsilon);
            or a plug-in's oracle (see 'fedcascade doctor').
        set_oracle: Set an argument of the oracle: limit=2. Repeatable.
    """

    list_length: Annotated[Whole | None, Parameter(show_default=False)] = None
    oracle: str = "top-k"
    set_oracle: Annotated[list[str], Parameter(show_default=False)] = field(default_factory=list)

    def build(self, length: int = 4) -> "Oracle":
        """Build the oracle; ``length`` is the default of --list-length."""
        from fedcascade.learning.named_oracles import build_oracle

        arguments = parse_assignments("set-oracle", self.set_oracle)
        return build_oracle(self.oracle, length if self.list_length is None else self.list_length, arguments)


def parse_assignments(option_name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Parse texts like name=value, with numbers and booleans."""
    return {name: parse_value(text) for name, text in split_assignments(option_name, texts).items()}
