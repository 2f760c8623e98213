"""The page of policies is what the code says."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from fedcascade.cli.terminal import TABLE_1
from fedcascade.federation.policies import POLICIES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference-policies.md"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_policies", ROOT / "tools" / "reference_policies.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(tool: ModuleType) -> None:
    assert tool.render_page() == PAGE.read_text(encoding="utf-8"), "run `make docs`"


def test_every_policy_has_a_section_and_those_of_table_1_a_source(tool: ModuleType) -> None:
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {section.partition("\n")[0]: section for section in sections}
    assert set(POLICIES) <= set(found)
    for name in TABLE_1:
        title, differs = tool.SOURCES[name]
        assert title in found[name]
        assert f"Where we differ: {differs}." in found[name]


def test_the_rows_of_table_1_in_the_papers_words() -> None:
    words = {name: (POLICIES[name].agents, POLICIES[name].users, claim.arms) for name, claim in TABLE_1.items()}
    assert words == {
        "oful": ("single", "homogeneous", "single"),
        "c3-ucb": ("single", "homogeneous", "cascade"),
        "dislinucb": ("synchronous", "homogeneous", "single"),
        "club-cascade": ("synchronous", "heterogeneous", "cascade"),
        "async-linucb": ("partly asynchronous", "homogeneous", "single"),
        "async-linucb-am": ("partly asynchronous", "heterogeneous", "single"),
        "phase-fclub": ("partly asynchronous", "heterogeneous", "single"),
        "fedlinucb": ("asynchronous", "homogeneous", "single"),
        "fedc3ucb-h": ("asynchronous", "heterogeneous", "cascade"),
    }
