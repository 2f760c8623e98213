"""The audit log in SQL."""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from fedcascade.service.store.audit import AuditRecord
from fedcascade.service.store.chain import GENESIS, SIZE, DamagedStore
from fedcascade.service.store.sql import SqlDatabase


def extend_audit(link: bytes, record: AuditRecord) -> bytes:
    """The link of a record, from the link before it."""
    return blake2b(link + msgspec.msgpack.encode(record), digest_size=SIZE).digest()


class SqlAuditLog(SqlDatabase):
    """The table audit, whose rows are numbered without gaps."""

    def record_audit(self, at: int, actor: str, action: str, agent: int | None = None, detail: str = "") -> None:
        row = self.fetch_row("SELECT number, link FROM audit ORDER BY number DESC LIMIT 1")
        number, link = (0, GENESIS) if row is None else (row[0], bytes(row[1]))
        record = AuditRecord(number=number + 1, at=at, actor=actor, action=action, agent=agent, detail=detail)
        columns = f"INSERT INTO audit (number, at, actor, action, agent, detail, link) {self.explicit_identity}"
        values = record.number, at, actor, action, agent, detail, extend_audit(link, record)
        self.run(f"{columns} VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def read_audit(self) -> Iterator[AuditRecord]:
        link = GENESIS
        statement = "SELECT number, at, actor, action, agent, detail, link FROM audit ORDER BY number"
        for expected, (*values, written) in enumerate(self.fetch_rows(statement), 1):
            names = ("number", "at", "actor", "action", "agent", "detail")
            record = AuditRecord(**dict(zip(names, values, strict=True)))
            link = extend_audit(link, record)
            if record.number != expected or bytes(written) != link:
                raise DamagedStore(f"record {expected} of the audit log is not the one that was written")
            yield record
