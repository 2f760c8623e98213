"""Plug-ins on the command line: policies, environments, oracles and stores of an installed package, good and broken."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcascade.cli import main
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan import EnvironmentSpec
from fedcascade.experiments.plan_reader import read_plan
from fedcascade.federation.policies import load_policies
from fedcascade.plugins import GROUPS

MODULE = """
from dataclasses import dataclass, replace

from fedcascade import POLICIES, Synthetic
from fedcascade.constants import constant
from fedcascade.federation.triggers import Trigger
from fedcascade.learning.oracles import TopK


@dataclass(frozen=True, kw_only=True)
class Punctual(Trigger):
    every: int = constant(20, meaning="an agent speaks after this many rounds")

    def cause(self, occasion):
        return None


punctual = replace(POLICIES["fedlinucb"], name="punctual", trigger=Punctual())


class MyWorld(Synthetic):
    def __init__(self, *, seed, tastes=2, users=6):
        super().__init__(users=users, clusters=tastes, dimension=5, items=10, seed=seed)


class Crooked(MyWorld):
    def draw(self, round_):
        return 2.0


class Loose(Synthetic):
    def __init__(self, seed, users=4):
        super().__init__(users=users, clusters=2, dimension=5, items=10, seed=seed)


class Shorter(TopK):
    pass


def open_nothing(url):
    raise ValueError(f"no database at {url}")
"""
ENTRY_POINTS = """
[fedcascade.policies]
punctual = my_parts:punctual
[fedcascade.environments]
myworld = my_parts:MyWorld
crooked = my_parts:Crooked
loose = my_parts:Loose
[fedcascade.oracles]
shorter = my_parts:Shorter
missing = my_parts:nothing_of_that_name
[fedcascade.stores]
nothing = my_parts:open_nothing
"""
PLAN = """
name = "mine"
rounds = 200
checkpoints = 2
seeds = 1
[[environments]]
name = "mine"
kind = "myworld"
grid = { tastes = [1, 2] }
[[policies]]
name = ["punctual", "fedind"]
constants = { every = 7 }
"""
SHORT = ["--rounds", "200", "--policy", "fedind"]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a package on the path as an installer would."""
    site = tmp_path / "site"
    info = site / "my_parts-2.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 2.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (site / "my_parts.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    load_policies.cache_clear()
    yield
    load_policies.cache_clear()
    sys.modules.pop("my_parts", None)


