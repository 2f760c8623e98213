"""The command line: JSON alone on stdout, one line on stderr for bad input, the same run every time."""

import io
import json
import re
import subprocess
import sys
from dataclasses import fields
from inspect import unwrap
from typing import Any

import numba
import pytest
from rich.console import Console

from fedcascade.cli import main
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.progress import COMPILING
from fedcascade.cli.terminal import make_constants_table
from fedcascade.federation.policies import POLICIES
from fedcascade.simulation.exact import arrays, windows

SMALL = {"--users": "6", "--clusters": "2", "--dimension": "5", "--items": "10", "--rounds": "300"}
KEYS = {
    "policy",
    "engine",
    "seed",
    "rounds",
    "regret",
    "reward",
    "observations",
    "communications",
    "bytes",
    "clicked",
    "clusters",
    "clustering_error",
    "seconds",
    "curve",
}


def small(*more: str, **changes: str) -> list[str]:
    """Arguments of a small run of the paper's system, with other values for some options."""
    named = () if "--policy" in more else ("--policy", "fedc3ucb-h")
    options = SMALL | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return ["run", *(word for pair in options.items() for word in pair), *named, *more]


def results(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> list[dict[str, Any]]:
    main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    return [json.loads(line) for line in printed.out.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("\n")
    (line,) = [line for line in printed.err.splitlines() if line != COMPILING]  # on a fresh machine
    return line


def without_seconds(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name != "seconds"}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedcascade", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_json_is_all_there_is_on_stdout_and_stderr_is_empty() -> None:
    done = command(*small("--json"))
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout)["policy"] == "fedc3ucb-h"


def test_a_table_is_on_stdout_and_what_is_going_on_on_stderr() -> None:
    done = command(*small("--policy", "fedind", "--policy", "fedlinucb"))
    assert done.returncode == 0
    assert set(done.stderr.splitlines()) - {COMPILING} == {"fedcascade run: getting ready"}
    assert "fedind" in done.stdout
    assert "fedlinucb" in done.stdout


def test_bad_input_is_exit_code_2_and_one_line_on_stderr() -> None:
    done = command(*small("--json", "--lambda", "0"))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "lambda" in done.stderr


def test_a_reader_that_stops_reading_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fedcascade", "policies", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        complaint = process.stderr.read().decode()
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["run", "policies", "reproduce", "experiment", "report", "--version"]),
        (["run", "--help"], ["--policy", "--rounds", "--lambda", "--alpha-c", "--clusters", "--json"]),
        (["policies", "--help"], ["--json"]),
        (["theory", "--help"], ["--users", "--gamma", "--lambda-x", "--sigma", "--json"]),
    ],
)
def test_help_names_what_there_is(arguments: list[str], words: list[str]) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in words if word not in done.stdout] == []


def test_the_keys_of_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = results(capsys, small("--policy", "force-comm", seed="7"))
    assert set(run) == KEYS
    assert set(run["communications"]) == {"total", "determinant", "auxiliary", "forced"}
    assert set(run["bytes"]) == {"up", "down"}
    assert len(run["curve"]) == 10
    for point in run["curve"]:
        assert set(point) == {"round", "regret", "reward", "communications", "clustering_error"}
    assert (run["policy"], run["seed"], run["rounds"]) == ("force-comm", 7, 300)
    assert run["engine"] in {"reference", "exact"}


