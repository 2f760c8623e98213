"""The ledger of a simulation: every exchange, in little memory."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from fedcascade.federation.messages import Cause

CAUSES = tuple(Cause)


@dataclass(frozen=True)
class Exchange:
    """One line of the ledger: which agent uploaded when and why, and how many bytes travelled."""

    round: int
    agent: int
    cause: Cause
    bytes_up: int
    bytes_down: int


class Ledger(Sequence[Exchange]):
    """A sequence of exchanges that is kept in columns: 29 bytes for each.

    >>> ledger = Ledger([Exchange(3, 0, Cause.FORCED, 80, 80)])
    >>> ledger.append(Exchange(5, 1, Cause.PUSH, 0, 80))
    >>> len(ledger), ledger[-1].agent, ledger.count_cause(Cause.PUSH), ledger.sum_bytes()
    (2, 1, 1, (80, 160))
    """

    def __init__(self, exchanges: Iterable[Exchange] = ()) -> None:
        self._rounds, self._agents, self._causes = array("q"), array("i"), array("b")
        self._bytes_up, self._bytes_down = array("q"), array("q")
        self.extend(exchanges)

    def append(self, exchange: Exchange) -> None:
        self._rounds.append(exchange.round)
        self._agents.append(exchange.agent)
        self._causes.append(CAUSES.index(exchange.cause))
        self._bytes_up.append(exchange.bytes_up)
        self._bytes_down.append(exchange.bytes_down)

    def extend(self, exchanges: Iterable[Exchange]) -> None:
        for exchange in exchanges:
            self.append(exchange)

    def count_cause(self, cause: Cause) -> int:
        """How many exchanges had this cause."""
        return self._causes.count(CAUSES.index(cause))

    def sum_bytes(self) -> tuple[int, int]:
        """How many bytes travelled up and down."""
        return sum(self._bytes_up), sum(self._bytes_down)

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[Exchange]:
        for round_, agent, cause, up, down in zip(*self._columns, strict=True):
            yield Exchange(round_, agent, CAUSES[cause], up, down)

    @overload
    def __getitem__(self, place: int) -> Exchange: ...
    @overload
    def __getitem__(self, place: slice) -> "Ledger": ...
    def __getitem__(self, place: int | slice) -> "Exchange | Ledger":
        if isinstance(place, slice):
            return Ledger(self[i] for i in range(*place.indices(len(self))))
        round_, agent, cause, up, down = (column[place] for column in self._columns)
        return Exchange(round_, agent, CAUSES[cause], up, down)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ledger):
            return self._columns == other._columns
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Exchange.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(tuple(map(bytes, self._columns)))

    def __repr__(self) -> str:
        return f"Ledger({list(self)!r})"

    @property
    def _columns(self) -> tuple["array[int]", ...]:
        return self._rounds, self._agents, self._causes, self._bytes_up, self._bytes_down
