"""Tables in a terminal of 80 columns: no line is longer, and no name is cut."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedcascade.cli import main, terminal
from fedcascade.cli.agents import show_agents
from fedcascade.experiments.reports.summary import PolicySummary
from fedcascade.federation.policies import POLICIES
from fedcascade.intervals import Interval, estimate_mean, format_mean
from fedcascade.service.protocol.wire import AgentList, AgentRow

COMMANDS = (
    "run",
    "serve",
    "swarm",
    "theory",
    "experiment",
    "reproduce",
    "data",
    "live",
    "policies",
    "report",
    "verify",
)
SMALL = ("--users", "6", "--clusters", "2", "--dimension", "5", "--items", "10", "--rounds", "300")
PLAN = """
name = "small"
rounds = 60
checkpoints = 2
seeds = 2
[[environments]]
name = "one of 20 and 20 of 1, with users who differ"
kind = "synthetic"
users = 6
clusters = 3
dimension = 6
items = 10
[[environments]]
name = "another"
kind = "synthetic"
users = 6
clusters = 2
dimension = 6
items = 10
[[policies]]
name = ["known-clusters", "fedc3ucb-h"]
grid = { beta = [1.0], alpha_c = [2.0, 10.0] }
"""


@pytest.fixture
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def print_at_80(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints, each line of which fits."""
    main(list(arguments))
    return assert_fits(capsys.readouterr().out)


def assert_fits(shown: str) -> str:
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert "…" not in shown
    return shown


def assert_whole(names: Iterable[str], shown: str) -> None:
    """Every name stands in one piece on some line."""
    words = {word.strip(",;:()[]") for word in re.split(r"[\s│]+", shown)}
    assert [name for name in names if name not in words] == []


@pytest.mark.usefixtures("_eighty_columns")
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = print_at_80(capsys, *([name] if name else []), "--help")
    assert_whole([] if name else COMMANDS, shown)


@pytest.mark.usefixtures("_eighty_columns")
def test_policies_fit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = print_at_80(capsys, "policies")
    constants = {name.rstrip("_") for policy in POLICIES.values() for name in policy.constants()}
    assert_whole(constants | POLICIES.keys() | {"HeterogeneityGraph", "DownloadAndBuffer"}, shown)


@pytest.mark.usefixtures("_eighty_columns")
def test_theory_fits(capsys: pytest.CaptureFixture[str]) -> None:
    for sizes in ([], ["--rounds", "1000000000000000000", "--gamma", "1e-6"]):
        shown = print_at_80(capsys, "theory", *sizes)
        assert_whole(["paper", "derived", "T_0", "exchanges"], shown)


@pytest.mark.usefixtures("_eighty_columns")
def test_the_plain_run_compares_the_papers_system_alone_ours_and_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    shown = print_at_80(capsys, "run", *SMALL)
    assert re.findall(r"^(\S+) +([\d.]+) +[\d,.]+ +\d+ +\d+ +\d+ +\d+% *$", shown, re.MULTILINE) == [
        ("fedc3ucb-h", "10.5"), ("fedind", "0.7"), ("population", "1.5"), ("known-clusters", "0.7")]  # fmt: skip
    words = " ".join(shown.split())
    assert "One run says little about which policy is better: --seeds 5" in words
    assert "lambda 4.0 (fedc3ucb-h, fedind, known-clusters); 0.01 (population)" in words


