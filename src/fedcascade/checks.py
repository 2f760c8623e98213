"""One-line errors for bad input: what was wrong, what was expected, what to do."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any

_SCIENTIFIC = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?[eE][+]?[0-9]{1,2}")
_MOST_DIGITS = 18
EXTRAS = {  # the modules that `pip install 'fedcascade[extra]'` installs
    "agent": ("httpx2", "nacl"),
    "server": ("httpx2", "nacl", "litestar", "prometheus_client", "uvicorn"),
    "logs": ("polars",),
    "experiments": ("polars", "matplotlib"),
    "gpu": ("fedcascade_cuda",),
    "gymnasium": ("gymnasium",),
    "otel": ("opentelemetry",),
    "postgres": ("psycopg",),
    "ray": ("ray",),
}


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Range:
    """The values that a constant may have; ``words`` ends the sentence 'it must be ...'.

    >>> POSITIVE.parse("alpha_c", "0.5"), whole_numbers(1).parse("sweeps", "3")
    (0.5, 3)
    """

    words: str
    contains: Callable[[Any], bool]
    read: Callable[[str], Any] = float  # from text to a value, or a ValueError
    names: tuple[str, ...] = ()  # of a set of words; an error names the nearest

    def check(self, name: str, value: object) -> None:
        if self.names and isinstance(value, str):
            require_known(name, value, self.names)
        require(self.contains(value), f"{name} must be {self.words}, got {value}")

    def parse(self, name: str, text: str) -> Any:
        """Parse a text, and refuse a value outside the range."""
        try:
            value = self.read(text)
        except ValueError:
            raise ValueError(f"{name} must be {self.words}, got '{text}'") from None
        self.check(name, value)
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)


NUMBER = Range("a number", lambda value: _is_number(value) and not math.isnan(value))
POSITIVE = Range("a finite number > 0", lambda value: _is_number(value) and 0 < value < math.inf)
NONNEGATIVE = Range("a finite number >= 0", lambda value: _is_number(value) and 0 <= value < math.inf)
RATIO = Range("a number > 0 or inf", lambda value: _is_number(value) and value > 0)
PROBABILITY = Range("in (0, 1)", lambda value: _is_number(value) and 0 < value < 1)
SHARE = Range("in (0, 1]", lambda value: _is_number(value) and 0 < value <= 1)


def read_whole(text: str) -> int:
    """Parse a whole number, also written as 1e6 or 1_000_000; raise ValueError for anything else.

    >>> read_whole("300"), read_whole("1e6"), read_whole("2.5e3")
    (300, 1000000, 2500)
    """
    try:
        return int(text)
    except ValueError:
        number = Decimal(text) if _SCIENTIFIC.fullmatch(text) else Decimal("nan")
    if not number.is_finite() or number.adjusted() > _MOST_DIGITS or number != int(number):
        raise ValueError(f"expected a whole number, got '{text}'")
    return int(number)


@cache
def whole_numbers(least: int, most: int | None = None) -> Range:
    """Return the range of whole numbers from ``least`` to ``most``, by default without an end."""

    def contains(value: object) -> bool:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
        return is_whole and (most is None or int(value) <= most)  # type: ignore[call-overload]

    words = f"a whole number >= {least}" if most is None else f"a whole number in {least}..{most}"
    return Range(words, contains, read_whole)


def one_of(*names: str) -> Range:
    """Return the range of the given words."""
    return Range(f"one of {', '.join(names)}", lambda value: value in names, str, names)


def read_flag(text: str) -> bool:
    """Parse true or false; raise ValueError for anything else."""
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def parse_value(text: str) -> object:
    """Parse a boolean, a whole number or a number; return anything else as text.

    >>> parse_value("true"), parse_value("5e4"), parse_value("0.5"), parse_value("nested")
    (True, 50000, 0.5, 'nested')
    """
    for read in (read_flag, read_whole, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def split_assignments(option_name: str, texts: Sequence[str], example: str = "name=value") -> dict[str, str]:
    """Split texts at their first equals sign.

    >>> split_assignments("set", ["beta=2", "fedind.beta=1"])
    {'beta': '2', 'fedind.beta': '1'}
    """
    pairs = [text.partition("=") for text in texts]
    is_good = all(name and sign for name, sign, _ in pairs)
    require(is_good, f"{option_name} must be like {example}, got '{' '.join(texts)}'")
    return {name: value for name, _, value in pairs}


def require_integer(name: str, value: object, least: int = 1) -> None:
    """Refuse anything but a whole number of at least ``least``."""
    whole_numbers(least).check(name, value)


def read_index(name: str, value: Any) -> int:
    """Convert an index of any integer type to ``int``.

    Refuses booleans: for a position, True would mean a click without its position.

    >>> import numpy as np
    >>> read_index("clicked", np.int64(3))
    3
    """
    try:
        require(not isinstance(value, bool), "")
        return operator.index(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None


def require_known(kind: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is not among ``names``, and suggest the nearest."""
    names = sorted(names)
    if name in names:
        return
    near = get_close_matches(name, names, 1, 0.5)
    hint = f"did you mean '{near[0]}'?" if near else "expected one of " + ", ".join(names)
    raise ValueError(f"unknown {kind} '{name}': {hint}")


def list_missing(extra: str) -> list[str]:
    """List the modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def require_extra(extra: str, what: str) -> None:
    """Raise an ImportError that names the extra unless all its modules are installed."""
    if missing := list_missing(extra):
        raise ImportError(f"{what} needs {', '.join(missing)}: pip install 'fedcascade[{extra}]'")
