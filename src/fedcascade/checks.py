"""One-line refusals: what was wrong, what was expected, what to do."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message)


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not finite and greater than zero."""
    require(math.isfinite(value) and value > 0, f"{name} must be a finite number > 0, got {value}")


def require_nonnegative(name: str, value: float) -> None:
    """Refuse a number that is not finite or is less than zero."""
    require(math.isfinite(value) and value >= 0, f"{name} must be a finite number >= 0, got {value}")


def require_ratio(name: str, value: float) -> None:
    """Refuse what cannot bound a ratio: it must be greater than zero, and may be infinite."""
    require(value > 0, f"{name} must be a number > 0 or inf, got {value}")


def require_integer(name: str, value: object, least: int = 1) -> None:
    """Refuse anything but a whole number of at least ``least``."""
    good = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    require(good, f"{name} must be a whole number >= {least}, got {value}")


def require_known(kind: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is not among ``names``, and say which one is nearest."""
    names = sorted(names)
    if name in names:
        return
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else "expected one of " + ", ".join(names)
    raise ValueError(f"unknown {kind} '{name}': {hint}")
