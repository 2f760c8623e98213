"""What one agent keeps on its own device: key, state, open lists, uploads that have not been answered."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.cascade import Examination
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.store_file import StoreFile
from fedcascade.service.protocol.wire import pack_numbers, unpack_statistics

SAVE_SETTING = "INSERT INTO setting VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
SAVE_STATISTICS = (
    "INSERT INTO statistics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET numbers = excluded.numbers, "
    "count = excluded.count, clicks = excluded.clicks, rounds = excluded.rounds"
)
SAVE_OWN_DATA = "INSERT INTO own_data VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body"
# More are dropped than a new list adds, so that nothing old stays for long; no statement reads all lists of an agent.
DROP_OLD_LISTS = (
    "DELETE FROM open_list WHERE agent = ?1 AND (impression <= ?2 OR shown_at < ?3 AND impression IN "
    "(SELECT impression FROM open_list WHERE agent = ?1 ORDER BY impression LIMIT 2))"
)


@dataclass(frozen=True)
class RoundEstimate:
    """What an agent knows of t: the system's rounds and agents at the last download, its own arrivals since then."""

    rounds: int = 0
    agents: int = 1
    arrivals_since: int = 0

    def estimate_round(self, arrivals: int) -> int:
        """Extrapolate t: while this agent's user came once, each of the others did, on average."""
        return max(1, arrivals, self.rounds + self.agents * self.arrivals_since)


@dataclass(frozen=True)
class OpenList:
    """A list without feedback: its number, the rows that it shows, and when it was shown, in seconds since 1970."""

    impression: int
    items: tuple[int, ...]
    shown_at: float


