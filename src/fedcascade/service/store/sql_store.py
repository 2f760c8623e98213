"""A whole store in SQL: the log and the journal of neighbouring modules, and identities, snapshots and settings."""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

from fedcascade.checks import require
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.contract import AgentRecord, AgentState, Identity
from fedcascade.service.store.schema import TABLES
from fedcascade.service.store.snapshot import digest_chunk, split_digests
from fedcascade.service.store.sql import SqlDatabase
from fedcascade.service.store.sql_audit import SqlAuditLog
from fedcascade.service.store.sql_history import SqlHistory
from fedcascade.service.store.sql_log import FORGOTTEN

NUMBERS = range(10**11, 10**12)  # agents have numbers of 12 digits
CONDITIONS: dict[AgentState, str] = {
    "all": "1 = 1",
    "spoken": "upload.position IS NOT NULL",
    "silent": "upload.position IS NULL",
    "revoked": "revoked IS NOT NULL",
}
CHUNKS_READ = 256  # in one statement: some 4 MB
NONCE_SECONDS = 3_600  # far longer than a signature is fresh, by any clock that is


def draw_number() -> int:
    """Draw an agent's number at random, from so many that none is given twice, not even after a restore."""
    return NUMBERS[secrets.randbelow(len(NUMBERS))]


class SqlIdentities(SqlDatabase):
    """Agents with their public keys, and the hashes of enrolment tokens."""

    def add_tokens(self, hashes: Iterable[bytes], expires: float) -> None:
        for token_hash in hashes:
            self.run("INSERT INTO enrolment (token_hash, expires) VALUES (?, ?)", token_hash, expires)

    def use_token(self, token_hash: bytes, now: float) -> bool:
        """Mark a token as used, in the statement that checks it."""
        statement = "UPDATE enrolment SET used = ? WHERE token_hash = ? AND used IS NULL AND expires > ?"
        return bool(self.run(statement, now, token_hash, now).rowcount == 1)

    def has_token(self, token_hash: bytes) -> bool:
        return self.fetch_row("SELECT 1 FROM enrolment WHERE token_hash = ?", token_hash) is not None

    def add_agent(self, public_key: bytes, now: float, wanted: int | None = None) -> int:
        agent = wanted or draw_number()
        while self.find_identity(agent) is not None:
            agent = draw_number()
        statement = f"INSERT INTO agent (id, public_key, enrolled) {self.explicit_identity} VALUES (?, ?, ?)"
        self.run(statement, agent, public_key, now)
        self.drop_buffers()
        return agent

    def find_identity(self, agent: int) -> Identity | None:
        return self._find_identity("id", agent)

    def find_identity_by_key(self, public_key: bytes) -> Identity | None:
        return self._find_identity("public_key", public_key)

    def _find_identity(self, column: str, value: int | bytes) -> Identity | None:
        row = self.fetch_row(f"SELECT id, public_key, enrolled, revoked FROM agent WHERE {column} = ?", value)
        return None if row is None else Identity(int(row[0]), bytes(row[1]), float(row[2]), row[3] is not None)

    def revoke_agent(self, agent: int, now: float) -> bool:
        cursor = self.run("UPDATE agent SET revoked = coalesce(revoked, ?) WHERE id = ?", now, agent)
        self.drop_buffers()
        return bool(cursor.rowcount == 1)

    def use_nonce(self, agent: int, nonce: int, created: int) -> bool:
        self.run("DELETE FROM nonce WHERE created < ?", created - NONCE_SECONDS)
        statement = "INSERT INTO nonce (agent, nonce, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        return bool(self.run(statement, agent, nonce, created).rowcount == 1)

    def count_agents(self) -> int:
        return int(self.fetch_row("SELECT count(*) FROM agent")[0])

    def count_revoked(self) -> int:
        return int(self.fetch_row("SELECT count(revoked) FROM agent")[0])

    def list_agents(self, after: int, most: int, state: AgentState = "all") -> list[AgentRecord]:
        statement = (
            "SELECT id, enrolled, revoked, journal.at FROM agent "
            "LEFT JOIN upload ON upload.agent = id"
            " AND sequence = (SELECT max(sequence) FROM upload AS own WHERE own.agent = id) "
            "LEFT JOIN journal ON journal.position = upload.position "
            f"WHERE id > ? AND {CONDITIONS[state]} ORDER BY id LIMIT ?"
        )
        rows = self.fetch_rows(statement, after, most)
        return [AgentRecord(int(row[0]), float(row[1]), row[2] is not None, row[3]) for row in rows]


