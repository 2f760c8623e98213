"""Plans: every combination is there, and whatever is wrong is refused with its line before anything runs."""

from itertools import product
from pathlib import Path

import pytest

from fedcascade.environments.behaviours import Behaviour
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.options import SyntheticOptions
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan import Plan, select_policies
from fedcascade.experiments.plan_reader import (
    load_builtin_plan,
    load_plan,
    read_plan,
    set_ratings_file,
)
from fedcascade.experiments.toml_lines import find_line
from fedcascade.federation.policies import POLICIES

from .conftest import resize_plan

GOOD = """\
name = "good"
rounds = 1_000
checkpoints = 10
seeds = [3, 5]

[[environments]]
name = "even"
kind = "synthetic"
users = 6
grid = { clusters = [2, 3] }

[[environments]]
name = "rated"
kind = "ratings"
file = "ratings.csv"

[[policies]]
name = ["fedc3ucb-h", "fedind"]
constants = { lambda = 2.0 }
grid = { beta = [1.0, 5.0], alpha_d = [1.5] }

[[policies]]
name = "fedlinucb"
label = "FedLinUCB"
"""


def test_a_plan_names_its_oracle() -> None:
    attributes = "users = 6\ncategories = 3\ncosts = true\n"
    small = GOOD.replace('file = "ratings.csv"\n', "").replace("users = 6\n", attributes).replace("1_000", "20")
    plan = read_plan('oracle = "budget"\nset_oracle = { budget = 0.75 }\n' + small)
    job = list_planned_jobs([plan])[0].job
    assert (job.oracle, job.set_oracle) == ("budget", {"budget": 0.75})
    assert run_job(job)["regret"] < 10
    other = list_planned_jobs([read_plan('oracle = "per-category"\n' + small)])[0].job
    assert other.key != job.key
    for text, words in (
        ('oracle = "bugdet"\n', "line 1: unknown oracle 'bugdet': did you mean 'budget'"),
        ('oracle = "budget"\nset_oracle = { limit = 2 }\n', "line 2: unknown argument of oracle budget 'limit'"),
        ('oracle = "budget"\nset_oracle = { budget = 0.0 }\n', "line 2: budget must be"),
    ):
        with pytest.raises(ValueError, match=words):
            read_plan(text + small)


def test_every_combination_is_one_run() -> None:
    plan = read_plan(GOOD.replace('file = "ratings.csv"\n', ""))
    jobs = list_planned_jobs([plan])
    environments = ["even clusters=2", "even clusters=3", "rated"]
    policies = [
        "fedc3ucb-h beta=1.0 alpha_d=1.5",
        "fedc3ucb-h beta=5.0 alpha_d=1.5",
        "fedind beta=1.0",
        "fedind beta=5.0",
        "FedLinUCB",
    ]
    combinations = [(planned.environment, planned.job.seed, planned.label) for planned in jobs]
    assert combinations == list(product(environments, [3, 5], policies))
    assert len({planned.job.key for planned in jobs}) == len(jobs)


def test_a_planned_policy_carries_all_constants() -> None:
    first, *_, last = read_plan(GOOD).policies
    assert first.constants == {
        "lambda": 2.0,
        "order": "upload-first",
        "drift": "ignore",
        "alpha_d": 1.5,
        "alpha_c": 1.0,
        "p_scale": 3.0,
        "beta": 1.0,
    }
    assert last.constants["lambda"] == POLICIES["fedlinucb"].lambda_


def test_files_are_looked_up_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(GOOD)
    spec = load_plan(tmp_path / "plan.toml").environments[-1].spec
    assert spec.file == str(tmp_path / "ratings.csv")


def test_a_file_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(GOOD)
    with pytest.raises(ValueError, match=r"ratings\.csv' not found"):
        list_planned_jobs([load_plan(tmp_path / "plan.toml")])


def test_equal_runs_of_two_plans_have_one_key_whatever_they_are_called() -> None:
    plan = read_plan(GOOD.replace('file = "ratings.csv"\n', ""))
    renamed = read_plan(GOOD.replace('file = "ratings.csv"\n', "").replace('"even"', '"odd"'))
    longer = resize_plan(plan, rounds=2_000)
    keys, same, other = ([planned.job.key for planned in list_planned_jobs([each])] for each in (plan, renamed, longer))
    assert keys == same
    assert not set(keys) & set(other)


