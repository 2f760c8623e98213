"""The content of a page as plain data: the whole view at a position of the log, or an update to a later position.

Both are computed from the journal, so all servers on a store show the same. Up to ``MAX_DETAILED`` agents are shown one
by one; more are counted in the database, so that views and updates stay small.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from fedcascade.service.store.contract import ClusterSizes, ExchangeRecord, Move, Store

MAX_DETAILED = 200  # agents
MAX_LATEST = 12  # exchanges
MAX_CLUSTERS = 60  # largest clusters of a summary
AGE_SAMPLE = 10_000  # agents whose ages represent all
REUSE_FACTOR = 20  # reuse a summary for 20x the time it took to compute
MAX_MOVES = 4_000
MAX_BINS = 120
SECOND = 1_000  # milliseconds
WIDTHS = tuple(
    SECOND * seconds for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400, 604_800)
)
AGES = tuple(SECOND * seconds for seconds in (10, 60, 300, 1_800, 3_600, 21_600, 86_400, 604_800))
# The columns of a page's rows, in the page's order.
AGENT_COLUMNS = attrgetter("agent", "last", "uploads", "rounds", "clicks", "cluster")
BIN_COLUMNS = attrgetter("number", "cause", "exchanges", "rounds", "count", "clicks", "clusters")
EXCHANGE_COLUMNS = attrgetter("position", "at", "agent", "cause", "rounds", "clicks")
MOVE_COLUMNS = attrgetter("at", "agent", "cluster")
REFUSED = "refused"  # the setting with counts of refused uploads by reason
Plain = dict[str, Any]
Measure = tuple[str, int, float, int]  # series, round, regret and reward of a simulated run


@dataclass(frozen=True)
class Crowd:
    """A summary of many agents: their number, sizes of clusters, and times since their last exchanges."""

    members: int
    sizes: Plain
    ages: list[int]
    at: float  # time of the summary, in seconds of a monotonic clock
    cost: float  # seconds to compute it

    @property
    def is_stale(self) -> bool:
        """Staleness of the summary: computing summaries takes at most a twentieth of the time."""
        return time.monotonic() - self.at > REUSE_FACTOR * self.cost


@dataclass
class FeedState:
    """The state from which updates are computed: cluster and last exchange of each agent, or a summary of many."""

    position: int = 0
    measure: int = 0
    clusters: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    crowd: Crowd | None = None


def read_feed_state(store: Store, position: int, now: int, crowd: Crowd | None = None) -> FeedState:
    """Read the state at a position; ``crowd`` is an earlier summary, which is reused if it is not stale."""
    state = FeedState(position, refused=read_refusals(store))
    state.crowd = count_crowd(store, position, now) if crowd is None or crowd.is_stale else crowd
    if state.crowd is None:
        agents = store.sum_by_agent(position)
        state.clusters = {totals.agent: totals.cluster for totals in agents if totals.cluster}
        state.last = {totals.agent: totals.last for totals in agents}
    return state


def count_crowd(store: Store, position: int, now: int) -> Crowd | None:
    """Summarise the agents in the store; return None for at most ``MAX_DETAILED`` of them."""
    began = time.monotonic()
    sizes = store.count_sizes(position, MAX_CLUSTERS)
    if sizes.agents <= MAX_DETAILED:
        return None
    last = (totals.last for totals in store.sum_by_agent(position, AGE_SAMPLE))
    ages = scale_counts(count_ages(last, now), sizes.agents)
    ended = time.monotonic()
    return Crowd(sizes.agents, summarise_sizes(sizes), ages, ended, ended - began)


def read_refusals(store: Store) -> dict[str, int]:
    """Read the counts of refused uploads by reason."""
    counts: dict[str, int] = json.loads(store.get_setting(REFUSED) or "{}")
    return counts


def add_refusals(store: Store, counts: Mapping[str, int]) -> None:
    """Add to the counts of refused uploads in the store."""
    totals = read_refusals(store)
    for reason, count in counts.items():
        totals[reason] = totals.get(reason, 0) + count
    store.set_setting(REFUSED, json.dumps(totals, sort_keys=True))


def build_view(store: Store, position: int, now: int | None, crowd: Crowd | None = None) -> Plain:
    """Build the whole view at a position.

    ``now`` is by default the time of the last exchange. ``crowd`` is a summary of many agents, if there is one already.
    """
    causes = store.sum_by_interval(position, 0, 1 << 62)
    first = min((totals.first for totals in causes), default=0)
    last = max((totals.last for totals in causes), default=0)
    now = last if now is None else now
    width = choose_bin_width(first or now, now)
    bins = list(map(BIN_COLUMNS, store.sum_by_interval(position, first, width)))
    latest = store.read_changes(max(0, position - MAX_LATEST), position).exchanges
    crowd = crowd or count_crowd(store, position, now)
    return {
        "position": position,
        "at": now,
        "first": first,
        "last": last,
        "detailed": crowd is None,
        "enrolled": store.list_agents(0, 0).enrolled,
        "uploads": sum(totals.exchanges for totals in causes),
        "rounds": sum(totals.rounds for totals in causes),
        "clicks": sum(totals.clicks for totals in causes),
        "causes": {totals.cause: totals.exchanges for totals in causes},
        "bins": {"since": first, "width": width, "rows": bins},
        "latest": list(map(EXCHANGE_COLUMNS, latest)),
        "refused": read_refusals(store),
        **(describe_agents(store, position, now) if crowd is None else describe_crowd(crowd)),
    }


def describe_agents(store: Store, position: int, now: int) -> Plain:
    """Describe agents one by one, as a part of a view."""
    agents = store.sum_by_agent(position)
    return {
        "members": len(agents),
        "clusters": len({totals.cluster for totals in agents if totals.cluster}),
        "agents": list(map(AGENT_COLUMNS, agents)),
        "moves": list(map(MOVE_COLUMNS, store.read_changes(0, position).moves[-MAX_MOVES:])),
        "sizes": summarise_sizes(store.count_sizes(position, MAX_CLUSTERS)),
        "ages": count_ages((totals.last for totals in agents), now),
    }


def describe_crowd(crowd: Crowd) -> Plain:
    """Describe a summary of many agents, as a part of a view."""
    clusters = crowd.sizes["others"] + len(crowd.sizes["largest"])
    shown = {"members": crowd.members, "clusters": clusters, "sizes": crowd.sizes, "ages": crowd.ages}
    return {**shown, "agents": None, "moves": None}


def build_update(
    state: FeedState, store: Store, position: int, now: int, measures: Sequence[Measure] = ()
) -> Plain | None:
    """Build an update since ``state``, which changes in place; return None if nothing changed."""
    after, refused = state.position, read_refusals(store)
    exchanges, moves = store.read_changes(after, position)
    state.position, state.measure = position, state.measure + len(measures)
    if not (exchanges or moves or measures or refused != state.refused):
        return None
    state.refused = refused
    if state.crowd is None:
        state.clusters |= {move.agent: move.cluster for move in moves}
        state.last |= {exchange.agent: exchange.at for exchange in exchanges}
    if len(state.last) > MAX_DETAILED or (state.crowd is not None and state.crowd.is_stale):
        state.crowd, state.clusters, state.last = count_crowd(store, position, now), {}, {}
    return {
        "after": after,
        "position": position,
        "at": now,
        "uploads": len(exchanges),
        "rows": _sum_by_second(exchanges),
        "latest": list(map(EXCHANGE_COLUMNS, exchanges[-MAX_LATEST:])),
        "refused": refused,
        "measures": list(measures),
        "detailed": state.crowd is None,
        **_describe_changes(state, exchanges, moves),
    }


def _describe_changes(state: FeedState, exchanges: Sequence[ExchangeRecord], moves: Sequence[Move]) -> Plain:
    """Describe changes of agents, as a part of an update."""
    if state.crowd is None:
        counts = {"members": len(state.last), "clusters": len(set(state.clusters.values()))}
        return {**counts, "agents": _sum_by_agent(exchanges), "moves": list(map(MOVE_COLUMNS, moves))}
    shown = describe_crowd(state.crowd)
    clusters = exchanges[-1].clusters if exchanges else shown["clusters"]
    return {**{name: shown[name] for name in ("members", "ages", "sizes")}, "clusters": clusters}


def choose_bin_width(since: int, until: int) -> int:
    """Choose the narrowest round width with at most ``MAX_BINS`` bins; all in milliseconds.

    >>> choose_bin_width(0, 100_000), choose_bin_width(0, 86_400_000)
    (1000, 1800000)
    """
    return next((width for width in WIDTHS if (until - since) <= width * MAX_BINS), WIDTHS[-1])


def summarise_sizes(sizes: ClusterSizes) -> Plain:
    """Summarise the sizes of clusters: the largest ones, a histogram, and the rest."""
    return {
        "largest": [list(pair) for pair in sizes.largest],
        "others": sizes.clusters - len(sizes.largest),
        "others_agents": sizes.agents - sum(size for _, size in sizes.largest),
        "histogram": [list(pair) for pair in sizes.histogram[:MAX_CLUSTERS]],
    }


def scale_counts(counts: Sequence[int], total: int) -> list[int]:
    """Scale the counts of a sample to a total, in integers.

    >>> scale_counts([2, 1, 0], 100), scale_counts([0, 0], 5)
    ([67, 33, 0], [0, 0])
    """
    shares = np.cumsum(counts) * total / max(1, sum(counts))
    return [int(count) for count in np.diff(np.round(shares), prepend=0.0)]


def count_ages(last: Iterable[int], now: int) -> list[int]:
    """Count agents by the time since their last exchange: one count per entry of ``AGES``, and one for older ones.

    >>> count_ages([95_000, 99_000, 1], 100_000)
    [2, 0, 1, 0, 0, 0, 0, 0, 0]
    """
    elapsed = now - np.fromiter(last, np.int64)
    counts = np.bincount(np.searchsorted(AGES, elapsed, side="right"), minlength=len(AGES) + 1)
    return [int(count) for count in counts]


def _sum_by_second(exchanges: Sequence[ExchangeRecord]) -> list[list[object]]:
    """Sum exchanges by second and cause, in the columns of bins."""
    sums: dict[tuple[int, str], list[int]] = {}
    for exchange in exchanges:
        row = sums.setdefault((exchange.at // SECOND * SECOND, exchange.cause), [0, 0, 0, 0, 0])
        for place, value in enumerate((1, exchange.rounds, exchange.count, exchange.clicks)):
            row[place] += value
        row[4] = exchange.clusters
    return [[at, cause, *row] for (at, cause), row in sums.items()]


def _sum_by_agent(exchanges: Sequence[ExchangeRecord]) -> list[list[int]]:
    """Sum exchanges by agent: time of the last one, uploads, rounds and clicks."""
    sums: dict[int, list[int]] = {}
    for exchange in exchanges:
        row = sums.setdefault(exchange.agent, [exchange.agent, 0, 0, 0, 0])
        row[1] = exchange.at
        for place, value in enumerate((1, exchange.rounds, exchange.clicks), 2):
            row[place] += value
    return list(sums.values())
