"""The SQL that both stores share. A store adds how to connect, how to lock, and its own column types."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from fedcascade.federation.messages import Cause
from fedcascade.service.sql_journal import SqlJournal
from fedcascade.service.store import Entry, Identity, Revoked

COLUMNS = "position, agent, sequence, cause, count, clicks, rounds, numbers, nonce"
CHUNK = 512
LOOK_UP = (
    f"SELECT {COLUMNS} FROM agent LEFT JOIN upload ON upload.agent = agent.id AND sequence = ? "
    "WHERE agent.id = ? AND revoked IS NULL"
)


class SqlStore(SqlJournal):
    """A store behind a connection of Python's database interface, in autocommit mode."""

    failures: tuple[type[Exception], ...] = ()
    begin: ClassVar[Sequence[str]] = ("BEGIN",)
    mark: ClassVar[str] = "?"

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement whose values are marked by ``?``; the cursor."""
        return self.connection.execute(statement.replace("?", self.mark), values)

    def row(self, statement: str, *values: Any) -> Any:
        """The first row, or None."""
        return self.run(statement, *values).fetchone()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        for statement in self.begin:
            self.run(statement)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with suppress(*self.failures):  # the database may have rolled back by itself, or be gone
            self.run("ROLLBACK")

    def close(self) -> None:
        """Let go of the database."""
        self.connection.close()

    def migrate(self, migrations: Sequence[str]) -> None:
        """Run the numbered migrations that this database has not seen; a database from the future is refused."""
        with self.transaction():
            self.run("CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY)")
            done = self.row("SELECT coalesce(max(number), 0) FROM migration")[0]
            if done > len(migrations):
                raise ValueError(
                    f"the store is at migration {done}, this version knows {len(migrations)}: use a newer fedcascade"
                )
            for number, script in enumerate(migrations[done:], done + 1):
                for statement in script.split(";"):
                    if statement.strip():
                        self.run(statement)
                self.run("INSERT INTO migration (number) VALUES (?)", number)

    def setting(self, name: str) -> str | None:
        """A named text."""
        found = self.row("SELECT value FROM setting WHERE name = ?", name)
        return None if found is None else str(found[0])

    def set_setting(self, name: str, value: str) -> None:
        """Keep a named text."""
        self.run(
            "INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name,
            value,
        )

    def append(self, entry: Entry, answer: bytes) -> None:
        """Write an upload and its answer."""
        self.run(
            f"INSERT INTO upload ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            entry.position,
            entry.agent,
            entry.sequence,
            entry.cause.value,
            entry.count,
            entry.clicks,
            entry.rounds,
            entry.numbers,
            entry.nonce,
        )
        self.run("INSERT INTO answer (position, body) VALUES (?, ?)", entry.position, answer)

    def entries(self, after: int) -> Iterator[Entry]:
        """The log beyond a position, read in pieces."""
        statement = f"SELECT {COLUMNS} FROM upload WHERE position > ? ORDER BY position LIMIT {CHUNK}"
        while rows := self.run(statement, after).fetchall():
            for row in rows:
                yield _entry(row)
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def entry(self, agent: int, sequence: int) -> Entry | None:
        """The upload of that number, in one question with whether the agent may speak."""
        found = self.row(LOOK_UP, sequence, agent)
        if found is None:
            raise Revoked(agent)
        return None if found[0] is None else _entry(found)

    def answer(self, position: int) -> bytes:
        """What an upload was answered."""
        return bytes(self.row("SELECT body FROM answer WHERE position = ?", position)[0])

    def uploads(self, agent: int) -> tuple[int, int]:
        """How many uploads, and of how many rounds."""
        found = self.row("SELECT count(*), coalesce(sum(rounds), 0) FROM upload WHERE agent = ?", agent)
        return int(found[0]), int(found[1])

    def forget(self, agent: int, position: int) -> None:
        """Erase an agent, and note where."""
        self.run("DELETE FROM answer WHERE position IN (SELECT position FROM upload WHERE agent = ?)", agent)
        for table in ("upload", "journal", "move"):
            self.run(f"DELETE FROM {table} WHERE agent = ?", agent)
        self.run("DELETE FROM agent WHERE id = ?", agent)
        self.run("INSERT INTO forgotten (position) VALUES (?)", position)

    def scrub(self) -> None:
        """After a forgetting has been committed: let nothing linger in journals."""

    def last_forgotten(self) -> int:
        """The position of the last forgetting."""
        return int(self.row("SELECT coalesce(max(position), 0) FROM forgotten")[0])

    def save_part(self, position: int, part: int, parts: int, body: bytes) -> None:
        """Keep one part of a snapshot."""
        self.run("DELETE FROM snapshot WHERE position = ? AND part = ?", position, part)
        statement = "INSERT INTO snapshot (position, part, parts, body) VALUES (?, ?, ?, ?)"
        self.run(statement, position, part, parts, body)

    def snapshot(self) -> tuple[int, bytes] | None:
        """The latest snapshot that is whole."""
        found = self.row(
            "SELECT position FROM snapshot GROUP BY position, parts HAVING count(*) = parts ORDER BY position DESC"
        )
        if found is None:
            return None
        rows = self.run("SELECT body FROM snapshot WHERE position = ? ORDER BY part", found[0]).fetchall()
        return int(found[0]), b"".join(bytes(row[0]) for row in rows)

    def drop_snapshots(self, *, before: int) -> None:
        """Delete earlier snapshots."""
        self.run("DELETE FROM snapshot WHERE position < ?", before)

    def add_tokens(self, hashes: Iterable[bytes], expires: float) -> None:
        """Keep enrolment tokens."""
        for token_hash in hashes:
            self.run("INSERT INTO enrolment (token_hash, expires) VALUES (?, ?)", token_hash, expires)

    def use_token(self, token_hash: bytes, now: float) -> bool:
        """Strike out a token."""
        statement = "UPDATE enrolment SET used = ? WHERE token_hash = ? AND used IS NULL AND expires > ?"
        return bool(self.run(statement, now, token_hash, now).rowcount == 1)

    def add_agent(self, public_key: bytes, now: float) -> int:
        """Enrol a key."""
        added = self.row("INSERT INTO agent (public_key, enrolled) VALUES (?, ?) RETURNING id", public_key, now)
        return int(added[0])

    def identity(self, agent: int) -> Identity | None:
        """Who that is."""
        return _identity(self.row("SELECT id, public_key, revoked FROM agent WHERE id = ?", agent))

    def identity_of_key(self, public_key: bytes) -> Identity | None:
        """Whose key that is."""
        return _identity(self.row("SELECT id, public_key, revoked FROM agent WHERE public_key = ?", public_key))

    def revoke(self, agent: int, now: float) -> bool:
        """Let an agent speak no more."""
        return bool(self.run("UPDATE agent SET revoked = coalesce(revoked, ?) WHERE id = ?", now, agent).rowcount == 1)

    def enrolled(self) -> int:
        """How many agents there are."""
        return int(self.row("SELECT count(*) FROM agent")[0])


def _entry(row: Sequence[Any]) -> Entry:
    position, agent, sequence, cause, count, clicks, rounds, numbers, nonce = row
    return Entry(
        position=position,
        agent=agent,
        sequence=sequence,
        cause=Cause(cause),
        count=count,
        clicks=clicks,
        rounds=rounds,
        numbers=bytes(numbers),
        nonce=bytes(nonce),
    )


def _identity(row: Sequence[Any] | None) -> Identity | None:
    return None if row is None else Identity(int(row[0]), bytes(row[1]), row[2] is not None)
