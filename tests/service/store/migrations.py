"""How stores migrate, with a next migration that is made up."""

from collections.abc import Callable, Sequence

import pytest

from fedcascade.service.store.contract import Store, add_agent
from fedcascade.service.store.sql import MIGRATIONS
from fedcascade.testing.stores import are_same_entries, make_entry

NEXT = (*MIGRATIONS, "CREATE TABLE note (text TEXT); ALTER TABLE upload ADD COLUMN size {integer} NOT NULL DEFAULT 0")


def check_migrations(open_with: Callable[[Sequence[str]], Store]) -> None:
    """A newer version keeps what an older one wrote, once; the older one then refuses the database in one line."""
    store = open_with(MIGRATIONS)
    with store.transaction():
        agent = add_agent(store, b"k" * 32, 1.0)
        store.append(*make_entry(1, agent, 1))
    store.close()
    for position in (2, 3):
        store = open_with(NEXT)
        with store.transaction():
            store.append(*make_entry(position, agent, position))
        expected = [make_entry(number, agent, number) for number in range(1, position + 1)]
        assert are_same_entries(list(store.read_entries(after=0)), expected)
        store.close()
    with pytest.raises(ValueError, match=f"^the store is at migration {len(NEXT)}, .*: use a newer fedcascade$"):
        open_with(MIGRATIONS)