def test_the_parts_of_a_result_agree(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = results(capsys, small("--policy", "fedc3ucb-h"))
    spoken = run["communications"]
    assert spoken["total"] == spoken["determinant"] + spoken["auxiliary"] + spoken["forced"] > 0
    message = 8 * (5 * 6 // 2 + 5 + 5)
    assert run["bytes"] == {"up": message * spoken["total"], "down": message * spoken["total"]}
    last = run["curve"][-1]
    assert last == {
        "round": 300,
        "regret": run["regret"],
        "reward": run["reward"],
        "communications": spoken["total"],
        "clustering_error": run["clustering_error"],
    }
    assert [point["round"] for point in run["curve"]] == list(range(30, 301, 30))
    assert 0 < run["reward"] <= 300 <= run["observations"] <= 1200
    assert 1 <= run["clusters"] <= 6
    assert run["seconds"] > 0


def test_two_runs_are_equal_but_for_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    one, same, other = (results(capsys, small(seed=seed))[0] for seed in ("3", "3", "4"))
    assert without_seconds(one) == without_seconds(same)
    assert one["regret"] != other["regret"]


def test_adding_a_policy_does_not_change_the_results_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["fedind", "fedc3ucb-h", "known-clusters"]
    together = results(capsys, small(*(word for name in chosen for word in ("--policy", name))))
    assert [run["policy"] for run in together] == chosen
    for name, run in zip(chosen, together, strict=True):
        (alone,) = results(capsys, small("--policy", name))
        assert without_seconds(alone) == without_seconds(run)


@pytest.mark.parametrize(
    "option",
    [
        ("--lambda", "1"),
        ("--alpha-c", "0.2"),
        ("--beta", "0.5"),
        ("--p-scale", "0"),
        ("--order", "aggregate-first"),
        ("--features", "gaussian"),
        ("--features", "logistic"),
        ("--scale", "0.2"),
        ("--directions", "random"),
        ("--arrivals", "zipf"),
        ("--arrivals", "9,1,1,1,1,1"),
        ("--list-length", "2"),
    ],
)
def test_every_option_changes_the_run(capsys: pytest.CaptureFixture[str], option: tuple[str, str]) -> None:
    (plain,) = results(capsys, small(rounds="1000"))
    (changed,) = results(capsys, small(*option, rounds="1000"))
    assert without_seconds(plain) != without_seconds(changed)


def test_a_small_alpha_d_deletes_edges(capsys: pytest.CaptureFixture[str]) -> None:
    (plain,), (split,) = results(capsys, small()), results(capsys, small("--alpha-d", "0.01"))
    assert (plain["clusters"], split["clusters"]) == (1, 6)


def test_noise_and_delta_change_theorys_beta(capsys: pytest.CaptureFixture[str]) -> None:
    # A tiny R makes beta about sqrt(lambda); a large one makes every score 1 and every list a random one.
    (timid,), (bold,) = (
        results(capsys, small("--beta", "theory", "--noise", noise, "--policy", "fedind")) for noise in ("1e-9", "2")
    )
    assert timid["regret"] < bold["regret"]


def test_set_reaches_every_constant_as_a_flag_does(capsys: pytest.CaptureFixture[str]) -> None:
    flags = results(capsys, small("--alpha-c", "0.2", "--lambda", "2", "--beta", "1", "--order", "aggregate-first"))
    assignments = ("alpha_c=0.2", "lambda=2", "beta=1", "order=aggregate-first")
    sets = results(capsys, small(*(word for text in assignments for word in ("--set", text))))
    assert without_seconds(flags[0]) == without_seconds(sets[0])


def test_set_is_for_all_policies_that_have_the_constant_or_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    def find_regrets(*options: str) -> list[float]:
        both = small("--policy", "fedlinucb", "--policy", "fedind", *options)
        return [run["regret"] for run in results(capsys, both)]

    plain = find_regrets()
    shared = find_regrets("--set", "beta=1")
    assert shared[0] != plain[0]
    assert shared[1] != plain[1]
    assert find_regrets("--set", "fedind.beta=1") == [plain[0], shared[1]]
    assert find_regrets("--set", "fedind.beta=1", "--set", "beta=7") == [find_regrets("--beta", "7")[0], shared[1]]
    assert find_regrets("--set", "alpha_c=0.2")[1] == plain[1]  # fedind has none
    assert find_regrets("--set", "beta=theory") == find_regrets("--beta", "theory")


def test_help_describes_constants_by_their_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    descriptions = {entry.name: entry for policy in POLICIES.values() for entry in policy.describe_constants()}
    for flag in fields(ConstantOptions):
        if flag.name != "set_":
            assert descriptions[flag.name].meaning[1:] in shown
            bounds = descriptions[flag.name].range
            assert bounds is not None
            assert bounds.words in shown


def test_whole_numbers_may_be_written_with_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    (plain,), (written,) = results(capsys, small()), results(capsys, small(rounds="3e2", items="1e1", dimension="5"))
    assert without_seconds(plain) == without_seconds(written)


def test_policies_may_be_given_in_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    runs = results(capsys, small("--policy", "fedind,fedlinucb", "--policy", "fedc3ucb-h"))
    assert [run["policy"] for run in runs] == ["fedind", "fedlinucb", "fedc3ucb-h"]


def test_item_ranges_and_cluster_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = results(capsys, small("--policy", "known-clusters", items="2-6", clusters="3,2,1"))
    assert run["clusters"] == 3
    assert run["observations"] < 1200


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (small("--policy", "fedc3ucbh"), "policy 'fedc3ucbh': did you mean 'fedc3ucb-h'"),
        (small("--policy", "fedind", "--policy", "nobody"), "policy 'nobody'"),
        (small("--list-length", "11"), "list length must be <= items (10), got 11"),
        (small("--list-length", "0"), "list length"),
        (small(clusters="7"), "clusters must be <= users (6), got 7"),
        (small(clusters="5"), "clusters must be <= 4 with orthonormal directions"),
        (small(clusters="0"), "clusters"),
        (small(clusters="two"), "clusters"),
        (small(clusters="3,2"), "cluster sizes"),
        (small("--lambda", "0"), "lambda"),
        (small("--lambda", "-1"), "lambda"),
        (small("--lambda", "nan"), "lambda"),
        (small("--alpha-c", "0"), "alpha_c must be a finite number > 0, got 0.0"),
        (small("--alpha-c", "much"), "alpha_c must be a finite number > 0, got 'much'"),
        (small("--set", "alpha_c=0"), "alpha_c must be a finite number > 0, got 0.0"),
        (small("--set", "alpha_x=1"), "unknown constant 'alpha_x': did you mean 'alpha_"),
        (small("--set", "sweeps=1"), "unknown constant 'sweeps'"),
        (small("--set", "alpha_c"), "set must be like name=value, got 'alpha_c'"),
        (small("--set", "fedind.beta=1"), "unknown policy of this command 'fedind'"),
        (small("--set", "fedc3ucb-h.bta=1"), "unknown constant 'bta': did you mean 'beta'"),
        (small("--environment", "nowhere"), "unknown environment plug-in 'nowhere'"),
        (small("--oracle", "nobody"), "unknown oracle 'nobody'"),
        (small("--set-env", "users=1"), "--set-env belongs to an --environment of a plug-in"),
        (small("--alpha-d", "-2"), "alpha_d"),
        (small("--beta", "-1"), "beta"),
        (small("--beta", "theorem"), "beta must be a finite number >= 0, got 'theorem'"),
        (small("--p-scale", "-1"), "p_scale"),
        (small("--noise", "1"), "noise is no constant of fedc3ucb-h: it belongs to async-linucb"),
        (small("--policy", "fedind", "--budget", "5"), "budget is no constant of fedind: it belongs to dislinucb"),
        (small("--policy", "fedind,fedlinucb", "--alpha-d", "5"), "alpha_d is no constant of fedind, fedlinucb"),
        (small("--policy", "fedind,nobody"), "unknown policy 'nobody'"),
        (small(rounds="1e-3"), "rounds"),
        (small(rounds="1.5e0"), "rounds"),
        (small(rounds="1e99"), "rounds"),
        (small(rounds="inf"), "rounds"),
        (small("--beta", "theory", "--delta", "1"), "delta"),
        (small("--order", "sideways"), "order must be one of upload-first, aggregate-first, got 'sideways'"),
        (small("--bogus", "1"), "--bogus"),
        (small(rounds="many"), "--rounds"),
        (small(rounds="-5"), "rounds"),
        (small(rounds="0"), "rounds"),
        (small(rounds="300.7"), "rounds"),
        (small("--checkpoints", "0"), "checkpoints"),
        (small(users="0"), "users"),
        (small(dimension="1"), "dimension"),
        (small(items="0"), "items"),
        (small(items="9-4"), "items"),
        (small(items="4-9-12"), "items"),
        (small(items="-4"), "items"),
        (small("--gap", "0"), "gap"),
        (small("--drift", "0"), "drift"),
        (small("--seed", "-1"), "seed"),
        (small("--seed", "18446744073709551616"), "seed"),
        (small("--seed", "1.5"), "seed"),
        (small("--arrivals", "1,2"), "arrivals"),
        (small("--arrivals", "often"), "arrivals"),
        (small("--features", "round"), "--features"),
        (small("surplus"), "surplus"),
        (["walk"], "walk"),
        (["policies", "--bogus"], "--bogus"),
        (small("--policy", "async-linucb", "--gamma-u", "0"), "gamma_u"),
        (small("--policy", "dislinucb", "--budget", "-1"), "budget"),
        (small("--policy", "phase-fclub", "--local-servers", "0"), "local_servers"),
        (small("--policy", "async-linucb", "--beta", "1", "--noise", "1"), "noise"),
        (["theory", "--rounds", "1600"], "rounds must be > users^2"),
        (["theory", "--gamma", "0"], "gamma"),
        (small("--engine", "reference", "--oracle", "budget"), "needs costs"),
        (small("--oracle", "budget", "--set-oracle", "limit=1"), "unknown argument of oracle budget 'limit'"),
        (small("--oracle", "budgt"), "unknown oracle 'budgt': did you mean 'budget'"),
        (small("--ratings", "x", "--costs"), "--costs: only for a synthetic environment"),
        (["theory", "--users", "3", "--clusters", "5"], "clusters must be <= users (3), got 5"),
        (["theory", "--features", "gaussian"], "not --features"),
        (["theory", "--dimension", "1"], "dimension"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_that_names_the_parameter(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert named in refusal(capsys, arguments)


def test_the_number_of_local_servers_changes_who_can_be_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def run_with(servers: str) -> dict[str, Any]:
        options = ("--policy", "phase-fclub", "--local-servers", servers, "--beta", "1", "--alpha-d", "0.5")
        (result,) = results(capsys, small(*options, rounds="3000"))
        return result

    one, each_its_own = run_with("1"), run_with("6")
    assert one["communications"] != each_its_own["communications"]


def test_a_living_population_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--change", "at=5e1,to=existing", "--poisoning", "share=0.25", "--joins", "share=0.25,until=60")
    living, usual = results(capsys, small(*options))[0], results(capsys, small())[0]
    kinds = [user["kind"] for user in living["users"]]
    assert kinds.count("poisoning") >= 1
    assert "users" not in usual
    assert living["regret"] != usual["regret"]


def test_close_and_drifting_clusters_are_other_environments(capsys: pytest.CaptureFixture[str]) -> None:
    usual, close, drifting = (
        results(capsys, small(*options))[0] for options in ((), ("--gap", "0.3"), ("--drift", "50"))
    )
    assert len({usual["regret"], close["regret"], drifting["regret"]}) == 3


def test_bad_input_of_a_later_policy_prints_no_earlier_result(capsys: pytest.CaptureFixture[str]) -> None:
    # fedind has no alpha_d, the second policy refuses it: before anything has run.
    arguments = small("--json", "--policy", "fedind", "--policy", "fedc3ucb-h", "--alpha-d", "0")
    assert "alpha_d" in refusal(capsys, arguments)


def test_policies_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["policies", "--json"])
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert printed.err == ""
    assert isinstance(rows, list)
    assert set(POLICIES) <= {row["name"] for row in rows}
    for row in rows:
        assert isinstance(row["constants"], dict)
        assert row["constants"].keys() == row["descriptions"].keys()
        for description in row["descriptions"].values():
            assert description.keys() == {"meaning", "symbol", "range"}
            assert description["meaning"]
            assert description["range"]


def test_policies_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["policies"])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [name for name in POLICIES if name not in printed.out] == []
    assert "Determinant or Auxiliary" in printed.out


def test_the_table_of_constants_has_every_word_in_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    table = make_constants_table(list(POLICIES.values()))
    console.print(table)
    shown = console.export_text()
    start = shown.splitlines()[1].index("meaning")
    words = " ".join(line[start : shown.splitlines()[1].index("values")].strip() for line in shown.splitlines()[3:])
    for policy in POLICIES.values():
        for entry in policy.describe_constants():
            assert re.search(rf"^{entry.name.rstrip('_')} ", shown, re.MULTILINE)
            assert " ".join(entry.meaning.split()) in " ".join(words.split())
    assert "…" not in shown


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("async-linucb", ("--gamma-u", "1.1")),
        ("async-linucb", ("--gamma-d", "inf")),
        ("async-linucb", ("--noise", "0.5")),
        ("async-linucb-am", ("--beta", "0.5")),
        ("dislinucb", ("--budget", "0")),
        ("club-cascade", ("--alpha-d", "0.01")),
        ("phase-fclub", ("--alpha-2", "0.01")),
    ],
)
def test_constants_of_the_other_systems(capsys: pytest.CaptureFixture[str], name: str, option: tuple[str, str]) -> None:
    (plain,) = results(capsys, small("--policy", name))
    (changed,) = results(capsys, small("--policy", name, *option))
    assert without_seconds(plain) != without_seconds(changed)


