"""How stores migrate: from the first layout, and with a next migration that is made up."""

from collections.abc import Callable, Sequence

import pytest

from fedcascade.service.protocol.wire import pack_numbers
from fedcascade.service.store.contract import Store
from fedcascade.service.store.schema import MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore
from fedcascade.testing.stores import are_same_entries, make_entry

NEXT = (*MIGRATIONS, "CREATE TABLE note (text TEXT); ALTER TABLE upload ADD COLUMN size {integer} NOT NULL DEFAULT 0")


def check_migrations(open_with: Callable[[Sequence[str]], Store]) -> None:
    """A newer version keeps what an older one wrote, once; the older one then refuses the database in one line."""
    store = open_with(MIGRATIONS)
    with store.transaction():
        agent = store.add_agent(b"k" * 32, 1.0)
        store.append(make_entry(1, agent, 1))
    store.close()
    for position in (2, 3):
        store = open_with(NEXT)
        with store.transaction():
            store.append(make_entry(position, agent, position))
        expected = [make_entry(number, agent, number) for number in range(1, position + 1)]
        assert are_same_entries(list(store.read_entries(after=0)), expected)
        store.close()
    with pytest.raises(ValueError, match=f"^the store is at migration {len(NEXT)}, .*: use a newer fedcascade$"):
        open_with(MIGRATIONS)


def check_conversion(open_with: Callable[[Sequence[str]], SqlStore]) -> None:
    """A store of the first layout keeps its uploads, gets a chain, and goes on."""
    store = open_with(MIGRATIONS[:1])
    columns = "position, agent, sequence, cause, count, clicks, rounds, numbers, nonce"
    insert = f"INSERT INTO upload ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    with store.transaction():
        agent = store.add_agent(b"k" * 32, 1.0)
        for position in (1, 2, 4):  # another agent's upload was at 3, and was forgotten at 5
            upload = make_entry(position, agent, position).upload
            values = position, agent, position, upload.cause.value, 1, 1, 1, pack_numbers(upload.statistics)
            store.run(insert, *values, position.to_bytes(8))
        store.run("INSERT INTO forgotten (position) VALUES (?)", 5)
    store.close()
    store = open_with(MIGRATIONS)
    with store.transaction():
        store.append(make_entry(6, agent, 6))
    assert are_same_entries(list(store.read_entries(after=0)), [make_entry(n, agent, n) for n in (1, 2, 4, 6)])
    assert store.find_last_rewriting() == 5
    store.close()
