"""``fedcascade run``: the log of a run, and a machine without a GPU."""

from pathlib import Path

import pytest
from numba import cuda

from fedcascade.cli import main
from fedcascade.data.logs import read_log


def test_a_log_of_one_policy_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    world = ["--users", "4", "--clusters", "2", "--dimension", "3", "--items", "5", "--rounds", "20"]
    main(
        [
            "run",
            *world,
            "--policy",
            "fedind",
            "--oracle",
            "epsilon",
            "--list-length",
            "2",
            "--engine",
            "reference",
            "--log",
            str(path),
        ]
    )
    assert len(read_log(path).read()) == 20
    with pytest.raises(SystemExit):
        main(["run", *world, "--policy", "fedind", "--policy", "oful", "--log", str(path)])
    assert "--log holds the lists of one policy" in capsys.readouterr().err
    for refused, words in (("log.xlsx", "must end in one of .parquet, .csv, .jsonl"), ("no/log.csv", "no folder")):
        with pytest.raises(SystemExit):  # before the first round
            main(["run", *world[:-1], "1e12", "--policy", "fedind", "--log", str(tmp_path / refused)])
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", *world, "--policy", "fedind", "--engine", "cuda", "--log", str(path)])
    assert "leave out --engine cuda" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "lost"), [([], "number of clicks"), (["--rewards", "beta"], "reward")])
def test_the_sentence_below_the_table_says_what_is_lost(
    options: list[str], lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = ["--users", "4", "--clusters", "2", "--dimension", "3", "--items", "5", "--rounds", "20"]
    main(["run", *world, "--policy", "fedind", "--engine", "reference", *options])
    assert f"Regret is the expected {lost} lost" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["run", "--rounds", "10"], ["reproduce", "--quick"]])
def test_without_a_gpu_one_line_says_what_to_install(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([*command, "--engine", "cuda"])
    assert end.value.code == 2
    assert "pip install 'fedcascade[gpu]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