def test_the_key_depends_on_the_file_behind_an_environment(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(GOOD)
    keys = []
    for content in ("one", "two"):
        folder = tmp_path / content
        folder.mkdir()
        (folder / "ratings.csv").write_text(content)
        (folder / "plan.toml").write_text(GOOD)
        keys.append(list_planned_jobs([load_plan(folder / "plan.toml")])[-1].job)
    assert keys[0].data != keys[1].data


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("rounds", "round", 2, ["'round'", "did you mean 'rounds'", "expected one of"]),
        ("1_000", '"many"', 2, ["rounds", "int", "str"]),
        ("1_000", "0", 2, ["rounds", ">= 1"]),
        ("checkpoints = 10", "checkpoints = 1001", 3, ["checkpoints must be <= rounds"]),
        ("[3, 5]", "[3, 3]", 4, ["seeds"]),
        ("[3, 5]", "[3, -1]", 4, ["seeds"]),
        ("[3, 5]", "2.5", 4, ["seeds"]),
        ('kind = "synthetic"', 'kind = "real"', 8, ["kind", "synthetic, ratings"]),
        ("users = 6", "user = 6", 9, ["did you mean 'users'"]),
        ("users = 6", "preset = 'paper'", 9, ["'preset'"]),
        ("users = 6", "users = 'six'", 9, ["users"]),
        ("clusters = [2, 3]", "cluster = [2, 3]", 10, ["did you mean 'clusters'"]),
        ("clusters = [2, 3]", "clusters = []", 10, ["grid.clusters"]),
        ('kind = "ratings"', 'kind = "ratings"\npreset = "papers"', 15, ["preset"]),
        ("fedind", "fedin", 18, ["policy 'fedin'", "did you mean 'fedind'"]),
        ("lambda = 2.0", "lamda = 2.0", 19, ["did you mean 'lambda'"]),
        ("lambda = 2.0", "lambda = 0", 19, ["lambda must be"]),
        ("alpha_d = [1.5]", "alpha_d = [-1.5]", 20, ["alpha_d"]),
        ('label = "FedLinUCB"', "colour = 'red'", 24, ["'colour'", "expected one of"]),
        (
            'name = "fedlinucb"\nlabel = "FedLinUCB"',
            'name = "fedind"\ngrid = { beta = [1.0] }',
            17,
            ["distinct", "fedind"],
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(old: str, new: str, line: int, words: list[str]) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(ValueError, match=f"^plan line {line}: ") as refused:
        read_plan(GOOD.replace(old, new, 1))
    assert [word for word in words if word not in str(refused.value)] == []
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", ["environments", "policies"])
def test_a_plan_without_environments_or_policies_is_refused(missing: str) -> None:
    head, *tables = GOOD.split("[[")
    text = "[[".join([head, *(table for table in tables if not table.startswith(missing))])
    with pytest.raises(ValueError, match=rf"\[\[{missing}\]\]"):
        read_plan(text)


def test_broken_toml_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"not valid TOML.*line 2"):
        read_plan('name = "x"\nrounds = = 3')


def test_a_plan_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not found"):
        load_plan(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes('name = "é"'.encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8"):
        load_plan(tmp_path / "latin.toml")
    with pytest.raises(ValueError, match="cannot be read"):
        load_plan(tmp_path)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("name",), 1),
        (("environments", 0), 6),
        (("environments", 1, "kind"), 14),
        (("environments", 0, "grid", "clusters"), 10),
        (("policies", 0, "grid", "alpha_d"), 20),
        (("policies", 1, "label"), 24),
        (("environments", 7), 6),
    ],
)
def test_lines_of_keys(path: tuple[str | int, ...], line: int) -> None:
    assert find_line(GOOD, path) == line


def test_lines_of_keys_in_headers_of_their_own() -> None:
    text = "[[a]]\n[a.b]\nc = 1\n[[a]]\n[a.b]\n\nc = 2\n'd e' = 3"
    assert find_line(text, ("a", 1, "b", "c")) == 7
    assert find_line(text, ("a", 1, "b", "d e")) == 8


def test_changed_plans_keep_checkpoints_within_rounds() -> None:
    plan = resize_plan(read_plan(GOOD), rounds=4, seeds=range(3))
    assert isinstance(plan, Plan)
    assert (plan.rounds, plan.checkpoints, plan.seeds) == (4, 4, (0, 1, 2))
    assert plan.environments[0].spec.declared == SyntheticOptions(users=6, clusters=2)


def restrict_last_policy(*patterns: str) -> str:
    """Return the good plan, whose last policy plays in some environments only."""
    listed = ", ".join(f'"{pattern}"' for pattern in patterns)
    return GOOD.replace('file = "ratings.csv"\n', "") + f"on = [{listed}]\n"


@pytest.mark.parametrize(
    ("patterns", "environments"),
    [
        (["even*"], {"even clusters=2", "even clusters=3"}),
        (["*=3", "rated"], {"even clusters=3", "rated"}),
        (["*"], {"even clusters=2", "even clusters=3", "rated"}),
    ],
)
def test_a_policy_plays_where_its_patterns_say(patterns: list[str], environments: set[str]) -> None:
    plan = read_plan(restrict_last_policy(*patterns))
    planned_jobs = list_planned_jobs([plan])
    assert {planned.environment for planned in planned_jobs if planned.label == "FedLinUCB"} == environments
    assert {planned.environment for planned in planned_jobs if planned.job.policy == "fedind"} == {
        environment.name for environment in plan.environments
    }


