"""What a page shows, as plain data: a whole picture at one position of the log, or a frame from one to the next.

Both come from the journal alone, so every server on a store gives the same. Up to ``DETAILED`` agents are shown one by
one; more are summarised, so that a picture and a frame stay small however many there are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcascade.service.store.contract import Store
from fedcascade.service.store.journal import ExchangeRecord, IntervalTotals, Measure

DETAILED = 200
LATEST = 12
LARGEST = 60
MOVES = 4_000
BINS = 120
SECOND = 1_000
WIDTHS = tuple(
    SECOND * seconds for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400, 604_800)
)
AGES = tuple(SECOND * seconds for seconds in (10, 60, 300, 1_800, 3_600, 21_600, 86_400, 604_800))
Plain = dict[str, Any]


@dataclass
class Known:
    """What the reader of a journal has to remember to make frames: where agents are, and when they last spoke."""

    position: int = 0
    measure: int = 0
    clusters: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def detailed(self) -> bool:
        """Whether agents are shown one by one."""
        return len(self.last) <= DETAILED


def known_at(store: Store, position: int, now: int) -> Known:
    """Everything up to a position."""
    measures = store.read_measures(0, now)
    return Known(
        position=position,
        measure=measures[-1].number if measures else 0,
        clusters=store.read_clusters(position),
        last={tally.agent: tally.last for tally in store.sum_by_agent(position)},
        refused=store.count_refusals(now),
    )


def picture(store: Store, position: int, now: int, span: int | None = None) -> Plain:
    """The whole picture at a position of the log; ``span`` is how many milliseconds before it the curves begin."""
    tallies, clusters = store.sum_by_agent(position), store.read_clusters(position)
    first, last = store.find_time_range(position)
    since = max(first, last - span) if span else first
    width = bin_width(since or now, now)
    bins = store.sum_by_interval(position, since, width)
    detailed = len(tallies) <= DETAILED
    return {
        "position": position,
        "at": now,
        "first": first,
        "last": last,
        "detailed": detailed,
        "enrolled": store.count_agents(),
        "members": len(tallies),
        "uploads": sum(tally.uploads for tally in tallies),
        "rounds": sum(tally.rounds for tally in tallies),
        "clicks": sum(tally.clicks for tally in tallies),
        "clusters": len(set(clusters.values())),
        "agents": [
            [one.agent, one.last, one.uploads, one.rounds, one.clicks, clusters.get(one.agent, 0)] for one in tallies
        ]
        if detailed
        else None,
        "moves": river(store, position) if detailed else None,
        "sizes": sizes(clusters),
        "ages": ages((tally.last for tally in tallies), now),
        "causes": causes(store, position),
        "bins": {"since": since, "width": width, "rows": [bin_row(one) for one in bins]},
        "latest": latest(store.read_exchanges(max(0, position - LATEST), position)),
        "measures": [measure_row(one) for one in store.read_measures(0, now)],
        "refused": store.count_refusals(now),
    }


def frame(known: Known, store: Store, position: int, now: int) -> Plain | None:
    """What changed since; None if nothing did. ``known`` is brought up to date."""
    after = known.position
    noted = store.read_exchanges(after, position)
    moves = store.read_moves(after, position)
    measures = store.read_measures(known.measure, now)
    refused = store.count_refusals(now)
    if not (noted or moves or measures or refused != known.refused):
        known.position = position
        return None
    known.position = position
    known.clusters |= {move.agent: move.cluster for move in moves}
    known.last |= {one.agent: one.at for one in noted}
    known.refused = refused
    known.measure = measures[-1].number if measures else known.measure
    told: Plain = {
        "after": after,
        "position": position,
        "at": now,
        "uploads": len(noted),
        "members": len(known.last),
        "clusters": len(set(known.clusters.values())),
        "rows": second_rows(noted),
        "latest": latest(noted[-LATEST:]),
        "refused": refused,
        "measures": [measure_row(one) for one in measures],
        "detailed": known.detailed,
    }
    if known.detailed:
        told |= {"agents": agent_rows(noted), "moves": [[one.at, one.agent, one.cluster] for one in moves]}
    else:
        told |= {"ages": ages(known.last.values(), now)}
        told |= {"sizes": sizes(known.clusters)} if moves else {}
    return told


def bin_width(since: int, until: int) -> int:
    """The narrowest round width of which few enough span the time.

    >>> bin_width(0, 100_000), bin_width(0, 86_400_000)
    (1000, 1800000)
    """
    return next((width for width in WIDTHS if (until - since) <= width * BINS), WIDTHS[-1])


def sizes(clusters: Mapping[int, int]) -> Plain:
    """The largest clusters, how many there are of which size, and what is left."""
    counted = Counter(clusters.values())
    largest = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "largest": [list(pair) for pair in largest[:LARGEST]],
        "others": len(largest[LARGEST:]),
        "others_agents": sum(size for _, size in largest[LARGEST:]),
        "histogram": sorted([size, count] for size, count in Counter(counted.values()).items())[:LARGEST],
    }


def ages(last: Iterable[int], now: int) -> list[int]:
    """How many agents last spoke how long ago; one count for each of ``AGES`` and one for what is older.

    >>> ages([95_000, 99_000, 1], 100_000)
    [2, 0, 1, 0, 0, 0, 0, 0, 0]
    """
    elapsed = now - np.fromiter(last, np.int64)
    counted = np.bincount(np.searchsorted(AGES, elapsed, side="right"), minlength=len(AGES) + 1)
    return [int(count) for count in counted]


def causes(store: Store, position: int) -> dict[str, int]:
    """All exchanges by cause, also those of an unknown time."""
    counted: Counter[str] = Counter()
    for one in store.sum_by_interval(position, 0, 1 << 62):
        counted[one.cause] += one.exchanges
    return dict(sorted(counted.items()))


def river(store: Store, position: int) -> list[list[int]]:
    """Who was placed where when; the latest of them if there are very many."""
    return [[one.at, one.agent, one.cluster] for one in store.read_moves(0, position)[-MOVES:]]


def second_rows(noted: Sequence[ExchangeRecord]) -> list[list[object]]:
    """Exchanges summed by second and cause, as ``bins`` has them for longer spans."""
    sums: dict[tuple[int, str], list[int]] = {}
    for one in noted:
        row = sums.setdefault((one.at // SECOND * SECOND, one.cause), [0, 0, 0, 0, 0])
        for place, value in enumerate((1, one.rounds, one.count, one.clicks)):
            row[place] += value
        row[4] = one.clusters
    return [[at, cause, *row] for (at, cause), row in sums.items()]


def agent_rows(noted: Sequence[ExchangeRecord]) -> list[list[int]]:
    """What each agent that spoke added: its last time, uploads, rounds and clicks."""
    sums: dict[int, list[int]] = {}
    for one in noted:
        row = sums.setdefault(one.agent, [one.agent, 0, 0, 0, 0])
        row[1] = one.at
        for place, value in enumerate((1, one.rounds, one.clicks), 2):
            row[place] += value
    return list(sums.values())


def latest(noted: Sequence[ExchangeRecord]) -> list[list[object]]:
    """The last exchanges one by one."""
    return [[one.position, one.at, one.agent, one.cause, one.rounds, one.clicks] for one in noted]


def bin_row(one: IntervalTotals) -> list[object]:
    """A bin as it travels."""
    return [one.number, one.cause, one.exchanges, one.rounds, one.count, one.clicks, one.clusters]


def measure_row(one: Measure) -> list[object]:
    """A measure as it travels."""
    return [one.series, one.round, one.regret, one.reward]
