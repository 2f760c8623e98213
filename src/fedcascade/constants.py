"""Declared options: dataclass fields that carry their meaning, their range and, in a policy, the paper's symbol.

The library, the command line, plans, Gymnasium and environment variables all read the same declaration.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from fedcascade.checks import NUMBER, Range, read_flag

Value = TypeVar("Value")


@dataclass(frozen=True)
class ConstantDescription:
    """What is known of a constant: its value is a number, a word, or a formula in the sizes of the problem."""

    name: str
    value: Any
    meaning: str = ""
    symbol: str = ""
    range: Range | None = None

    def parse(self, text: str) -> Any:
        """The value that a text stands for, by the range or else by the type of the present value."""
        return (self.range or guess_range(self.value)).parse(self.name.rstrip("_"), text)


def constant(
    default: Any = MISSING,
    meaning: str = "",
    range: Range | None = None,  # noqa: A002
    *,
    symbol: str = "",
) -> Any:
    """Declare a field of a dataclass as an option: a constant of a policy, or a setting of anything else.

    Args:
        default: the value where none is given; without one, the option must be given.
        meaning: one plain sentence.
        range: the values that it may have. None allows all or, unless the default is something else, all numbers.
        symbol: what the paper calls it.
    """
    is_number = default is MISSING or (isinstance(default, int | float) and not isinstance(default, bool))
    if range is None and is_number:
        range = NUMBER  # noqa: A001
    return field(default=default, metadata={"meaning": meaning, "symbol": symbol, "range": range})


class Checked:
    """A frozen dataclass that refuses options outside their ranges."""

    def __post_init__(self) -> None:
        check_constants(self)


class Part(Checked):
    """A part of a policy."""


def check_constants(declaring: Any) -> None:
    """Refuse a value outside the range of its option; None, where it is the default, means that none is given."""
    for declared in fields(declaring):
        allowed, value = declared.metadata.get("range"), getattr(declaring, declared.name)
        if allowed is not None and not (value is None and declared.default is None):
            allowed.check(declared.name.rstrip("_"), value)


def describe_constants(part: object) -> Iterator[ConstantDescription]:
    """The constants of a part and of the parts inside it, in the order of their fields."""
    for declared in fields(part) if is_dataclass(part) else ():
        value = getattr(part, declared.name)
        if is_dataclass(value):
            yield from describe_constants(value)
        else:
            yield describe_field(declared, value)


def describe_field(declared: Field[Any], value: Any) -> ConstantDescription:
    """The description of one field; one that was not declared as a constant has a name and a value alone."""
    known = {key: declared.metadata[key] for key in ("meaning", "symbol", "range") if key in declared.metadata}
    return ConstantDescription(declared.name, value, **known)


def replace_constants(part: Value, constants: dict[str, Any]) -> Value:
    """The part, and the parts inside it, with those of ``constants`` that it has."""
    if not is_dataclass(part):
        return part
    values = {declared.name: getattr(part, declared.name) for declared in fields(part)}
    changed = {
        name: replace_constants(value, constants) if is_dataclass(value) else constants.get(name, value)
        for name, value in values.items()
    }
    return replace(part, **changed)  # type: ignore[type-var]


def guess_range(value: object) -> Range:
    """The range of a field that was not declared as a constant: all values of the type that it has now.

    >>> guess_range(False).parse("greedy", "true"), guess_range(3).parse("n", "4"), guess_range("a").parse("word", "b")
    (True, 4, 'b')
    """
    if isinstance(value, Enum):
        return enum_values(type(value))
    words = {bool: "true or false", int: "a whole number", str: "a text"}
    kind = next((kind for kind in words if isinstance(value, kind)), None)
    if kind is None:
        return NUMBER
    return Range(words[kind], lambda candidate: isinstance(candidate, kind), read_flag if kind is bool else kind)


def enum_values(kind: type[Enum]) -> Range:
    """The members of an enumeration, or their values."""
    values = [member.value for member in kind]
    return Range("one of " + ", ".join(values), lambda value: value in values, kind)