def list_rows(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    """Run ``fedcascade doctor`` and return its rows of plug-ins, by kind and name."""
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--json", *options])
    assert stopped.value.code == 1  # one of them is broken
    printed = capsys.readouterr()
    assert printed.err == ""
    return {row["what"]: row for row in json.loads(printed.out) if row["what"].partition(" ")[0] in GROUPS}


def find_refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    return printed.err


def test_plug_ins_are_listed_with_their_package_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list_rows(capsys)
    assert rows.keys() >= {
        "policy punctual",
        "environment myworld",
        "environment crooked",
        "environment loose",
        "oracle shorter",
        "oracle missing",
        "store nothing",
    }
    assert {name for name, row in rows.items() if row["state"] == "broken"} == {"oracle missing"}
    assert "AttributeError" in rows["oracle missing"]["words"]
    assert "\n" not in rows["oracle missing"]["words"]
    assert rows["environment myworld"]["words"] == "my_parts:MyWorld of my-parts 2.1: loads"


def test_check_holds_plug_ins_to_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list_rows(capsys, "--check")
    assert {name for name, row in rows.items() if row["words"].endswith("passes its contract")} == {
        "policy punctual",
        "environment myworld",
        "oracle shorter",
    }
    assert "draw(1) must be in [0, 1), got 2.0" in rows["environment crooked"]["words"]
    assert "its arguments must be keyword-only, seed, users is not" in rows["environment loose"]["words"]
    assert "StoreContract" in rows["store nothing"]["words"]


def test_plug_ins_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor"])
    shown = capsys.readouterr().out
    for words in ("my-parts", "myworld", "shorter", "punctual", "nothing"):
        assert words in shown


@pytest.mark.filterwarnings("default")
def test_an_environment_and_an_oracle_are_run_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", *SHORT, "--environment", "myworld", "--set-env", "users=8", "--oracle", "shorter"]
    main([*arguments, "--list-length", "2", "--json"])
    printed = capsys.readouterr()
    run = json.loads(printed.out)
    assert (run["engine"], run["clusters"]) == ("reference", 8)
    assert 200 <= run["observations"] <= 400
    [line] = printed.err.splitlines()  # what the compiled engine does not know, in one line
    assert line.startswith("fedcascade: the exact engine does not support")


@pytest.mark.filterwarnings("default")
def test_set_reaches_a_constant_of_a_plug_ins_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert "every must be a number, got 'often'" in find_refusal(
        capsys, "run", "--policy", "punctual", "--set", "every=often"
    )
    assert "did you mean 'every'" in find_refusal(capsys, "run", "--policy", "punctual", "--set", "evry=2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--environment", "mywold"], "unknown environment plug-in 'mywold': did you mean 'myworld'"),
        (["--environment", "myworld", "--set-env", "taste=2"], "'taste': did you mean 'tastes'"),
        (
            ["--environment", "myworld", "--users", "5"],
            "myworld takes its arguments by --set-env, not --users",
        ),
        (["--environment", "myworld", "--set-env", "tastes=9"], "clusters must be <= users (6), got 9"),
        (["--environment", "loose"], "its arguments must be keyword-only"),
        (["--oracle", "shortr"], "unknown oracle 'shortr': did you mean 'shorter'"),
        (["--oracle", "missing"], "oracle plug-in 'missing' (my_parts:nothing_of_that_name) of my-parts 2.1 cannot be"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in find_refusal(capsys, "run", *SHORT, *arguments)


def test_a_plan_names_an_environment_of_a_plug_in() -> None:
    plan = read_plan(PLAN)
    assert [environment.spec for environment in plan.environments] == [
        EnvironmentSpec("myworld", {"tastes": tastes}, package="my-parts 2.1") for tastes in (1, 2)
    ]
    assert [policy.constants.get("every") for policy in plan.policies] == [7, None]
    environment = plan.environments[1].spec.build(3)
    assert (environment.users, len(set(environment.clusters))) == (6, 2)


@pytest.mark.filterwarnings("default")
def test_a_job_of_a_plug_ins_environment_runs() -> None:
    job = list_planned_jobs([read_plan(PLAN)])[-1].job
    record = run_job(job)
    assert record["engine"] == "reference"
    assert record["job"]["environment"]["options"] == {"tastes": 2}


@pytest.mark.filterwarnings("default")
def test_an_experiment_says_in_one_line_what_its_engine_does_not_know(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace('["punctual", "fedind"]', '"fedind"').replace("constants = { every = 7 }\n", ""))
    main(["experiment", str(plan), "--out", str(tmp_path / "results"), "--jobs", "1", "--json"])
    printed = capfd.readouterr()
    assert [json.loads(line)["engine"] for line in printed.out.splitlines()] == ["reference", "reference"]
    assert [line[:49] for line in printed.err.splitlines()] == ["fedcascade: the exact engine does not support the"]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("tastes", "taste", 9, "did you mean 'tastes'"),
        ("tastes", "seed", 9, "unknown key 'seed'"),
        ('"myworld"', '"myword"', 8, "synthetic, ratings, crooked, loose, myworld"),
        ('"myworld"', '"loose"', 8, "keyword-only"),
        ("every = 7", 'every = "x"', 12, "every must be a number, got x"),
    ],
)
def test_what_is_wrong_in_a_plan_is_refused_with_its_line(old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(ValueError, match=f"^plan line {line}: .*{words}"):
        read_plan(PLAN.replace(old, new))


@pytest.mark.filterwarnings("default")
def test_a_plug_in_that_ends_the_program_is_named_and_the_others_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "my_parts.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    main(["policies", "--json"])
    printed = capsys.readouterr()
    names = {row["name"] for row in json.loads(printed.out)}
    assert "fedind" in names
    assert "punctual" not in names
    assert "policy plug-in 'punctual' (my_parts:punctual) of my-parts 2.1 cannot be used: SystemExit: 3" in printed.err
    assert {row["state"] for row in list_rows(capsys).values()} == {"broken"}


def test_an_environment_that_breaks_when_it_is_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = MODULE.replace(
        "super().__init__(users=users, clusters=tastes",
        "{}['no such key']\n        super().__init__(users=users, clusters=tastes",
    )
    (tmp_path / "site" / "my_parts.py").write_text(broken, encoding="utf-8")
    refusal = find_refusal(capsys, "run", *SHORT, "--environment", "myworld")
    assert "environment plug-in 'myworld' (my_parts:MyWorld) of my-parts 2.1 cannot be used: KeyError" in refusal
