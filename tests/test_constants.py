"""Every constant says what it means and which values it may have; parts, errors and parsing go by that."""

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcascade.checks import NONNEGATIVE, NUMBER, POSITIVE, PROBABILITY, RATIO, Range, whole_numbers
from fedcascade.constants import Part, constant, describe_constants, guess_range
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import POLICIES, Order
from fedcascade.federation.triggers import AtLeast, Determinant, Occasion, Trigger
from fedcascade.learning.confidence import Theory


@pytest.mark.parametrize("name", POLICIES)
def test_every_constant_of_every_policy_is_described(name: str) -> None:
    for description in POLICIES[name].describe_constants():
        assert len(description.meaning.split()) > 2
        assert description.range is not None
    described = {description.name: description.value for description in POLICIES[name].describe_constants()}
    assert described == POLICIES[name].constants()


def test_the_symbols_are_the_papers() -> None:
    symbols = {entry.name: entry.symbol for entry in POLICIES["fedc3ucb-h"].describe_constants()}
    assert symbols == {
        "lambda_": "lambda",
        "order": "",
        "drift": "",
        "alpha_d": "alpha_d",
        "alpha_c": "alpha_c",
        "p_scale": "p_t",
        "beta": "beta",
    }


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (NUMBER, [-3, 0.0, math.inf], [math.nan, "1", None]),
        (POSITIVE, [1e-300, 7, 1e300], [0, -1.0, math.inf, math.nan, "1"]),
        (NONNEGATIVE, [0, 0.5], [-1e-9, math.inf, math.nan]),
        (RATIO, [0.1, math.inf], [0, -1, math.nan]),
        (PROBABILITY, [0.5], [0, 1, math.nan]),
        (whole_numbers(2), [2, 10**9], [1, 2.0, True, "2"]),
    ],
)
def test_a_range_contains_what_its_words_say(allowed: Range, inside: list[object], outside: list[object]) -> None:
    for value in inside:
        allowed.check("x", value)
    for value in outside:
        with pytest.raises(ValueError, match=f"x must be .*, got {value}".replace("(", r"\(")):
            allowed.check("x", value)


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_number_is_parsed_to_the_bit(value: float) -> None:
    assert POLICIES["fedc3ucb-h"].parse_constant("alpha_c", repr(value)) == value


def test_text_becomes_a_value_of_the_constants_kind() -> None:
    assert POLICIES["fedc3ucb-h"].parse_constant("order", "aggregate-first") is Order.AGGREGATE_FIRST
    assert POLICIES["async-linucb"].parse_constant("gamma_u", "inf") == math.inf
    assert POLICIES["club-cascade"].parse_constant("alpha_d", "7") == 7.0  # a formula until it is given
    visits = POLICIES["population"].parse_constant("visits", "5")
    assert (visits, type(visits)) == (5, int)


def test_change_detection_brings_its_constants() -> None:
    policy = POLICIES["population"].with_constants(drift="restart", threshold=6.0)
    assert policy.changes == ChangeDetection(threshold=6.0)
    assert POLICIES["population"].with_known_constants(policy.constants()) == policy
    assert policy.with_constants(drift="ignore") == POLICIES["population"]
    with pytest.raises(ValueError, match="unknown constant of population 'threshold'"):
        POLICIES["population"].with_constants(threshold=6.0)


@pytest.mark.parametrize(
    ("policy", "name", "text", "words"),
    [
        ("fedc3ucb-h", "alpha_c", "many", "alpha_c must be a finite number > 0, got 'many'"),
        ("fedc3ucb-h", "lambda_", "-1", "lambda must be a finite number > 0, got -1.0"),
        ("fedc3ucb-h", "order", "sideways", "order must be one of upload-first, aggregate-first, got 'sideways'"),
        ("population", "visits", "1.5", "visits must be a whole number >= 0, got '1.5'"),
        ("fedc3ucb-h", "alpha_x", "1", "unknown constant of fedc3ucb-h 'alpha_x'"),
    ],
)
def test_text_that_is_no_value_is_refused_in_one_line(policy: str, name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("'", ".")) as refusal:
        POLICIES[policy].parse_constant(name, text)
    assert "\n" not in str(refusal.value)


class Mood(StrEnum):
    CALM = "calm"
    LOUD = "loud"


@dataclass(frozen=True, kw_only=True)
class Foreign(Trigger):
    """A part of a plug-in: one constant is declared, the others are plain fields."""

    share: float = constant(0.5, meaning="how much of it", range=PROBABILITY)
    greedy: bool = False
    steps: int = 3
    mood: Mood = Mood.CALM
    label: str = "a"

    def cause(self, occasion: Occasion) -> Cause | None:
        return None


def test_a_plug_ins_constants_work_with_and_without_metadata() -> None:
    policy = replace(POLICIES["fedlinucb"], trigger=Determinant() | AtLeast(trigger=Foreign(), observations=2))
    texts = {"share": "0.25", "greedy": "true", "steps": "7", "mood": "loud", "label": "b", "observations": "4"}
    wanted = {"share": 0.25, "greedy": True, "steps": 7, "mood": Mood.LOUD, "label": "b", "observations": 4}
    values = {name: policy.parse_constant(name, text) for name, text in texts.items()}
    assert values == wanted
    constants = policy.with_constants(**values).constants()
    assert {name: constants[name] for name in wanted} == wanted
    for name, text in {"share": "2", "greedy": "yes", "steps": "x", "mood": "sad"}.items():
        with pytest.raises(ValueError, match=f"{name} must be"):
            policy.parse_constant(name, text)
    with pytest.raises(ValueError, match="share must be in"):
        Foreign(share=1.0)


def test_a_constant_of_two_parts_is_described_once() -> None:
    policy = replace(POLICIES["fedc3ucb-h"], confidence=Theory())
    assert [entry.name for entry in policy.describe_constants()].count("alpha_c") == 1


def test_a_constant_without_a_default_must_be_given() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy(Part):
        share: float = constant(meaning="how much of it")

    with pytest.raises(TypeError):
        Needy()
    assert [(entry.name, entry.value) for entry in describe_constants(Needy(share=2.0))] == [("share", 2.0)]
    assert fields(Needy)[0].metadata["meaning"] == "how much of it"


def test_a_number_of_no_known_type_is_parsed_as_a_number() -> None:
    assert guess_range(None).parse("x", "1.5") == 1.5
