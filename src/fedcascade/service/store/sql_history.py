"""What is done with the whole log in SQL: old uploads are folded, and all of it is verified."""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from fedcascade.checks import require
from fedcascade.federation.messages import Cause
from fedcascade.service.store.chain import (
    SALT_BYTES,
    ChainCheck,
    DamagedStore,
    digest_upload,
    pack_retention,
)
from fedcascade.service.store.sql_journal import SqlJournal
from fedcascade.service.store.sql_log import RETAINED, SEALED_COLUMNS, SqlUploadLog

Row = Sequence[Any]  # of SEALED_COLUMNS
CAUSE, NUMBERS, UPLOADS = 3, 7, 9  # places in a row


class SqlHistory(SqlUploadLog, SqlJournal):
    """Folds and verifies the log, with the journal beside it."""

    def find_old_uploads(self, before: int, most: int) -> tuple[int, int]:
        """Look for old uploads in the journal, which has the times."""
        old = "SELECT position FROM journal WHERE at < ? AND position > ? ORDER BY position LIMIT ?"
        statement = f"SELECT coalesce(max(position), 0), count(*) FROM ({old}) AS old"
        horizon, count = self.fetch_row(statement, before, self.read_anchor()[0], most)
        return int(horizon), int(count)

    def fold_uploads(self, horizon: int, position: int) -> None:
        """Fold all but the last upload of each agent; the chain begins at the horizon from now on."""
        anchor, earlier = self.read_link(horizon), self.read_anchor()[0]
        self.remember_link(position - 1)  # it may be that of a row that is folded
        last = dict(self.fetch_rows("SELECT agent, max(position) FROM upload GROUP BY agent"))
        statement = f"SELECT {SEALED_COLUMNS} FROM upload WHERE position <= ? ORDER BY agent, position"
        rows = groupby(self.fetch_rows(statement, horizon), itemgetter(1))
        left = [row for agent, group in rows for row in self._fold(group, last[agent], earlier)]
        sealed = [(row[0], digest_upload(row)) for row in left]
        for table in ("erased", "event"):
            self.run(f"DELETE FROM {table} WHERE position <= ?", horizon)
        self.append_event(position, RETAINED, pack_retention(horizon, anchor, sorted(sealed)))
        self.fold_journal(horizon)
        self.drop_buffers()

    def _fold(self, group: Iterator[Row], last: int, earlier: int) -> list[Row]:
        """Fold the old uploads of one agent in place; return the rows that are left of them."""
        rows = list(group)
        folded = [row for row in rows if row[0] != last]
        left = [*([fold_rows(folded)] if folded else []), *rows[len(folded) :]]
        if len(folded) == 1 and folded[0][0] <= earlier:
            left[0] = folded[0]  # it was folded before, and nothing has come to it
        for row in folded[:-1]:
            self.run("DELETE FROM upload WHERE position = ?", row[0])
        for row in left:
            columns = "cause = ?, count = ?, clicks = ?, rounds = ?, numbers = ?, uploads = ?, salt = ?, link = ?"
            values = *row[3:8], *row[9:], digest_upload(row)
            self.run(f"UPDATE upload SET {columns} WHERE position = ?", *values, row[0])
            if row[UPLOADS] > 1:
                self.run("UPDATE agent SET folded = ? WHERE id = ?", row[2], row[1])
        return left

    def verify_log(self, noted: tuple[int, bytes] | None) -> tuple[int, bytes]:
        """Follow the whole chain; return the last position and its link. Raise ``DamagedStore`` at the first flaw."""
        horizon, anchor = self.read_anchor()
        folded = f"the log was folded up to position {horizon}, after what was noted: note what is printed now"
        require(noted is None or noted[0] > horizon, folded)
        check = ChainCheck(horizon, anchor, noted)
        for _ in self.follow_entries(0, check):
            pass
        self.follow_marks(check)
        if noted is not None and noted[0] > check.position:
            raise DamagedStore(f"the log ends at position {check.position}, before the one that was noted")
        self._verify_folded(horizon, anchor)
        self._verify_journal(horizon, check.position)
        return check.position, check.link

    def _verify_folded(self, horizon: int, anchor: bytes) -> None:
        rows = (
            "SELECT position, link FROM upload WHERE position <= ? UNION ALL SELECT * FROM erased WHERE position <= ?"
        )
        sealed = sorted((row[0], bytes(row[1])) for row in self.fetch_rows(rows, horizon, horizon))
        statement = "SELECT body FROM event WHERE kind = ? ORDER BY position DESC LIMIT 1"
        written = self.fetch_row(statement, RETAINED)
        if written is not None and bytes(written[0]) != pack_retention(horizon, anchor, sealed):
            raise DamagedStore(f"the folded entries up to position {horizon} are not those that were written")

    def _verify_journal(self, horizon: int, head: int) -> None:
        """Compare the journal with the log, of which it is a narrow copy."""
        names = ("agent", "cause", "rounds", "count", "clicks")
        differs = " OR ".join(f"journal.{name} <> upload.{name}" for name in names)
        joined = "journal LEFT JOIN upload ON upload.position = journal.position"
        where = f"journal.position > ? AND (upload.position IS NULL OR {differs})"
        row = self.fetch_row(f"SELECT min(journal.position) FROM {joined} WHERE {where}", horizon)
        if row[0] is not None:
            raise DamagedStore(f"the journal and the log differ at position {row[0]}, and the log ends at {head}")


def fold_rows(rows: Sequence[Row]) -> Row:
    """One row that stands for several of an agent; sums are exact, and the rest is that of the last one.

    From an upload with the cause ``CHANGE`` on, what came before is left out, and the row replaces earlier ones too. A
    salt is drawn anew, because the row is another one.
    """
    position, agent, sequence, cause, *_, nonce, _, _ = rows[-1]
    changes = [place for place, row in enumerate(rows) if row[CAUSE] == Cause.CHANGE]
    summed = rows[changes[-1] :] if changes else rows
    counts = [sum(row[column] for row in summed) for column in (4, 5, 6)]
    first, *others = (np.frombuffer(bytes(row[NUMBERS]), "<f8") for row in summed)
    numbers = np.asarray(sum(others, first)).tobytes()
    uploads, salt = sum(row[UPLOADS] for row in rows), os.urandom(SALT_BYTES)
    word = Cause.CHANGE.value if changes else cause
    return (position, agent, sequence, word, *counts, numbers, bytes(nonce), uploads, salt)
