"""What a page shows, as plain data: the whole view at one position of the log, or an update from one to the next.

Both come from the journal alone, so every server on a store gives the same. Up to ``DETAILED`` agents are shown one by
one; more are summarised, so that a view and an update stay small however many there are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from fedcascade.service.store.contract import Store
from fedcascade.service.store.journal import ExchangeRecord

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
# The columns of a page's rows, in the page's order.
AGENT_COLUMNS = attrgetter("agent", "last", "uploads", "rounds", "clicks")
BIN_COLUMNS = attrgetter("number", "cause", "exchanges", "rounds", "count", "clicks", "clusters")
EXCHANGE_COLUMNS = attrgetter("position", "at", "agent", "cause", "rounds", "clicks")
MEASURE_COLUMNS = attrgetter("series", "round", "regret", "reward")
MOVE_COLUMNS = attrgetter("at", "agent", "cluster")
Plain = dict[str, Any]


@dataclass
class FeedState:
    """What the reader of a journal remembers to make updates: where agents are, and when each last spoke."""

    position: int = 0
    measure: int = 0
    clusters: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)


def read_feed_state(store: Store, position: int, now: int) -> FeedState:
    """Read everything up to a position."""
    measures = store.read_measures(0, now)
    return FeedState(
        position=position,
        measure=measures[-1].number if measures else 0,
        clusters=store.read_clusters(position),
        last={totals.agent: totals.last for totals in store.sum_by_agent(position)},
        refused=store.count_refusals(now),
    )


def build_view(store: Store, position: int, now: int, span: int | None = None) -> Plain:
    """Build the whole view at a position; ``span`` is how many milliseconds before it the curves begin."""
    agents, clusters = store.sum_by_agent(position), store.read_clusters(position)
    first, last = store.find_time_range(position)
    since = max(first, last - span) if span else first
    width = choose_bin_width(since or now, now)
    bins = list(map(BIN_COLUMNS, store.sum_by_interval(position, since, width)))
    detailed = len(agents) <= DETAILED
    return {
        "position": position,
        "at": now,
        "first": first,
        "last": last,
        "detailed": detailed,
        "enrolled": store.count_agents(),
        "members": len(agents),
        "uploads": sum(totals.uploads for totals in agents),
        "rounds": sum(totals.rounds for totals in agents),
        "clicks": sum(totals.clicks for totals in agents),
        "clusters": len(set(clusters.values())),
        "agents": [(*AGENT_COLUMNS(totals), clusters.get(totals.agent, 0)) for totals in agents] if detailed else None,
        "moves": list(map(MOVE_COLUMNS, store.read_moves(0, position)[-MOVES:])) if detailed else None,
        "sizes": summarise_sizes(clusters),
        "ages": count_ages((totals.last for totals in agents), now),
        "causes": _count_causes(store, position),
        "bins": {"since": since, "width": width, "rows": bins},
        "latest": list(map(EXCHANGE_COLUMNS, store.read_exchanges(max(0, position - LATEST), position))),
        "measures": list(map(MEASURE_COLUMNS, store.read_measures(0, now))),
        "refused": store.count_refusals(now),
    }


def build_update(state: FeedState, store: Store, position: int, now: int) -> Plain | None:
    """Build what changed since ``state``, which is brought up to date; None if nothing changed."""
    after = state.position
    exchanges, moves = store.read_exchanges(after, position), store.read_moves(after, position)
    measures, refused = store.read_measures(state.measure, now), store.count_refusals(now)
    state.position = position
    if not (exchanges or moves or measures or refused != state.refused):
        return None
    state.clusters |= {move.agent: move.cluster for move in moves}
    state.last |= {exchange.agent: exchange.at for exchange in exchanges}
    state.refused = refused
    state.measure = measures[-1].number if measures else state.measure
    detailed = len(state.last) <= DETAILED
    update: Plain = {
        "after": after,
        "position": position,
        "at": now,
        "uploads": len(exchanges),
        "members": len(state.last),
        "clusters": len(set(state.clusters.values())),
        "rows": _sum_by_second(exchanges),
        "latest": list(map(EXCHANGE_COLUMNS, exchanges[-LATEST:])),
        "refused": refused,
        "measures": list(map(MEASURE_COLUMNS, measures)),
        "detailed": detailed,
    }
    if detailed:
        update |= {"agents": _sum_by_agent(exchanges), "moves": list(map(MOVE_COLUMNS, moves))}
    else:
        update |= {"ages": count_ages(state.last.values(), now)}
        update |= {"sizes": summarise_sizes(state.clusters)} if moves else {}
    return update


def choose_bin_width(since: int, until: int) -> int:
    """Choose the narrowest round width of which few enough span the time; all in milliseconds.

    >>> choose_bin_width(0, 100_000), choose_bin_width(0, 86_400_000)
    (1000, 1800000)
    """
    return next((width for width in WIDTHS if (until - since) <= width * BINS), WIDTHS[-1])


def summarise_sizes(clusters: Mapping[int, int]) -> Plain:
    """Summarise the sizes of clusters: the largest, how many there are of each size, and how many are left out."""
    sizes = Counter(clusters.values())
    largest = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "largest": [list(pair) for pair in largest[:LARGEST]],
        "others": len(largest[LARGEST:]),
        "others_agents": sum(size for _, size in largest[LARGEST:]),
        "histogram": sorted([size, count] for size, count in Counter(sizes.values()).items())[:LARGEST],
    }


def count_ages(last: Iterable[int], now: int) -> list[int]:
    """Count how many agents last spoke how long ago: one count for each of ``AGES`` and one for what is older.

    >>> count_ages([95_000, 99_000, 1], 100_000)
    [2, 0, 1, 0, 0, 0, 0, 0, 0]
    """
    elapsed = now - np.fromiter(last, np.int64)
    counts = np.bincount(np.searchsorted(AGES, elapsed, side="right"), minlength=len(AGES) + 1)
    return [int(count) for count in counts]


def _count_causes(store: Store, position: int) -> dict[str, int]:
    """Count all exchanges by cause, also those of an unknown time."""
    counts: Counter[str] = Counter()
    for totals in store.sum_by_interval(position, 0, 1 << 62):
        counts[totals.cause] += totals.exchanges
    return dict(sorted(counts.items()))


def _sum_by_second(exchanges: Sequence[ExchangeRecord]) -> list[list[object]]:
    """Sum exchanges by second and cause, with the columns of the bins that cover longer spans."""
    sums: dict[tuple[int, str], list[int]] = {}
    for exchange in exchanges:
        row = sums.setdefault((exchange.at // SECOND * SECOND, exchange.cause), [0, 0, 0, 0, 0])
        for place, value in enumerate((1, exchange.rounds, exchange.count, exchange.clicks)):
            row[place] += value
        row[4] = exchange.clusters
    return [[at, cause, *row] for (at, cause), row in sums.items()]


def _sum_by_agent(exchanges: Sequence[ExchangeRecord]) -> list[list[int]]:
    """Sum what each agent that spoke added: its last time, uploads, rounds and clicks."""
    sums: dict[int, list[int]] = {}
    for exchange in exchanges:
        row = sums.setdefault(exchange.agent, [exchange.agent, 0, 0, 0, 0])
        row[1] = exchange.at
        for place, value in enumerate((1, exchange.rounds, exchange.clicks), 2):
            row[place] += value
    return list(sums.values())
