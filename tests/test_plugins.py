"""Plug-ins are listed without being imported, loaded by name, and a broken one takes down nothing else."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcascade.federation.policies import POLICIES, get_policy, load_policies
from fedcascade.plugins import GROUPS, PluginError, get_plugin, list_plugins

MODULE = """
from dataclasses import replace
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK

good = replace(POLICIES["fedind"], name="good")
number = 3
"""
ENTRY_POINTS = """
[fedcascade.policies]
good = offered_things:good
missing = offered_things:missing
nowhere = no_such_module:row
number = offered_things:number
renamed = offered_things:good
fedind = offered_things:good
[fedcascade.oracles]
best = offered_things:TopK
"""


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "offered_things-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-things\nVersion: 1.5\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (tmp_path / "offered_things.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_policies.cache_clear()
    yield
    load_policies.cache_clear()
    sys.modules.pop("offered_things", None)


@pytest.mark.usefixtures("offered")
def test_plug_ins_are_listed_and_not_imported() -> None:
    listed = [plugin for plugin in list_plugins() if plugin.distribution == "offered-things 1.5"]
    assert [(plugin.kind, plugin.name) for plugin in listed] == [
        ("policy", "fedind"),
        ("policy", "good"),
        ("policy", "missing"),
        ("policy", "nowhere"),
        ("policy", "number"),
        ("policy", "renamed"),
        ("oracle", "best"),
    ]
    assert {plugin.kind for plugin in listed} <= set(GROUPS)
    assert listed[1].target == "offered_things:good"
    assert "offered_things" not in sys.modules


@pytest.mark.usefixtures("offered")
def test_a_plug_in_is_loaded_by_name() -> None:
    assert get_plugin("oracle", "best").load().__name__ == "TopK"
    with pytest.raises(ValueError, match="unknown oracle plug-in 'bst': did you mean 'best'"):
        get_plugin("oracle", "bst").load()


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "AttributeError"),
        ("nowhere", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("number", "it is of type int, not a Policy"),
        ("renamed", "must have the policy's name 'good'"),
    ],
)
def test_a_broken_plug_in_is_refused_in_one_line(name: str, reason: str) -> None:
    with pytest.raises(PluginError) as refusal:
        get_policy(name)
    message = str(refusal.value)
    assert message.startswith(f"policy plug-in '{name}' (")
    assert reason in message
    assert message.endswith("update or uninstall that package")
    assert "offered-things 1.5" in message
    assert "\n" not in message


@pytest.mark.usefixtures("offered")
def test_broken_plug_ins_take_down_nothing_else() -> None:
    with pytest.warns(UserWarning, match="cannot be used") as warned:
        policies = load_policies()
    assert len(warned) == 5
    assert set(policies) == {*POLICIES, "good"}
    assert policies["fedind"] is POLICIES["fedind"], "our own names cannot be taken"
    assert get_policy("good").name == "good"