class LocalStore:
    """The rows of one agent in a ``StoreFile``."""

    def __init__(self, file: StoreFile, agent: int) -> None:
        self.file, self.agent = file, agent

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.file.lock, self.file.transaction():
            yield

    def get_setting(self, name: str) -> bytes | None:
        query = "SELECT value FROM setting WHERE agent = ? AND name = ?"
        with self.file.lock:
            row = self.file.execute(query, (self.agent, name)).fetchone()
        return None if row is None else bytes(row[0])

    def set_setting(self, name: str, value: bytes) -> None:
        self.file.execute(SAVE_SETTING, (self.agent, name, value))

    def delete_setting(self, name: str) -> None:
        self.file.execute("DELETE FROM setting WHERE agent = ? AND name = ?", (self.agent, name))

    def load_statistics(self, name: str, dimension: int) -> Statistics:
        query = "SELECT numbers, count, clicks, rounds FROM statistics WHERE agent = ? AND name = ?"
        row = self.file.execute(query, (self.agent, name)).fetchone()
        return Statistics.zero(dimension) if row is None else unpack_statistics(row[0], row[1:], dimension)

    def save_statistics(self, name: str, statistics: Statistics) -> None:
        self.file.execute(SAVE_STATISTICS, (self.agent, name, *_list_columns(statistics)))

    def load_own_data(self) -> dict[str, bytes]:
        """Load the parts of the agent's own data, by their names; none where the policy keeps none apart."""
        rows = self.file.execute("SELECT part, body FROM own_data WHERE agent = ?", (self.agent,))
        return {part: bytes(body) for part, body in rows}

    def save_own_data(self, part: str, body: bytes) -> None:
        """Save a part of the agent's own data."""
        self.file.execute(SAVE_OWN_DATA, (self.agent, part, body))

    def delete_own_data(self) -> None:
        self.file.execute("DELETE FROM own_data WHERE agent = ?", (self.agent,))

    def begin_ledger(self) -> None:
        """Note that the server holds nothing of this agent, which has a new identity."""
        names = "('receipt', 'unconfirmed', 'last_change')"
        self.file.execute("DELETE FROM statistics WHERE agent = ? AND name = 'confirmed'", (self.agent,))
        self.file.execute(f"DELETE FROM setting WHERE agent = ? AND name IN {names}", (self.agent,))

    def load_counters(self) -> tuple[int, int, RoundEstimate]:
        """Load how often the user came, how many uploads there were, and what is known of t."""
        body = self.get_setting("counters")
        arrivals, uploads, rounds, agents, since = (0, 0, 0, 1, 0) if body is None else np.frombuffer(body, "<i8")
        [newest] = self.file.execute(
            "SELECT coalesce(max(impression), 0) FROM open_list WHERE agent = ?", (self.agent,)
        ).fetchone()
        return max(int(arrivals), newest), int(uploads), RoundEstimate(int(rounds), int(agents), int(since))

    def save_counters(self, arrivals: int, uploads: int, estimate: RoundEstimate) -> None:
        row = np.array([arrivals, uploads, estimate.rounds, estimate.agents, estimate.arrivals_since], "<i8")
        self.set_setting("counters", row.tobytes())

    def add_open_list(self, shown: ShownList, shown_at: float, *, keep: int, keep_seconds: float) -> None:
        """Save a list until its feedback comes; those that are too many or too old are deleted.

        The number of the newest list is how often the user came, so a new list is all that is written.
        """
        body = shown.items.astype("<i8").tobytes(), shown.features.astype("<f4").tobytes()
        self.file.execute("INSERT INTO open_list VALUES (?, ?, ?, ?, ?)",
                          (self.agent, shown.impression, shown_at, *body))  # fmt: skip
        self.file.execute(DROP_OLD_LISTS, (self.agent, shown.impression - keep, shown_at - keep_seconds))

    def record_list(self, shown: ShownList, shown_at: float, offered: NDArray[np.float32], keep: int) -> None:
        """Keep a list with all that was on offer, for a log; of more than ``keep``, the oldest go."""
        chances = None if shown.propensities is None else shown.propensities.astype("<f8").tobytes()
        self.file.execute("INSERT INTO recorded_list VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                          (self.agent, shown.impression, shown_at, shown.items.astype("<i8").tobytes(), chances,
                           offered.astype("<f4").tobytes()))  # fmt: skip
        self.file.execute(
            "DELETE FROM recorded_list WHERE agent = ? AND impression <= ?", (self.agent, shown.impression - keep)
        )

    def record_feedback(self, impression: int, seen: Examination) -> None:
        """Keep what a user did with a recorded list."""
        clicks = np.array(seen.clicks, "<i8").tobytes()
        self.file.execute("UPDATE recorded_list SET clicks = ?, looked = ? WHERE agent = ? AND impression = ?",
                          (clicks, seen.examined, self.agent, impression))  # fmt: skip

    def load_recorded_lists(self) -> list[tuple[float, bytes, bytes | None, bytes, bytes, int]]:
        """Time, items, chances, features on offer, clicks and positions looked at of each list that has feedback."""
        query = (
            "SELECT shown_at, items, chances, offered, clicks, looked FROM recorded_list "
            "WHERE agent = ? AND clicks IS NOT NULL ORDER BY impression"
        )
        return self.file.execute(query, (self.agent,)).fetchall()

    def load_open_list(self, impression: int, id_: int, dimension: int) -> tuple[ShownList, float] | None:
        """Load a list that waits for feedback, and when it was shown."""
        query = "SELECT items, features, shown_at FROM open_list WHERE agent = ? AND impression = ?"
        row = self.file.execute(query, (self.agent, impression)).fetchone()
        if row is None:
            return None
        items, features = np.frombuffer(row[0], "<i8"), np.frombuffer(row[1], "<f4").reshape(-1, dimension)
        return ShownList(id_, impression, items.astype(np.intp), features.astype(np.float32)), row[2]

    def list_open_lists(self) -> list[OpenList]:
        """The lists that wait for feedback, oldest first."""
        rows = self.file.execute(
            "SELECT impression, items, shown_at FROM open_list WHERE agent = ? ORDER BY impression", (self.agent,)
        )
        return [OpenList(number, tuple(np.frombuffer(items, "<i8").tolist()), at) for number, items, at in rows]

    def delete_open_list(self, impression: int) -> None:
        self.file.execute("DELETE FROM open_list WHERE agent = ? AND impression = ?", (self.agent, impression))

    def add_to_outbox(self, upload: Upload) -> None:
        row = (self.agent, upload.sequence, upload.cause.value, *_list_columns(upload.statistics))
        columns = "agent, sequence, cause, numbers, count, clicks, rounds"
        self.file.execute(f"INSERT INTO outbox ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def load_outbox(self, agent: int, dimension: int) -> list[Upload]:
        """Load the uploads that have not been answered, oldest first."""
        query = "SELECT sequence, cause, numbers, count, clicks, rounds FROM outbox WHERE agent = ? ORDER BY sequence"
        uploads = []
        for sequence, cause, numbers, *counts in self.file.execute(query, (self.agent,)):
            statistics = unpack_statistics(numbers, tuple(counts), dimension)
            uploads.append(Upload(agent=agent, sequence=sequence, cause=Cause(cause), statistics=statistics))
        return uploads

    def delete_from_outbox(self, sequence: int) -> None:
        self.file.execute("DELETE FROM outbox WHERE agent = ? AND sequence = ?", (self.agent, sequence))


def _list_columns(statistics: Statistics) -> tuple[bytes, int, int, int]:
    return pack_numbers(statistics), statistics.count, statistics.clicks, statistics.rounds
