"""The lists of agents in their database: those without feedback, and recorded ones."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.agent import ShownList
from fedcascade.learning.cascade import Examination
from fedcascade.learning.click_log import ClickLog
from fedcascade.service.agent.sealed_rows import Run, seal, unseal

# Drops up to two expired lists for each new one, without reading all lists of an agent.
DROP_LISTS = (
    "DELETE FROM pool_list WHERE agent = ? AND (is_open > 0 AND arrival <= ? OR is_open = 0 AND arrival <= ? OR "
    "shown_at < ? AND impression IN (SELECT impression FROM pool_list WHERE agent = ? ORDER BY arrival LIMIT 2))"
)
COLUMNS = "impression, arrival, shown_at, is_open, body"
RECORDED, OPEN, UNREWARDED = 0, 1, 2  # values of ``is_open``: with feedback, without, and with a reward to come


@dataclass(frozen=True)
class OpenList:
    """A list without feedback: its number, its rows, and its time in seconds since 1970."""

    impression: int
    items: tuple[int, ...]
    shown_at: float


class SavedList(NamedTuple):
    """A list with its random number, the agent's count of lists, and its time in seconds since 1970.

    The other fields are the body of its row: as bytes, the rows on the list, their features and propensities, and all
    features on offer. A list with feedback that is recorded, or waits for its reward, has clicks, rewards and the
    number of examined positions.
    """

    impression: int
    arrival: int
    shown_at: float
    rows: bytes = b""
    features: bytes = b""
    chances: bytes | None = None
    offered: bytes | None = None
    clicks: bytes | None = None
    looked: int | None = None
    rewards: bytes = b""  # of the clicks; none if each is 1
    round: int = 0  # of own data, if they are kept apart

    @classmethod
    def pack(
        cls, shown: ShownList, impression: int, shown_at: float, offered: NDArray[np.float32] | None = None
    ) -> "SavedList":
        """Return a list to save, with all items on offer if they are recorded."""
        rows, features = shown.items.astype("<i8").tobytes(), shown.features.astype("<f4").tobytes()
        saved = cls(impression, shown.impression, float(shown_at), rows, features)
        if offered is None:
            return saved
        chances = None if shown.propensities is None else shown.propensities.astype("<f8").tobytes()
        return saved._replace(chances=chances, offered=offered.astype("<f4").tobytes())

    @property
    def items(self) -> tuple[int, ...]:
        """The rows of the items of ``recommend`` on the list."""
        return tuple(np.frombuffer(self.rows, "<i8").tolist())

    @property
    def seen(self) -> Examination:
        """The feedback on a list that has it."""
        clicks = np.frombuffer(self.clicks or b"", "<i8").tolist()
        rewards = np.frombuffer(self.rewards, "<f8").tolist()
        return Examination(self.looked or 0, tuple(clicks), tuple(rewards))

    def unpack(self, agent: int, dimension: int) -> ShownList:
        """Return the list as the agent's transitions take it, by its count."""
        items = np.frombuffer(self.rows, "<i8").astype(np.intp)
        features = np.frombuffer(self.features, "<f4").reshape(-1, dimension).astype(np.float32)
        return ShownList(agent, self.arrival, items, features)

    def to_log(self, agent: int, dimension: int) -> ClickLog:
        """Return a recorded list as the log of one list."""
        items = np.array(self.items, np.int64)
        features = np.frombuffer(self.offered or b"", "<f4").astype(np.float32).reshape(1, -1, dimension)
        seen, rewards = self.seen, np.zeros((1, items.size))
        rewards[0, list(seen.clicks)] = seen.values
        clicked = np.isin(np.arange(items.size), seen.clicks)[None]
        return ClickLog(
            users=np.array([agent]),
            items=items[None],
            clicks=clicked,
            rewards=rewards,
            times=np.array([self.shown_at]),
            looked=np.array([self.looked]),
            offered=np.arange(features.shape[1])[None],
            features=features,
            propensities=None if self.chances is None else np.frombuffer(self.chances, "<f8")[None],
        )

    def name_row(self, is_open: int) -> str:
        """Return the text of the columns beside the body, which its digest covers."""
        return f"list {self.impression} {self.arrival} {self.shown_at!r} {is_open}"


class SavedLists(NamedTuple):
    """The lists of an agent in a transaction; ``title`` names the database."""

    run: Run
    title: str
    agent: int

    def insert(self, shown: SavedList, is_open: int = OPEN) -> None:
        """Save a list."""
        body = seal(self.agent, shown.name_row(is_open), msgspec.msgpack.encode(shown[3:]))
        insert = f"INSERT INTO pool_list (agent, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
        self.run(insert, self.agent, *shown[:3], is_open, body)

    def drop_expired(self, newest_open: int, newest_recorded: int, oldest: float) -> None:
        """Delete lists up to these counts, and some that were shown before a time."""
        self.run(DROP_LISTS, self.agent, newest_open, newest_recorded, oldest, self.agent)

    def close(self, shown: SavedList, seen: Examination, is_open: int | None, round_: int = 0) -> None:
        """Delete a list that has its feedback, or keep it with what the user has seen as ``is_open``."""
        self.run("DELETE FROM pool_list WHERE agent = ? AND impression = ?", self.agent, shown.impression)
        if is_open == UNREWARDED or (is_open == RECORDED and shown.offered is not None):
            closed = shown._replace(
                features=b"" if is_open == RECORDED else shown.features,
                clicks=np.array(seen.clicks, "<i8").tobytes(),
                looked=seen.examined,
                rewards=np.array(seen.rewards, "<f8").tobytes(),
                round=round_,
            )
            self.insert(closed, is_open)

    def drop_unrewarded(self) -> None:
        """Delete the lists that wait for a reward: their data are gone, because the user has changed."""
        self.run("DELETE FROM pool_list WHERE agent = ? AND is_open = ?", self.agent, UNREWARDED)

    def read(self, is_open: int, impression: int | None = None) -> list[SavedList]:
        """Read the lists with this value of ``is_open``, oldest first, or one of them."""
        which, values = ("", ()) if impression is None else (" AND impression = ?", (impression,))
        condition = f"agent = ? AND is_open = ?{which} ORDER BY arrival, shown_at"
        lists = []
        for row in self.run(f"SELECT {COLUMNS} FROM pool_list WHERE {condition}", self.agent, is_open, *values):
            name = SavedList(*row[:3]).name_row(row[3])
            body = unseal(self.title, self.agent, name, bytes(row[4]))
            lists.append(SavedList(*row[:3], *msgspec.msgpack.decode(body)))
        return lists
