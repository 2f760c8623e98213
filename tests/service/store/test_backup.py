"""A backup is a whole store in one file; a restore begins a new epoch and loses nothing that the file had."""

from contextlib import closing
from pathlib import Path

import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.operations import forget, set_operator
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.backup import restore_backup, write_backup
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.epoch import load_epoch
from fedcascade.service.store.sql_store import SqlStore
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import make_unit_upload, record_upload

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
