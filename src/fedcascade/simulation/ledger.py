"""The ledger of a simulation: all exchanges, in compact columns."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

from fedcascade.federation.messages import Cause

CAUSES = tuple(Cause)


class LedgerEntry(NamedTuple):
    """An exchange: its round, agent and cause, and the bytes of upload and download."""

    round: int
    agent: int
    cause: Cause
    bytes_up: int
    bytes_down: int


class ExchangeLedger(Sequence[LedgerEntry]):
    """A sequence of exchanges, stored in columns with 29 bytes per exchange.

    >>> ledger = ExchangeLedger([LedgerEntry(3, 0, Cause.FORCED, 80, 80)])
    >>> ledger.append(LedgerEntry(5, 1, Cause.PUSH, 0, 80))
    >>> len(ledger), ledger[-1].agent, ledger.count_cause(Cause.PUSH), ledger.sum_bytes()
    (2, 1, 1, (80, 160))
    """

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self._columns = array("q"), array("i"), array("b"), array("q"), array("q")
        self.extend(entries)

    def append(self, entry: LedgerEntry) -> None:
        rounds, agents, causes, bytes_up, bytes_down = self._columns
        rounds.append(entry.round)
        agents.append(entry.agent)
        causes.append(CAUSES.index(entry.cause))
        bytes_up.append(entry.bytes_up)
        bytes_down.append(entry.bytes_down)

    def extend(self, entries: Iterable[LedgerEntry]) -> None:
        for entry in entries:
            self.append(entry)

    def count_cause(self, cause: Cause) -> int:
        """Return the number of exchanges with a cause."""
        return self._columns[2].count(CAUSES.index(cause))

    def sum_bytes(self) -> tuple[int, int]:
        """Return the bytes of all uploads and of all downloads."""
        return sum(self._columns[3]), sum(self._columns[4])

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[LedgerEntry]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, place: int) -> LedgerEntry: ...
    @overload
    def __getitem__(self, place: slice) -> "ExchangeLedger": ...
    def __getitem__(self, place: int | slice) -> "LedgerEntry | ExchangeLedger":
        if isinstance(place, slice):
            return ExchangeLedger(self[i] for i in range(*place.indices(len(self))))
        round_, agent, cause, up, down = (column[place] for column in self._columns)
        return LedgerEntry(round_, agent, CAUSES[cause], up, down)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExchangeLedger):
            return self._columns == other._columns
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(map(bytes, self._columns)))

    def __repr__(self) -> str:
        return f"ExchangeLedger({list(self)!r})"
