"""A store that is not what was written says so in one line: changed bits, damaged pages, cut and emptied files."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.operations import forget, set_operator
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import COPIED
from fedcascade.testing.stores import make_unit_upload, record_upload

from . import damages

PAGE = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a log, a journal, a snapshot in the middle, an audit log and somebody who was forgotten."""
    path = tmp_path_factory.mktemp("damage") / "store.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        state, journal = ServerState(POLICIES["fedc3ucb-h"], 12), JournalWriter()
        with store.transaction():
            agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(6)]
            for number in range(180):
                upload = make_unit_upload(agents[number % 6], 1 + number // 6, number % 12, dimension=12)
                record_upload(store, state, upload, number)
                if number == 90:
                    save_snapshot(store, state)
            journal.write(store, state, 0)
            set_operator("a token of an operator")(store, state)
        store.verify()
    return path


def copy(whole: Path, folder: Path) -> Path:
    return Path(shutil.copy(whole, folder / "store.db"))


def find_flaw(path: Path) -> str:
    """What ``fedcascade verify`` finds, in one line; nothing if all is well."""
    try:
        with closing(open_store(f"sqlite:///{path}")) as store:
            store.verify()
    except DamagedStore as error:
        return str(error)
    return ""


def find_owners(path: Path) -> dict[int, str]:
    """Which table or index each page belongs to: what is neither is free."""
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT pageno, name FROM dbstat"))


def test_a_name_of_a_table_that_is_no_text_is_damage(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    assert b"tableuploadupload" in content
    damaged = tmp_path / "store.db"
    damaged.write_bytes(content.replace(b"tableuploadupload", b"table\xf8ploadupload"))
    assert find_flaw(damaged).startswith("the store is damaged: ")


def test_no_random_damage_is_silent(tmp_path: Path) -> None:
    """``python tests/service/store/damages.py`` makes more of them."""
    found, flaws = damages.run(300, 7, tmp_path)
    print(dict(found))
    assert flaws == []
    assert found["named"] > 150


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE agent_copy SET enrolled = 2.0 WHERE id = (SELECT min(id) FROM agent)",
        "DELETE FROM setting_copy WHERE name = (SELECT min(name) FROM setting)",
        "INSERT INTO nonce_copy VALUES (1, 2, 3)",
        "UPDATE journal_copy SET clusters = clusters + 1 WHERE position = 9",
    ],
)
def test_rows_without_a_digest_are_compared_with_their_copies(whole: Path, tmp_path: Path, statement: str) -> None:
    path = copy(whole, tmp_path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(statement).rowcount == 1
        database.commit()
    table = re.search(r"(\w+)_copy", statement)[1]  # type: ignore[index]
    assert f"rows of the table '{table}' are not those that were written" in find_flaw(path)


def test_a_version_before_the_copies_keeps_them_up(whole: Path, tmp_path: Path) -> None:
    """Its statements run the triggers; a store that it has made gets its copies when it is opened."""
    path = copy(whole, tmp_path)
    with closing(sqlite3.connect(path)) as database:
        insert = "INSERT INTO setting (name, value) VALUES ('a', ?)"
        upsert = f"{insert} ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        for value in ("1", "2"):
            database.execute(upsert, [value])
        database.execute("UPDATE agent SET revoked = 5.0 WHERE id = (SELECT min(id) FROM agent)")
        database.execute("DELETE FROM move WHERE position < 50")
        database.execute("UPDATE journal SET exchanges = 2 WHERE position = 3")
        database.commit()
    assert find_flaw(path) == ""
    with closing(sqlite3.connect(path)) as database:
        for table in COPIED:
            database.execute(f"DROP TABLE {table}_copy")
            for event in ("INSERT", "UPDATE", "DELETE"):
                database.execute(f"DROP TRIGGER {table}_copy_{event}")
        database.commit()
    assert find_flaw(path) == ""
    with closing(sqlite3.connect(path)) as database:
        for table in COPIED:
            counts = (database.execute(f"SELECT count(*) FROM {name}") for name in (table, f"{table}_copy"))
            assert len({cursor.fetchone() for cursor in counts}) == 1


def test_a_damaged_page_is_noticed_wherever_it_is(whole: Path, tmp_path: Path) -> None:
    """One page after the other has some bytes overwritten. Rows that a dashboard adds may differ."""
    unchecked = {"refusal", "measure", "sqlite_sequence"}
    content, random = whole.read_bytes(), np.random.default_rng(4)
    owners = {page: name for page, name in find_owners(whole).items() if name not in unchecked}
    unnoticed = []
    for page, name in owners.items():
        used = np.flatnonzero(np.frombuffer(content[(page - 1) * PAGE : page * PAGE], np.uint8)[100:]) + 100
        if used.size < 200:  # an empty table: there is nothing to damage
            continue
        start = (page - 1) * PAGE + int(used[used.size // 2])
        damaged = tmp_path / "store.db"
        for leftover in tmp_path.glob("store.db*"):
            leftover.unlink()
        damaged.write_bytes(content[:start] + random.bytes(64) + content[start + 64 :])
        if not find_flaw(damaged).startswith("the store is damaged: "):
            unnoticed.append((page, name))
    assert len(owners) > 40
    assert unnoticed == []


@pytest.mark.parametrize(
    "column", ["numbers", "count", "rounds", "cause", "sequence", "agent", "nonce", "salt", "link"]
)
def test_a_changed_value_in_the_log_is_noticed_by_verify_and_at_replay(
    whole: Path, tmp_path: Path, column: str
) -> None:
    path = copy(whole, tmp_path)
    with closing(sqlite3.connect(path)) as database:
        [value] = database.execute(f"SELECT {column} FROM upload WHERE position = 120").fetchone()
        if isinstance(value, bytes):
            changed: object = value[:8] + bytes([value[8 % len(value)] ^ 1]) + value[9:] if len(value) > 8 else b"x" * 8
        else:
            changed = "determinant" if isinstance(value, str) else value + 1000
        database.execute(f"UPDATE upload SET {column} = ? WHERE position = 120", [changed])
        database.commit()
    assert "entry 120 of the log" in find_flaw(path)
    with closing(open_store(f"sqlite:///{path}")) as store, pytest.raises(DamagedStore, match="entry 120"):
        replay_log(store, POLICIES["fedc3ucb-h"], 12)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM upload WHERE position = 50",
        "DELETE FROM upload WHERE position > 170",
        "UPDATE chunk SET body = CAST(body || 'x' AS BLOB) WHERE digest = (SELECT min(digest) FROM chunk)",
        "DELETE FROM chunk WHERE digest = (SELECT max(digest) FROM chunk)",
        "UPDATE journal SET rounds = rounds + 1 WHERE position = 7",
        "UPDATE audit SET at = at + 1 WHERE number = 1",
        "UPDATE upload SET position = 1000 - position WHERE position IN (499, 500)",
        "INSERT INTO event (position, kind, body, link) VALUES (181, 'forgotten', x'', x'00')",
    ],
)
def test_history_cannot_be_rewritten_unseen(whole: Path, tmp_path: Path, statement: str) -> None:
    path = copy(whole, tmp_path)
    with closing(sqlite3.connect(path)) as database:
        changed = database.execute(statement).rowcount
        database.commit()
    assert bool(find_flaw(path)) == bool(changed)


def test_the_chain_closes_where_somebody_was_forgotten(whole: Path, tmp_path: Path) -> None:
    path = copy(whole, tmp_path)
    with closing(open_store(f"sqlite:///{path}")) as store:
        state = replay_log(store, POLICIES["fedc3ucb-h"], 12)
        agent = next(iter(state.places))
        with store.transaction():
            forget(agent)(store, state)
        assert store.verify()[0] == 181
        assert len(list(store.read_entries(after=0))) == 150
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE erased SET digest = zeroblob(32) WHERE position = (SELECT min(position) FROM erased)")
        database.commit()
    assert "of the log is not the one that was written" in find_flaw(path)


@pytest.mark.parametrize("kept", [0, 1, 50, 100, PAGE, 10 * PAGE, -PAGE, -1])
def test_a_cut_or_emptied_file_is_refused_in_one_line(whole: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(whole.read_bytes()[: kept or None] if kept else b"")
    with pytest.raises(DamagedStore, match="fedcascade restore") as refused:
        open_store(f"sqlite:///{path}")
    assert "\n" not in str(refused.value)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("name,value\n" * 100, encoding="utf-8")
    with pytest.raises(ValueError, match="file is not a database"):
        open_store(f"sqlite:///{path}")