def test_a_pattern_may_be_a_name_with_brackets() -> None:
    text = restrict_last_policy("even clusters=[4, 2]").replace("clusters = [2, 3]", "clusters = [[4, 2], [3, 3]]")
    assert {
        planned.environment for planned in list_planned_jobs([read_plan(text)]) if planned.label == "FedLinUCB"
    } == {"even clusters=[4, 2]"}


def test_a_label_may_stand_in_two_environments_for_different_constants() -> None:
    text = restrict_last_policy("rated") + '[[policies]]\nname = "fedlinucb"\nlabel = "FedLinUCB"\non = ["even*"]\n'
    plan = read_plan(text)
    assert [policy.label for policy in select_policies(plan.policies, "rated")][-1] == "FedLinUCB"
    with pytest.raises(ValueError, match="distinct names, got FedLinUCB twice"):
        read_plan(text.replace('on = ["even*"]', 'on = ["even*", "rat*"]'))


@pytest.mark.parametrize(
    ("patterns", "words"),
    [(["evn*"], "on: 'evn\\*' is none of the environments: even clusters=2; "), ([], "length >= 1"), (["Even*"], "on")],
)
def test_a_pattern_that_fits_nothing_is_refused_with_its_line(patterns: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^plan line 24: .*{words}"):
        read_plan(restrict_last_policy(*patterns))


def test_an_environment_without_a_policy_is_refused_with_its_line() -> None:
    text = restrict_last_policy("even*").replace("grid = { beta", 'on = ["even*"]\ngrid = { beta')
    with pytest.raises(ValueError, match=r"^plan line 12: no policy plays in environment 'rated'"):
        read_plan(text)


def test_a_constant_that_follows_from_the_problem_stays_with_the_policy() -> None:
    text = restrict_last_policy("*").replace('"fedlinucb"\nlabel = "FedLinUCB"', '"dislinucb"')
    planned = list_planned_jobs([read_plan(text)])[-1]
    assert "budget" not in planned.job.constants
    assert len(planned.job.key) == 20


def test_a_ratings_file_is_for_environments_that_name_none(tmp_path: Path) -> None:
    named = read_plan(GOOD, folder=tmp_path)
    assert set_ratings_file(named, tmp_path / "other.csv") == named
    plan = set_ratings_file(load_builtin_plan("living"), tmp_path / "other.csv")
    assert [environment.spec.file for environment in plan.environments if environment.spec.kind == "ratings"] == [
        str(tmp_path / "other.csv")
    ]


def test_a_plan_says_how_users_click() -> None:
    plan = read_plan(GOOD.replace('kind = "synthetic"', 'kind = "synthetic"\nclicks = "pbm"\nclick_level = 0.3', 1))
    world = plan.environments[0].spec.build(1)
    assert isinstance(world, Clustered)
    assert world.behaviour == Behaviour(model="pbm", level=0.3)
    with pytest.raises(ValueError, match="click_level needs a click model"):
        read_plan(GOOD.replace('kind = "synthetic"', 'kind = "synthetic"\nclick_level = 0.3', 1))


def test_rounds_for_each_user_make_longer_runs_of_more_users() -> None:
    head = 'name = "n"\nrounds = 7\nper_user = true\ncheckpoints = 2\nseeds = 1\n'
    world = '[[environments]]\nname = "w"\nkind = "synthetic"\nclusters = 2\ngrid = { users = [4, 9] }\n'
    plan = read_plan(f'{head}{world}[[policies]]\nname = "fedind"\n')
    assert plan.per_user
    assert [planned.job.rounds for planned in list_planned_jobs([plan])] == [28, 63]
    assert plan.describe_rounds() == "7 rounds for each user"
    million = load_builtin_plan("million")
    assert max(planned.job.rounds for planned in list_planned_jobs([million])) == 100_000_000


def test_an_environment_may_replace_rounds_checkpoints_list_length_and_seeds_of_its_plan() -> None:
    head = 'name = "n"\nrounds = 7\ncheckpoints = 7\nseeds = 2\n'
    common = '[[environments]]\nname = "common"\nkind = "synthetic"\nclusters = 2\n'
    own = common.replace("common", "own") + "rounds = 6\ncheckpoints = 3\nlist_length = 5\nseeds = [300]\n"
    text = f'{head}{common}{own}[[policies]]\nname = "fedind"\n'
    jobs = [planned.job for planned in list_planned_jobs([read_plan(text)])]
    settings = [(job.rounds, job.checkpoints, job.list_length, job.seed) for job in jobs]
    assert settings == [(7, 7, 4, 0), (7, 7, 4, 1), (6, 3, 5, 300)]
    resized = list_planned_jobs([resize_plan(read_plan(text), rounds=4, seeds=[9])])
    assert {(planned.job.rounds, planned.job.checkpoints, planned.job.seed) for planned in resized} == {(4, 4, 9)}
    with pytest.raises(ValueError, match=r"line 10: checkpoints must be <= rounds \(6\)"):
        read_plan(text.replace("checkpoints = 3", "checkpoints = 8"))
    with pytest.raises(ValueError, match="line 16: seeds must be a count or distinct numbers"):
        read_plan(text.replace("[300]", "[300, 300]"))
