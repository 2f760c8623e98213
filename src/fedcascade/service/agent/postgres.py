"""Agents in PostgreSQL 14 or later, for any number of processes and machines.

Sessions hold no prepared statements or locks beyond a transaction, so a pooler such as PgBouncer may use another
connection for each transaction. Several pools share a database if each has a schema: ``?options=-csearch_path%3Dhome``.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import LifoQueue
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fedcascade.checks import require
from fedcascade.service.agent.database import CLOSED, SCHEMA, AgentDatabase, StoreAway
from fedcascade.service.agent.sealed_rows import AgentRows, Run

LOCK = 0x6665_6470  # an arbitrary number that identifies the advisory lock of new tables
CONNECTIONS = 8  # of a process
# To detect dead connections; the URL of the store may override them.
CONNECTION: dict[str, Any] = {
    "connect_timeout": 5,
    "target_session_attrs": "read-write",  # of several hosts, the primary
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds that sent data may stay unacknowledged
}
BEGIN = (
    "BEGIN; SET LOCAL statement_timeout = 10000; SET LOCAL lock_timeout = 10000; "
    "SET LOCAL idle_in_transaction_session_timeout = 10000"
)


class AgentPostgres(AgentDatabase):
    """A PostgreSQL database of agents. Each thread takes a connection for a transaction, of a few that stay open."""

    lock_row = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    transaction_number = "pg_current_xact_id()::text::bigint"
    now = "extract(epoch FROM clock_timestamp())::float8"

    def __init__(self, url: str) -> None:
        try:
            self._address = make_conninfo("", **(CONNECTION | conninfo_to_dict(url)))
        except psycopg.Error as error:
            raise ValueError(f"a PostgreSQL store looks like postgresql://user@host/database: {error}") from None
        parts = conninfo_to_dict(self._address)
        super().__init__(f"postgresql://{parts.get('host', '')}/{parts.get('dbname', '')}")
        self._free: LifoQueue[psycopg.Connection[Any] | None] = LifoQueue()  # None stands for one that is not open
        for _ in range(CONNECTIONS):
            self._free.put(None)
        try:
            with self.transaction() as run:
                self._create_tables(run)
        except StoreAway as error:
            raise ValueError(str(error)) from None

    def _create_tables(self, run: Run) -> None:
        run(f"SELECT pg_advisory_xact_lock({LOCK})")
        if not run("SELECT to_regclass('pool_agent')")[0][0]:
            key = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
            for statement in SCHEMA.format(key=key, bytes="BYTEA", real="DOUBLE PRECISION").split(";"):
                run(statement)

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        self.require_same_process()
        connection = self._free.get()
        try:
            require(not self.is_closed, CLOSED)
            if connection is None:
                connection = psycopg.Connection.connect(self._address, autocommit=True, prepare_threshold=None)
            connection.execute(BEGIN)

            def run(statement: str, *values: Any) -> AgentRows:
                cursor = connection.execute(statement.replace("?", "%s"), values or None, binary=bool(values))
                return cursor.fetchall() if cursor.description else []

            yield run
            connection.execute("COMMIT")
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            reason = " ".join(str(error).split())
            raise StoreAway(f"cannot use the store {self.title} ({reason}): retry later") from None
        except BaseException:
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
            raise
        finally:
            self._free.put(None if connection is None or connection.closed else connection)

    def is_committed(self, run: Run, transaction: int) -> bool:
        """Return whether a transaction was committed whose outcome did not arrive."""
        return bool(run("SELECT pg_xact_status(?::bigint::text::xid8) = 'committed'", transaction)[0][0])

    def close(self) -> None:
        self.is_closed = True
        for connection in [self._free.get() for _ in range(CONNECTIONS)]:  # waits for transactions under way
            if connection is not None:
                connection.close()
            self._free.put(None)