def test_causes_beyond_the_papers_are_there_where_they_occur(capsys: pytest.CaptureFixture[str]) -> None:
    pushed, synchronised, silent = results(
        capsys, small("--policy", "async-linucb", "--policy", "dislinucb", "--policy", "oful")
    )
    paper = {"total", "determinant", "auxiliary", "forced"}
    assert set(pushed["communications"]) == paper | {"push"}
    assert set(synchronised["communications"]) == paper | {"synchronisation"}
    assert set(silent["communications"]) == paper
    for run in (pushed, synchronised, silent):
        counts = run["communications"]
        assert counts.pop("total") == sum(counts.values())
    assert silent["bytes"] == {"up": 0, "down": 0}
    message = 8 * (5 * 6 // 2 + 5 + 5)
    assert pushed["bytes"]["up"] == message * pushed["communications"]["determinant"]
    assert pushed["bytes"]["down"] == message * pushed["communications"]["push"]


def test_oracles_with_limits_are_run_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    (plain,) = results(capsys, small("--engine", "reference"))
    words = ["--categories", "2", "--oracle", "per-category", "--set-oracle", "limit=1"]
    (mixed,) = results(capsys, small("--engine", "reference", *words))
    words = ["--costs", "--oracle", "budget", "--set-oracle", "budget=0.5"]
    (cheap,) = results(capsys, small("--engine", "reference", *words))
    assert mixed["observations"] < plain["observations"]  # at most two items in a list
    assert cheap["regret"] < 0  # half of the best is less than what greedy exchanges earn


def test_theory_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["theory", "--users", "40", "--sigma", "0.5", "--json"])
    printed_json = json.loads(capsys.readouterr().out)
    assert printed_json["assumptions"]["p_min"] == pytest.approx(1 / 40)
    for bounds in (printed_json["paper"], printed_json["derived"]):
        assert bounds["delta"] == 0.0016
        assert bounds["T_0"] is None  # infinite
        assert bounds["exchanges"] == pytest.approx(bounds["exchanges_determinant"] + bounds["exchanges_other"])
    assert printed_json["lower"]["exchanges"] == 40
    main(["theory", "--users", "40"])
    printed = capsys.readouterr().out
    assert "T_0" in printed
    assert "it is vacuous" in " ".join(printed.split())


