"""The audit log of a store: who let whom in, out or be forgotten, and what an operator did to the store, when.

Its records form a hash chain of their own. They name agents by number alone: a number is drawn at random, and says
nothing of a forgotten agent's key or data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

OPERATOR = "operator"
LOCAL = "command line"  # whoever can open the store itself


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """Something that an operator or an agent did. ``at`` is in milliseconds since 1970; records count from 1."""

    number: int
    at: int
    actor: str
    action: str
    agent: int | None
    detail: str


class AuditLog(Protocol):
    """The part of a store that says who did what, when."""

    def record_audit(self, at: int, actor: str, action: str, agent: int | None = None, detail: str = "") -> None:
        """Append a record."""

    def read_audit(self) -> Iterator[AuditRecord]:
        """Read all records in order; raise ``DamagedStore`` where one is not what was written."""