def check_chunks(position: int, digests: Sequence[bytes], rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """The chunks of some digests, in order; raise ``DamagedStore`` where one is missing or not what was written."""
    chunks = {bytes(digest): bytes(body) for digest, body in rows}
    for digest in digests:
        if digest not in chunks or digest_chunk(chunks[digest]) != digest:
            raise DamagedStore(f"the snapshot at position {position} is not the one that was written")
    return [chunks[digest] for digest in digests]


class SqlSnapshots(SqlDatabase):
    """Snapshots, each as the digests of its chunks; a chunk that several need is there once."""

    def save_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        for digest, body in chunks.items():
            self.run("INSERT INTO chunk (digest, body) VALUES (?, ?) ON CONFLICT DO NOTHING", digest, body)

    def save_snapshot(self, position: int, digests: Sequence[bytes]) -> bool:
        """Make chunks that are there a snapshot, in place of the one before, whose chunks need no look."""
        unsure = list(set(digests).difference(self.list_snapshot_chunks()))
        for start in range(0, len(unsure), CHUNKS_READ):
            wanted = unsure[start : start + CHUNKS_READ]
            marks = ", ".join("?" * len(wanted))
            if self.fetch_row(f"SELECT count(*) FROM chunk WHERE digest IN ({marks})", *wanted)[0] < len(wanted):
                return False
        self.run("DELETE FROM snapshot")
        self.run("INSERT INTO snapshot (position, digests) VALUES (?, ?)", position, b"".join(digests))
        return True

    def find_last_snapshot(self) -> int:
        return int(self.fetch_row("SELECT coalesce(max(position), 0) FROM snapshot")[0])

    def load_snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        row = self.fetch_row("SELECT position, digests FROM snapshot")
        return None if row is None else (int(row[0]), self._read_chunks(int(row[0]), split_digests(bytes(row[1]))))

    def _read_chunks(self, position: int, digests: Sequence[bytes]) -> Iterator[bytes]:
        """Read chunks in order, some in each statement; while some are used, a thread checks the next ones."""
        with ThreadPoolExecutor(1, "fedcascade-digests") as executor:
            checks: list[Future[list[bytes]]] = []
            for start in range(0, len(digests), CHUNKS_READ):
                wanted = digests[start : start + CHUNKS_READ]
                marks = ", ".join("?" * len(wanted))
                rows = self.fetch_rows(f"SELECT digest, body FROM chunk WHERE digest IN ({marks})", *wanted)
                checks.append(executor.submit(check_chunks, position, wanted, rows))
                if len(checks) > 1:
                    yield from checks.pop(0).result()
            for check in checks:
                yield from check.result()

    def list_snapshot_chunks(self) -> list[bytes]:
        row = self.fetch_row("SELECT digests FROM snapshot")
        return [] if row is None else split_digests(bytes(row[0]))

    def find_unused_chunks(self) -> list[bytes]:
        return sorted(self._list_chunks().difference(self.list_snapshot_chunks()))

    def delete_chunks(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self.run("DELETE FROM chunk WHERE digest = ?", digest)

    def delete_snapshots(self) -> None:
        self.run("DELETE FROM snapshot")
        self.run("DELETE FROM chunk")

    def _list_chunks(self) -> set[bytes]:
        return {bytes(row[0]) for row in self.fetch_rows("SELECT digest FROM chunk")}


class SqlStore(SqlHistory, SqlIdentities, SqlSnapshots, SqlAuditLog):
    """All parts of a store on one connection."""

    def read_tables(self) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
        """Read everything, as names of tables with columns and some rows."""
        for table in TABLES:
            for columns, rows in self.read_table(table):
                yield table, columns, rows

    def is_unused(self) -> bool:
        """Whether nobody has enrolled, uploaded or done anything here yet."""
        return not any(self.fetch_row(f"SELECT count(*) FROM {table}")[0] for table in ("agent", "event", "audit"))

    def write_table(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows as they were read from another store."""
        require(table in TABLES, f"the backup has a table '{table}', which this version does not know")
        known = self.run(f"SELECT * FROM {table} LIMIT 0").description
        is_known = {column[0] for column in known} == set(columns)
        require(is_known, f"the backup has other columns in '{table}': it is of another version")
        self.flush()
        self.copy_rows(table, columns, rows)

    def copy_rows(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows in the fastest way that the database has."""
        marks = ", ".join("?" * len(columns))
        self.connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def finish_import(self) -> None:
        """Do what a database needs after rows were inserted with their numbers."""

    def verify(self, noted: tuple[int, bytes] | None = None) -> tuple[int, bytes]:
        """Verify pages, log, journal, snapshot and audit log; a driver that cannot read them finds damage too."""
        try:
            self.check_pages()
            position, link = self.verify_log(noted)
            snapshot = self.load_snapshot()
            for _ in chain(self.read_audit(), () if snapshot is None else snapshot[1]):
                pass
        except self.failures as error:
            raise DamagedStore(" ".join(str(error).split())) from None
        if snapshot is not None and snapshot[0] > position:
            raise DamagedStore(f"the log ends at position {position}, before the snapshot at {snapshot[0]}")
        return position, link

    def check_pages(self) -> None:
        """Do nothing: a database that does not check its own pages overrides this."""

    def get_setting(self, name: str) -> str | None:
        row = self.fetch_row("SELECT value FROM setting WHERE name = ?", name)
        return None if row is None else str(row[0])

    def set_setting(self, name: str, value: str) -> None:
        statement = "INSERT INTO setting (name, value) VALUES (?, ?)"
        self.run(f"{statement} ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)

    def forget_agent(self, agent: int, position: int) -> None:
        self.append_event(position, FORGOTTEN)  # first, because the last link may be that of an upload to erase
        self.erase_uploads(agent)
        for table in ("journal", "move", "nonce"):
            self.run(f"DELETE FROM {table} WHERE agent = ?", agent)
        self.run("DELETE FROM agent WHERE id = ?", agent)
        self.drop_buffers()

    def find_last_rewriting(self) -> int:
        return int(self.fetch_row("SELECT coalesce(max(position), 0) FROM event")[0])

    def purge_deleted_rows(self) -> bool:
        """Do nothing: a database whose journals keep deleted rows overrides this."""
        return True

    def run_maintenance(self) -> None:
        """Do nothing: a database that does not maintain itself overrides this."""