def test_the_first_line_comes_before_anything_slow_is_loaded() -> None:
    """Before, `run` said nothing until everything was imported and compiled, where stderr was no terminal."""
    program = (
        "import sys; from fedcascade.cli import commands; sys.argv = ['fedcascade', 'run', '--rounds', '0']\n"
        "say = commands._announce_start\n"
        "commands._announce_start = lambda words: (say(words), print(sorted({'numba', 'numpy'} & set(sys.modules))))\n"
        "commands.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr.splitlines()[0]) == ("[]\n", "fedcascade run: getting ready")


def test_a_run_says_that_it_compiles_and_only_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function of the loop around rounds is new to this process; all others are compiled."""
    main(small())
    capsys.readouterr()
    main(small())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(windows, "sort_rounds", numba.njit(unwrap(arrays.sort_rounds)))
    main(small())
    assert capsys.readouterr().err == f"{COMPILING}\n"
    monkeypatch.setattr(windows, "sort_rounds", numba.njit(unwrap(arrays.sort_rounds)))
    main(small("--json"))
    assert capsys.readouterr().err == ""


def test_everything_can_be_compiled_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    main(["warm", "--policy", "fedind"])
    lines = capsys.readouterr().err.splitlines()
    steps = ["rounds of simulations", "servers in simulations", "agents", "servers"]
    assert [line.partition(":")[0] for line in lines] == steps
    main(small("--policy", "fedind"))
    assert capsys.readouterr().err == ""


def test_make_live_installs_no_tools_for_tests() -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "--always-make", "live"], capture_output=True, text=True, check=True
    )
    assert "locks/server.txt" in commands.stdout
    assert "locks/dev.txt" not in commands.stdout
