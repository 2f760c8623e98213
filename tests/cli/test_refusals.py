"""Wrong input on the command line, command by command: one line on stderr, exit code 2, no traceback."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedcascade.cli import main
from fedcascade.service.agent.database import AgentFile

PLAN = """\
name = "p"
rounds = 100
checkpoints = 2
seeds = 1
[[environments]]
name = "J=2"
kind = "synthetic"
users = 4
clusters = 2
dimension = 4
items = 6
[[policies]]
name = "fedind"
"""
REFUSALS = [
    ("run fedind", "'fedind' belongs to no option: write a value after its option, as in --policy fedind"),
    ("serve --port 80000", "port must be in 0..65535, got 80000"),
    ("serve --port -1", "port must be in 0..65535, got -1"),
    ("serve --host nowhere.invalid", "cannot listen on nowhere.invalid"),
    ("serve --tls-cert missing.pem --tls-key good.token", "--tls-cert: there is no file 'missing.pem'"),
    ("serve --tls-cert good.token --tls-key missing.pem", "--tls-key: there is no file 'missing.pem'"),
    ("serve --tls-cert good.token --tls-key good.token", "for TLS"),
    ("serve --store sqlite:///junk.db", "'junk.db': file is not a database"),
    ("serve --store sqlite:///empty.db", "'empty.db' is an empty file"),
    ("serve --store sqlite:///other.db", "'other.db' is the database of another program"),
    ("serve --store sqlite:///agent.db", "'agent.db' is the database of an agent"),
    ("serve --store sqlite:///folder", "cannot open the store 'folder'"),
    ("serve --store sqlite:///missing/x.db", "cannot open the store 'missing/x.db'"),
    ("serve --store postgresql://127.0.0.1:1/x", "cannot open the store"),
    ("serve --operator-token missing/token", "'missing' must be a folder that you can write to"),
    ("serve --operator-token junk.db/token", "cannot write the operator's token to 'junk.db/token'"),
    ("serve --operator-token folder", "cannot read the operator's token from 'folder'"),
    ("serve --operator-token empty.token", "'empty.token' must hold the operator's token"),
    ("serve --operator-token short.token", "one line of at least 16 letters"),
    ("serve --operator-token bytes.token", "'bytes.token' must hold the operator's token"),
    ("serve --rate nan", "rate must be a finite number > 0"),
    ("serve --rate 0", "rate must be a finite number > 0"),
    ("serve --burst 0.5", "burst must be >= 1"),
    ("serve --longest-list 0", "longest_list must be"),
    ("serve --rounds-per-hour nan", "rounds_per_hour must be"),
    ("serve --retain nan", "retain must be more than 0 days"),
    ("serve --trusted-proxy abc", "must be an IP address"),
    ("serve extra", "extra"),
    ("enroll --count 0", "count must be in 1..10000, got 0"),
    ("enroll --count 10001", "count must be in 1..10000"),
    ("enroll --valid-days 99999999999999999999", "valid days must be in 1..366"),
    ("enroll --url http://127.0.0.1:1", "cannot reach the server at http://127.0.0.1:1: "),
    ("enroll --url http://nowhere.invalid", "cannot reach the server at http://nowhere.invalid: "),
    ("enroll --url http://[::1", "a server's address looks like"),
    ("enroll --url http://127.0.0.1:99999", "a server's address looks like"),
    ("enroll --operator-token empty.token", "'empty.token' must hold the operator's token"),
    ("enroll --operator-token bytes.token", "'bytes.token' must hold the operator's token"),
    ("revoke abc", "expected a whole number, got 'abc'"),
    ("revoke 1 --url http://127.0.0.1:1", "cannot reach the server at http://127.0.0.1:1: "),
    ("agents --limit 0", "limit must be a whole number >= 1, got 0"),
    ("agents --after -1", "after must be the number of an agent, got -1"),
    ("agents --state bogus", "Choose from"),
    ("agents --url http://127.0.0.1:1", "cannot reach the server at http://127.0.0.1:1: "),
    ("rotate-token --operator-token missing.token", "cannot read the operator's token from 'missing.token'"),
    ("rotate-token --url http://127.0.0.1:1", "cannot reach the server at http://127.0.0.1:1: "),
    ("serve --log-level loud", "Choose from"),
    ("serve --log-format xml", "Choose from"),
    ("serve --store mysql://me:secret@host/x", "got 'mysql://me:...@host/x'"),
    ("evaluate junk.db", "junk.db must end in one of"),
    ("swarm --rounds 0", "rounds must be a whole number >= 1, got 0"),
    ("swarm --users 0", "users must be a whole number >= 1, got 0"),
    ("swarm --folder junk.db", "cannot use 'junk.db': File exists"),
    ("swarm --url http://127.0.0.1:1", "cannot reach the server at http://127.0.0.1:1: "),
    ("live --clusters 9", "clusters must be at most 6, the attributes of films, got 9"),
    ("live --users 3 --clusters 5", "clusters must be <= users (3), got 5"),
    ("live --pace nan", "pace must be"),
    ("live --port 80000 --no-browser", "port must be in 0..65535, got 80000"),
    ("live --store sqlite:///agent.db", "'agent.db' is the database of an agent"),
    ("verify sqlite:///agent.db", "'agent.db' is the database of an agent"),
    ("verify sqlite:///other.db", "'other.db' is the database of another program"),
    ("audit sqlite:///other.db", "'other.db' is the database of another program"),
    ("backup sqlite:///agent.db copy", "'agent.db' is the database of an agent"),
    ("restore junk.db sqlite:///new.db", "'junk.db' is not a backup"),
    ("restore junk.db sqlite:///agent.db", "'agent.db' is the database of an agent"),
    ("run --gap 5", "gap must be > 0 and at most 1, that of orthonormal directions, got 5"),
    ("run --gap 1.5 --features gaussian", "at most 1.414, that of orthonormal directions, got 1.5"),
    ("run --scale 0", "scale must be in (0, 1], got 0.0"),
    ("run --scale 2", "scale must be in (0, 1], got 2.0"),
    ("run --drift 5", "drift gives 10 clusters 20 tastes, and this dimension has at most 19"),
    ("run --drift 5 --gap 0.5", "20 tastes, and this dimension has at most 18: use at most 9 clusters"),
    ("run --change share=0.5", "change needs at, got 'share=0.5'"),
    ("run --change at=50,two=new", "unknown key of change 'two': did you mean 'to'?"),
    ("run --poisoning 0.2", "poisoning must be like share=0.2, got '0.2'"),
    ("run --poisoning share=0.2,attack=white", "unknown attack 'white'"),
    ("run --drift 5 --joins share=0.2,until=9", "drift cannot be combined with change, poisoning, joins or leaves"),
    ("run --drift 0", "drift must be a whole number >= 1, got 0"),
    ("run --rounds 0", "rounds must be a whole number >= 1, got 0"),
    ("run --policy fedind,xx", "unknown policy 'xx'"),
    ("run --items 5-2", "items must be a whole number or a range like 150-250, got '5-2'"),
    ("run --seed 99999999999999999999", "seed must be in 0..2^64 - 1"),
    ("run --ratings missing.csv", "there is no file missing.csv"),
    ("theory --users 3 --clusters 5", "clusters must be <= users (3), got 5"),
    ("theory --items 5-2", "items must be a whole number or a range like 150-250, got '5-2'"),
    ("theory --p-scale -1", "p_scale must be a finite number > 0, got -1"),
    ("theory --p-scale 0", "p_scale must be a finite number > 0, got 0"),
    ("experiment missing.toml", "plan 'missing.toml' not found"),
    ("experiment broken.toml", "broken.toml: not valid TOML: Invalid value (at line 1"),
    ("experiment upwards.toml", "upwards.toml line 1: name must be usable as a folder name"),
    ("experiment crowded.toml --out out", "plan 'p', environment 'J=2': clusters must be <= users (4), got 20"),
    (
        "experiment long.toml --out out",
        "long.toml line 1: list_length must be <= items (6)",
    ),
    ("experiment plan.toml --jobs 0", "jobs must be a whole number >= 1, got 0"),
    ("experiment plan.toml --out junk.db", "'junk.db' cannot hold results"),
    ("reproduce --quick --out junk.db", "'junk.db' cannot hold results"),
    ("reproduce --quick --jobs 0", "jobs must be a whole number >= 1, got 0"),
    ("report missing", "'missing' is not a results folder"),
    ("report results", "'results/manifest.json' cannot be read"),
    ("report begun", "'begun' has no finished run yet"),
    ("data describe junk.db", "junk.db must end in one of"),
    ("data fetch movielens-small --source nonsense", "source must be an http or https address"),
    ("policies --bogus", "--bogus"),
    ("bogus", "Unknown command"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that no command can use."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "folder").mkdir()
    (folder / "junk.db").write_bytes(b"junk" * 400)
    (folder / "empty.db").touch()
    with closing(sqlite3.connect(folder / "other.db")) as connection:
        connection.execute("CREATE TABLE customer (name TEXT)")
    AgentFile(str(folder / "agent.db")).close()
    (folder / "operator.token").write_text("x" * 43, encoding="ascii")
    (folder / "operator.token").chmod(0o600)
    (folder / "good.token").write_text("x" * 43, encoding="ascii")
    (folder / "empty.token").touch()
    (folder / "short.token").write_text("abc\n", encoding="ascii")
    (folder / "bytes.token").write_bytes(b"\xff\xfe" * 20)
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    (folder / "broken.toml").write_text("name = \n", encoding="utf-8")
    (folder / "upwards.toml").write_text(PLAN.replace('"p"', '"../p"'), encoding="utf-8")
    (folder / "crowded.toml").write_text(PLAN.replace("clusters = 2", "clusters = 20"), encoding="utf-8")
    (folder / "long.toml").write_text(f"list_length = 10\n{PLAN}", encoding="utf-8")
    (folder / "results").mkdir()
    for name in ("manifest.json", "runs.parquet", "curves.parquet"):
        (folder / "results" / name).write_bytes(b"junk")
    (folder / "begun").mkdir()
    (folder / "begun" / "unfinished.json").write_text(json.dumps([]), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("line", "says"), REFUSALS, ids=[line for line, _ in REFUSALS])
def test_wrong_input_is_one_line_and_exit_code_2(
    line: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    arguments = line.split()
    if arguments[0] in ("serve", "live") and "--port" not in arguments:
        arguments += ["--port", "0"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert says in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
