"""A store in SQL: log and journal of ``sql_log``, and identities, snapshots, audit log and settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgspec

from fedcascade.checks import require
from fedcascade.service.store.chain import GENESIS, SIZE, DamagedStore
from fedcascade.service.store.contract import AgentPage, AgentRecord, AgentState, AuditRecord, Identity, Snapshot
from fedcascade.service.store.snapshot import digest_chunk, split_digests
from fedcascade.service.store.sql import TABLES
from fedcascade.service.store.sql_log import FORGOTTEN, SqlUploadLog

CONDITIONS: dict[AgentState, str] = {
    "all": "1 = 1",
    "active": "upload.position IS NOT NULL",
    "idle": "upload.position IS NULL",
    "revoked": "revoked IS NOT NULL",
}
EXPORT_ROWS = 256  # rows per piece of a table in a backup
CHUNKS_READ = 256  # chunks per statement: some 4 MB
DELETED_PER_CHUNK = 2  # unused chunks deleted per chunk written
NONCE_SECONDS = 3_600  # lifetime of nonces, far longer than that of a signature


class SqlStore(SqlUploadLog):
    """All of a store on one connection."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._unused: set[bytes] = set()  # chunks that are not of the snapshot at ``_unused_at``
        self._unused_at = -1

    def drop_caches(self) -> None:
        super().drop_caches()
        self._unused_at = -1

    def put_identity(self, identity: Identity) -> None:
        changed = ", ".join(f"{name} = excluded.{name}" for name in ("public_key", "enrolled", "revoked"))
        statement = "INSERT INTO agent (id, public_key, enrolled, revoked) VALUES (?, ?, ?, ?)"
        self.run(f"{statement} ON CONFLICT (id) DO UPDATE SET {changed}", *astuple(identity))
        self.drop_buffers()

    def find_identity(self, agent: int | bytes) -> Identity | None:
        column = "id" if isinstance(agent, int) else "public_key"
        row = self.fetch_row(f"SELECT id, public_key, enrolled, revoked FROM agent WHERE {column} = ?", agent)
        return None if row is None else Identity(row[0], bytes(row[1]), row[2], row[3])

    def use_nonce(self, agent: int, nonce: int, created: int) -> bool:
        self.run("DELETE FROM nonce WHERE created < ?", created - NONCE_SECONDS)
        statement = "INSERT INTO nonce (agent, nonce, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        return bool(self.run(statement, agent, nonce, created).rowcount == 1)

    def list_agents(self, after: int, most: int, state: AgentState = "all") -> AgentPage:
        statement = (
            "SELECT id, enrolled, revoked, journal.at FROM agent "
            "LEFT JOIN upload ON upload.agent = id"
            " AND sequence = (SELECT max(sequence) FROM upload AS own WHERE own.agent = id) "
            "LEFT JOIN journal ON journal.position = upload.position "
            f"WHERE id > ? AND {CONDITIONS[state]} ORDER BY id LIMIT ?"
        )
        rows = self.fetch_rows(statement, after, most) if most else []
        records = [AgentRecord(int(row[0]), float(row[1]), row[2] is not None, row[3]) for row in rows]
        return AgentPage(records, *map(int, self.fetch_row("SELECT count(*), count(revoked) FROM agent")))

    def put_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        position = int(self.fetch_row("SELECT coalesce(max(position), 0) FROM snapshot")[0])
        if self._unused_at != position:  # a new snapshot, perhaps of another server
            self._unused_at, self._unused = position, self._find_unused()
        self._unused.difference_update(chunks)
        for digest, body in chunks.items():
            self.run("INSERT INTO chunk (digest, body) VALUES (?, ?) ON CONFLICT DO NOTHING", digest, body)
        for _ in range(min(len(self._unused), DELETED_PER_CHUNK * len(chunks))):
            self.run("DELETE FROM chunk WHERE digest = ?", self._unused.pop())

    def commit_snapshot(self, position: int, digests: Sequence[bytes], *, purge: bool = False) -> bool:
        """Check the chunks that are not in the previous snapshot, and replace it."""
        unsure = list(set(digests).difference(self._read_digests()[1]))
        for start in range(0, len(unsure), CHUNKS_READ):
            wanted = unsure[start : start + CHUNKS_READ]
            marks = ", ".join("?" * len(wanted))
            if self.fetch_row(f"SELECT count(*) FROM chunk WHERE digest IN ({marks})", *wanted)[0] < len(wanted):
                return False
        self.run("DELETE FROM snapshot")
        self.run("INSERT INTO snapshot (position, digests) VALUES (?, ?)", position, b"".join(digests))
        self._unused_at = -1
        for digest in sorted(self._find_unused()) if purge else ():
            self.run("DELETE FROM chunk WHERE digest = ?", digest)
        return True

    def read_snapshot(self) -> Snapshot | None:
        position, digests = self._read_digests()
        return Snapshot(position, digests, self._read_chunks(position, digests)) if digests else None

    def _read_digests(self) -> tuple[int, list[bytes]]:
        row = self.fetch_row("SELECT position, digests FROM snapshot")
        return (0, []) if row is None else (int(row[0]), split_digests(bytes(row[1])))

    def _find_unused(self) -> set[bytes]:
        chunks = {bytes(row[0]) for row in self.fetch_rows("SELECT digest FROM chunk")}
        return chunks.difference(self._read_digests()[1])

    def _read_chunks(self, position: int, digests: Sequence[bytes]) -> Iterator[bytes]:
        """Read chunks in order, some per statement; a thread checks the next ones meanwhile."""
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

    def record_audit(self, at: int, actor: str, action: str, agent: int | None = None, detail: str = "") -> None:
        row = self.fetch_row("SELECT number, link FROM audit ORDER BY number DESC LIMIT 1")
        number, link = (0, GENESIS) if row is None else (row[0], bytes(row[1]))
        record = AuditRecord(number + 1, at, actor, action, agent, detail)
        statement = "INSERT INTO audit (number, at, actor, action, agent, detail, link) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self.run(statement, *astuple(record), extend_audit(link, record))

    def read_audit(self) -> Iterator[AuditRecord]:
        link = GENESIS
        statement = "SELECT number, at, actor, action, agent, detail, link FROM audit ORDER BY number"
        for expected, (*values, written) in enumerate(self.fetch_rows(statement), 1):
            record = AuditRecord(*values)
            link = extend_audit(link, record)
            if record.number != expected or bytes(written) != link:
                raise DamagedStore(f"record {expected} of the audit log is not the one that was written")
            yield record

    def read_tables(self) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
        """Read all tables in pieces: name, columns and some rows."""
        for table in TABLES:
            with self.stream(f"SELECT * FROM {table}") as cursor:
                columns = [column[0] for column in cursor.description]
                while rows := cursor.fetchmany(EXPORT_ROWS):
                    yield table, columns, [list(row) for row in rows]

    def read_agent(self, agent: int) -> dict[str, list[dict[str, Any]]]:
        """Read every row about an agent, by table."""
        found: dict[str, list[dict[str, Any]]] = {}
        with self.read_transaction():
            for table in ("agent", "upload", "journal", "move", "nonce", "audit"):
                cursor = self.run(f"SELECT * FROM {table} WHERE {'id' if table == 'agent' else 'agent'} = ?", agent)
                columns = [column[0] for column in cursor.description]
                found[table] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        return found

    def is_unused(self) -> bool:
        """Return whether the store has no agents, events and actions."""
        return not any(self.fetch_row(f"SELECT count(*) FROM {table}")[0] for table in ("agent", "event", "audit"))

    def write_table(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        require(table in TABLES, f"the backup has an unknown table '{table}': it is of another version")
        known = self.run(f"SELECT * FROM {table} LIMIT 0").description
        is_known = {column[0] for column in known} == set(columns)
        require(is_known, f"the backup has other columns in '{table}': it is of another version")
        self.flush()
        self.copy_rows(table, columns, rows)

    def copy_rows(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows in the database's fastest way."""
        marks = ", ".join("?" * len(columns))
        self.connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def verify(self, noted: tuple[int, bytes] | None = None) -> tuple[int, bytes]:
        """Verify pages, log, journal, snapshot and audit log; a failure of the driver counts as damage."""
        try:
            self.check_pages()
            position, link = self.verify_log(noted)
            snapshot = self.read_snapshot()
            for _ in chain(self.read_audit(), () if snapshot is None else snapshot.chunks):
                pass
        except self.failures as error:
            raise DamagedStore(" ".join(str(error).split())) from None
        if snapshot is not None and snapshot.position > position:
            raise DamagedStore(f"the log ends at position {position}, before the snapshot at {snapshot.position}")
        return position, link

    def check_pages(self) -> None:
        """Check the pages of the database, if it does not do so itself."""

    def get_setting(self, name: str) -> str | None:
        row = self.fetch_row("SELECT value FROM setting WHERE name = ?", name)
        return None if row is None else str(row[0])

    def set_setting(self, name: str, value: str) -> None:
        statement = "INSERT INTO setting (name, value) VALUES (?, ?)"
        self.run(f"{statement} ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)

    def forget_agent(self, agent: int, position: int) -> None:
        self.append_event(position, FORGOTTEN)  # first, because it needs the link of the last upload
        self.erase_uploads(agent)
        for table in ("journal", "move", "nonce"):
            self.run(f"DELETE FROM {table} WHERE agent = ?", agent)
        self.run("DELETE FROM agent WHERE id = ?", agent)
        self.drop_buffers()

    def run_maintenance(self, *, purge: bool = False) -> bool:  # noqa: ARG002 (for subclasses)
        """Do nothing, for a database that maintains itself."""
        return True


def check_chunks(position: int, digests: Sequence[bytes], rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """Return the chunks of these digests, in order; raise ``DamagedStore`` if one is missing or damaged."""
    chunks = {bytes(digest): bytes(body) for digest, body in rows}
    for digest in digests:
        if digest not in chunks or digest_chunk(chunks[digest]) != digest:
            raise DamagedStore(f"the snapshot at position {position} is not the one that was written")
    return [chunks[digest] for digest in digests]


def extend_audit(link: bytes, record: AuditRecord) -> bytes:
    """Compute the link of a record from the previous link."""
    return blake2b(link + msgspec.msgpack.encode(record), digest_size=SIZE).digest()
