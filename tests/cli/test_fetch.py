"""Fetching data on the command line."""

import hashlib
import json
from pathlib import Path

import pytest

from fedcascade.cli import main

from ..data.test_fetch import RATINGS, Publisher, archive
from ..data.test_fetch import publisher as publisher


def test_the_command_says_the_licence_and_where_the_files_are(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main(["data", "fetch", "movielens-small", "--source", publisher.address])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "no commercial use without permission" in printed.out
    assert str(tmp_path / "fedcascade" / "movielens-small" / "ratings.csv") in printed.out
    assert hashlib.sha256(publisher.files["/ml-latest-small.zip"]).hexdigest() in printed.out
    main(["data", "fetch", "movielens-small", "--source", publisher.address, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["cached"] is True
    assert Path(facts["ratings"]).read_text() == RATINGS


def test_the_command_refuses_in_one_line(
    publisher: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.offer(archive(), md5="0" * 32)
    for arguments in (["movielens-small"], ["movielens-huge"]):
        with pytest.raises(SystemExit) as stopped:
            main(["data", "fetch", *arguments, "--source", publisher.address, "--folder", str(tmp_path)])
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
