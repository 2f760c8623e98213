"""A whole store in SQL: the log and the journal of neighbouring modules, and identities, snapshots and settings."""

import secrets
from collections.abc import Iterable

from fedcascade.service.store.contract import Identity
from fedcascade.service.store.sql import SqlDatabase
from fedcascade.service.store.sql_journal import SqlJournal
from fedcascade.service.store.sql_log import SqlUploadLog

NUMBERS = range(10**11, 10**12)  # agents have numbers of 12 digits
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


class SqlSnapshots(SqlDatabase):
    """Snapshots, one row per part."""

    def save_snapshot_part(self, position: int, part: int, parts: int, body: bytes) -> None:
        """Write a part, in place of one that an interrupted snapshot has left there."""
        self.run("DELETE FROM snapshot WHERE position = ? AND part = ?", position, part)
        self.run("INSERT INTO snapshot (position, part, parts, body) VALUES (?, ?, ?, ?)", position, part, parts, body)

    def find_last_snapshot(self) -> int:
        complete = "SELECT position FROM snapshot GROUP BY position, parts HAVING count(*) = parts"
        return int(self.fetch_row(f"SELECT coalesce(max(position), 0) FROM ({complete}) AS complete")[0])

    def load_snapshot(self) -> tuple[int, bytes] | None:
        position = self.find_last_snapshot()
        rows = self.fetch_rows("SELECT body FROM snapshot WHERE position = ? ORDER BY part", position)
        return (position, b"".join(bytes(row[0]) for row in rows)) if rows else None

    def delete_snapshot_part(self, *, before: int) -> bool:
        """Delete one part: what is erased is overwritten, which takes as long as writing."""
        first = "(SELECT position, part FROM snapshot WHERE position < ? LIMIT 1)"
        return bool(self.run(f"DELETE FROM snapshot WHERE (position, part) IN {first}", before).rowcount == 1)

    def delete_snapshots(self, *, before: int) -> None:
        self.run("DELETE FROM snapshot WHERE position < ?", before)


class SqlStore(SqlUploadLog, SqlIdentities, SqlSnapshots, SqlJournal):
    """All parts of a store on one connection."""

    def get_setting(self, name: str) -> str | None:
        row = self.fetch_row("SELECT value FROM setting WHERE name = ?", name)
        return None if row is None else str(row[0])

    def set_setting(self, name: str, value: str) -> None:
        statement = "INSERT INTO setting (name, value) VALUES (?, ?)"
        self.run(f"{statement} ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)

    def forget_agent(self, agent: int, position: int) -> None:
        self.run("DELETE FROM answer WHERE position IN (SELECT position FROM upload WHERE agent = ?)", agent)
        for table in ("upload", "journal", "move", "nonce"):
            self.run(f"DELETE FROM {table} WHERE agent = ?", agent)
        self.run("DELETE FROM agent WHERE id = ?", agent)
        self.run("INSERT INTO forgotten (position) VALUES (?)", position)
        self.drop_buffers()

    def find_last_forgetting(self) -> int:
        return int(self.fetch_row("SELECT coalesce(max(position), 0) FROM forgotten")[0])

    def purge_deleted_rows(self) -> None:
        """Do nothing: a database whose journals keep deleted rows overrides this."""

    def run_maintenance(self) -> None:
        """Do nothing: a database that does not maintain itself overrides this."""