@pytest.mark.usefixtures("_eighty_columns")
def test_several_seeds_give_intervals_and_paired_differences(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", *SMALL, "--policy", "fedind,known-clusters", "--seeds", "4", "--seed", "3", "--json"])
    regrets: dict[str, list[float]] = {"fedind": [], "known-clusters": []}
    for place, line in enumerate(capsys.readouterr().out.splitlines()):
        run = json.loads(line)
        assert run["seed"] == 3 + place // 2
        regrets[run["policy"]].append(run["regret"])
    shown = print_at_80(capsys, "run", *SMALL, "--policy", "fedind,known-clusters", "--seeds", "4", "--seed", "3")
    differences = [ours - alone for ours, alone in zip(regrets["known-clusters"], regrets["fedind"], strict=True)]
    for values in (*regrets.values(), differences):
        assert format_mean(estimate_mean(values)) in shown
    assert "minus" in shown
    assert "One run" not in shown


@pytest.mark.usefixtures("_eighty_columns")
def test_one_policy_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = print_at_80(capsys, "policies", "fedc3ucb-h")
    assert_whole(["alpha_d", "7.0", "10.5"], shown)
    assert "fedind" not in shown
    with pytest.raises(SystemExit):
        main(["policies", "fedin"])
    assert "did you mean 'fedind'" in capsys.readouterr().err


@pytest.mark.usefixtures("_eighty_columns")
def test_help_groups_commands_and_names_the_types_of_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    shown = print_at_80(capsys, "--help")
    groups = ("Simulate", "Data and logs", "Serve", "Operate a server", "Develop", "Options")
    assert re.findall(r"─ (.+?) ─", shown) == list(groups)
    constants = print_at_80(capsys, "run", "--help").partition("Constants")[2]
    assert set(re.findall(r"--[a-z0-9-]+ ([A-Z]+)\b", constants)) == {"FLOAT", "INT", "STR"}
    assert "--beta FLOAT" in constants


@pytest.mark.usefixtures("_eighty_columns")
def test_results_of_long_runs_fit(capsys: pytest.CaptureFixture[str]) -> None:
    summaries: list[dict[str, Any]] = [
        {"policy": name, "regret": 147_233.4, "reward": 1_000_000, "clicked": 1_000_000, "rounds": 1_000_000,
         "seconds": 1.0,
         "clusters": 1_000, "clustering_error": 1.0, "communications": {"total": 1_000_000}}
        for name in POLICIES
    ]  # fmt: skip
    terminal.show(terminal.make_results_table(summaries, ["10.5"] * len(summaries)))
    shown = assert_fits(capsys.readouterr().out)
    assert_whole([*POLICIES, "147,233", "1,000,000"], shown)


@pytest.mark.usefixtures("_eighty_columns")
def test_summaries_of_an_experiment_fit(capsys: pytest.CaptureFixture[str]) -> None:
    regret, exchanges, error = Interval(147_233.4, 1_233.0, 10), Interval(300_000.0, 14_000.0, 10), Interval(1, 0.5, 10)
    labels = [f"{name} beta=10.5 alpha_c=40.0" for name in POLICIES]
    rows = [PolicySummary("plan", world, label, regret, exchanges, error, exchanges)
            for world in ("lifted, one of 20, 20 of 1", "Gaussian, Zipf arrivals") for label in labels]  # fmt: skip
    terminal.show(*terminal.make_summary_tables(rows))
    assert_whole([*POLICIES, "147,233"], assert_fits(capsys.readouterr().out))


@pytest.mark.usefixtures("_eighty_columns")
def test_an_experiment_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(PLAN, encoding="utf-8")
    shown = print_at_80(capsys, "experiment", "plan.toml", "--jobs", "1")
    assert_whole(["known-clusters", "fedc3ucb-h", "alpha_c=10.0"], shown)


def test_tables_are_80_columns_wide_where_nobody_says_how_wide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_at_80(capsys, "policies")


@pytest.mark.usefixtures("_eighty_columns")
def test_agents_fit(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        AgentRow(
            agent=100_000 + each, enrolled=0, revoked=each == 2, last=each or None, rounds=1_000_000, cluster=99_999
        )
        for each in range(3)
    ]
    page = AgentList(
        protocol=1, enrolled=300_000, active=200_000, revoked=10_000, clusters=100_000, agents=rows, more=False
    )
    show_agents(page, rows)
    assert_whole(["100002", "1970-01-01", "1,000,000", "revoked"], assert_fits(capsys.readouterr().out))
