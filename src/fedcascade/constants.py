"""Declared options: dataclass fields with a meaning, a range and, in a policy, the paper's symbol.

The library, the command line, plans, Gymnasium and environment variables read the same declaration.
"""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from fedcascade.checks import NUMBER, Range, read_flag

Value = TypeVar("Value")


@dataclass(frozen=True)
class ConstantDescription:
    """A constant with its value: a number, a word, or a formula in the sizes of the problem."""

    name: str
    value: Any
    meaning: str = ""
    symbol: str = ""
    range: Range | None = None
    implied: bool = False  # added later, with the value that gives the behaviour before

    def parse(self, text: str) -> Any:
        """Parse a text by the range, or else by the type of the current value."""
        return (self.range or guess_range(self.value)).parse(self.name.rstrip("_"), text)


def constant(
    default: Any = MISSING,
    meaning: str = "",
    range: Range | None = None,  # noqa: A002
    *,
    symbol: str = "",
    added: bool = False,
) -> Any:
    """Declare a field of a dataclass as an option: a constant of a policy, or a setting of anything else.

    Args:
        default: the default value; without one, the option is required.
        meaning: one plain sentence.
        range: the allowed values. None allows all numbers, or any value if the default is not a number.
        symbol: the paper's symbol.
        added: whether servers' stores of the last release lack it; the default then is the behaviour before it.
    """
    is_number = default is MISSING or (isinstance(default, int | float) and not isinstance(default, bool))
    if range is None and is_number:
        range = NUMBER  # noqa: A001
    return field(default=default, metadata={"meaning": meaning, "symbol": symbol, "range": range, "added": added})


class Checked:
    """Base class of frozen dataclasses that refuse options outside their ranges."""

    def __post_init__(self) -> None:
        check_constants(self)


class Part(Checked):
    """A part of a policy."""


def check_constants(declaring: Any) -> None:
    """Refuse a value outside the range of its option, except a default of None."""
    for declared in fields(declaring):
        allowed, value = declared.metadata.get("range"), getattr(declaring, declared.name)
        if allowed is not None and not (value is None and declared.default is None):
            allowed.check(declared.name.rstrip("_"), value)


def describe_constants(part: object) -> Iterator[ConstantDescription]:
    """Yield the constants of a part and its nested parts, in the order of their fields."""
    for declared in fields(part) if is_dataclass(part) else ():
        value = getattr(part, declared.name)
        if is_dataclass(value):
            yield from describe_constants(value)
        else:
            yield describe_field(declared, value)


def describe_field(declared: Field[Any], value: Any) -> ConstantDescription:
    """Describe one field; a field that is no constant has only a name and a value."""
    known = {key: declared.metadata[key] for key in ("meaning", "symbol", "range") if key in declared.metadata}
    implied = declared.metadata.get("added", False) and value == declared.default
    return ConstantDescription(declared.name, value, **known, implied=implied)


def list_texts(descriptions: Iterable[ConstantDescription]) -> dict[str, str]:
    """Return constants as texts by name, to compare, without the implied ones, which versions before do not have."""
    texts = {each.name: str(each.value) for each in descriptions if not each.implied}
    return dict(sorted(texts.items()))


def replace_constants(part: Value, constants: dict[str, Any]) -> Value:
    """Return a part, with nested parts, with new values for the constants that it has."""
    if not is_dataclass(part):
        return part
    values = {declared.name: getattr(part, declared.name) for declared in fields(part)}
    changed = {
        name: replace_constants(value, constants) if is_dataclass(value) else constants.get(name, value)
        for name, value in values.items()
    }
    return replace(part, **changed)  # type: ignore[type-var]


def guess_range(value: object) -> Range:
    """Return the range of a field that is no constant: all values of its current type.

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
    """Return the range of an enumeration's members and values."""
    values = [member.value for member in kind]
    return Range("one of " + ", ".join(values), lambda value: value in values, kind)
