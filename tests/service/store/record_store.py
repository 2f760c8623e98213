"""Records a store of this version, as the statements that make it: later versions must be able to migrate it.

    python -m tests.service.store.record_store tests/service/store/recorded/store-1.sql

A file that is there stays as it is: what an older version has written does not change.
"""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.operations import SECONDS_PER_DAY, forget, retain, set_operator
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.epoch import load_epoch
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import make_unit_upload, record_upload

POLICY = POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.05)
DAYS = 12


def fill_store(path: Path) -> None:
    """Let four agents upload once a day; one is forgotten, old uploads are folded, and a snapshot is in the middle."""
    with closing(open_sqlite(str(path))) as store:
        state = ServerState(POLICY, 3)
        with store.transaction():
            state.epoch = load_epoch(store)
            set_operator("a token of an operator")(store, state)
            agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(4)]
        for day in range(1, DAYS + 1):
            clock = SECONDS_PER_DAY * day
            with store.transaction():
                start = state.position
                for number, agent in enumerate(agents):
                    record_upload(store, state, make_unit_upload(agent, day, number % 3), 100 * day + number)
                if day == 5:
                    forget(agents.pop())(store, state)
                JournalWriter().write(store, state, start)
                store.run("UPDATE journal SET at = ? WHERE position > ?", 1000 * clock, start)
                if day == 8:
                    retain(4.0, clock)(store, state)
                if day == 10:
                    save_snapshot(store, state)
        store.run_maintenance(purge=True)


def main() -> None:
    """Write the file that is named."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, target.open("x", encoding="utf-8") as file:
        fill_store(Path(folder) / "store.db")
        with closing(sqlite3.connect(Path(folder) / "store.db")) as connection:
            file.writelines(f"{line}\n" for line in connection.iterdump())


if __name__ == "__main__":
    main()
