"""A backup is a whole store in one file; a restore begins a new epoch and loses nothing that the file had."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from fedcascade.cli import main
from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.operations import forget, set_operator
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.backup import restore_backup, write_backup
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.epoch import load_epoch
from fedcascade.service.store.sql_store import SqlStore
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import make_unit_upload, record_upload

from ..helpers import build_unit_upload, serve_in_process

POLICY = POLICIES["fedc3ucb-h"]


def fill(store: SqlStore) -> ServerState:
    """Some uploads, an agent that was forgotten, and an operator."""
    state = ServerState(POLICY, 3)
    with store.transaction():
        state.epoch = load_epoch(store)
        agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(4)]
        for number in range(600):
            record_upload(store, state, make_unit_upload(agents[number % 4], 1 + number // 4, number % 3), number)
        store.record_batch(0, 5_000, state.clusters, [])
        set_operator("a token of an operator")(store, state)
        forget(agents[2])(store, state)
    return state


def check_copy(source: SqlStore, target: SqlStore, file: Path) -> None:
    """Copy one store into another by a file, and compare all that a server reads from them."""
    state, head = replay_log(source, POLICY, 3), source.verify()
    assert write_backup(source, file, 1) == head[0]
    epoch = restore_backup(file, target, 2)
    assert target.verify() == head
    assert replay_log(target, POLICY, 3).dump() == state.dump()
    assert load_epoch(target).name == epoch != load_epoch(source).name
    assert load_epoch(target).secret == load_epoch(source).secret
    assert set(target.sum_by_agent(10**6)) == set(source.sum_by_agent(10**6))
    actions = [record.action for record in target.read_audit()]
    assert (actions[-1], actions[:-1]) == ("restored", [record.action for record in source.read_audit()][:-1])


def test_a_backup_is_the_whole_store(tmp_path: Path) -> None:
    with (
        closing(open_sqlite(str(tmp_path / "store.db"))) as source,
        closing(open_sqlite(str(tmp_path / "copy.db"))) as target,
    ):
        fill(source)
        check_copy(source, target, tmp_path / "backup")
        assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
        with pytest.raises(ValueError, match="is in use: restore into one that is empty"):
            restore_backup(tmp_path / "backup", target, 3)
        with pytest.raises(ValueError, match="exists already: name a new file"):
            write_backup(source, tmp_path / "backup", 3)


@pytest.mark.parametrize("place", [0, 30, 200, -40, -3])
@pytest.mark.parametrize("cut", [True, False])
def test_a_backup_that_was_cut_or_changed_restores_nothing(place: int, cut: bool, tmp_path: Path) -> None:
    with closing(open_sqlite(str(tmp_path / "store.db"))) as source:
        fill(source)
        write_backup(source, tmp_path / "backup", 1)
    content = (tmp_path / "backup").read_bytes()
    place %= len(content)
    changed = b"" if cut else bytes([content[place] ^ 1]) + content[place + 1 :]
    (tmp_path / "backup").write_bytes(content[:place] + changed)
    with closing(open_sqlite(str(tmp_path / "copy.db"))) as target:
        with pytest.raises(ValueError, match=r"is damaged: use another backup|is not a backup of this version"):
            restore_backup(tmp_path / "backup", target, 2)
        assert target.is_unused()


def test_the_commands_verify_audit_back_up_and_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup is taken while a server runs."""
    monkeypatch.chdir(tmp_path)
    with serve_in_process(tmp_path / "store.db") as running:
        agents = [running.enrol() for _ in range(2)]
        for agent in agents:
            agent.exchange(build_unit_upload(1, 0, 3))
        main(["verify", "sqlite:///store.db", "--json"])
        head = json.loads(capsys.readouterr().out)["head"]
        running.operator.revoke(agents[0].agent)
        main(["backup", "sqlite:///store.db", "monday"])
        agents[1].leave()
    main(["verify", "sqlite:///store.db", "--noted", head])
    main(["restore", "monday", "sqlite:///again.db"])
    main(["verify", "sqlite:///again.db", "--noted", head])
    assert "restored as epoch 2-" in capsys.readouterr().out
    main(["audit", "sqlite:///store.db", "--json"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(record["actor"], record["action"], record["agent"]) for record in records]
    first, second = (agent.agent for agent in agents)
    assert told == [
        ("command line", "set the operator's token", None),
        ("operator", "created enrolment tokens", None),
        (f"agent {first}", "enrolled", first),
        ("operator", "created enrolment tokens", None),
        (f"agent {second}", "enrolled", second),
        ("operator", "revoked", first),
        ("command line", "backed up", None),
        (f"agent {second}", "forgot", second),
    ]
    for arguments, line in (
        (["verify", "sqlite:///missing.db"], "there is no store at 'sqlite:///missing.db'"),
        (["verify", "sqlite:///again.db", "--noted", "2:" + "00" * 32], "is not the one that was noted"),
        (["restore", "missing", "sqlite:///new.db"], "there is no backup 'missing'"),
        (["restore", "monday", "sqlite:///again.db"], "the store is in use"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
    assert not (tmp_path / "missing.db").exists()
