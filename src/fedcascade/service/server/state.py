"""The state of a server, replayed from its log: the same uploads in the same order give the same bits."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from fedcascade.constants import list_texts
from fedcascade.federation.grouping.partition import Labels
from fedcascade.federation.holdings import ARRAYS, append_zeros, drop_row
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import can_factorise, find_smallest_lambda
from fedcascade.service.server import publication as published
from fedcascade.service.store.contract import Snapshot, Store
from fedcascade.service.store.epoch import NO_EPOCH, load_epoch
from fedcascade.service.store.snapshot import Piece, copy_changed, encode_state, gather_chunks, read_state

log = logging.getLogger("fedcascade.service")
STATE_FORMAT = 6  # raise with every change of a snapshot's content, also of ``Server.to_state``
UNKNOWN = b"?"


class ServerState:
    """A ``federation.Server`` whose agents join at their first uploads, and its position in the log."""

    def __init__(self, policy: Policy, dimension: int) -> None:
        self.policy = policy
        self.dimension = dimension
        self.position = self.observations = 0
        self.epoch = NO_EPOCH
        self.server = make_empty_server(policy, dimension)
        self._nothing, self._smallest_lambda = Statistics.zero(dimension), find_smallest_lambda(dimension)
        self.places: dict[int, int] = {}  # an agent's number in the store -> its place in the server's arrays
        self.agents = np.empty(0, np.int64)  # place -> number
        self.vacated: list[tuple[int, int]] = []  # for the journal: freed places, and the place that moved there
        self.resets = 0  # uploads that replaced all earlier ones of their agent
        self.changed: dict[int, int] = {}  # places changed since the snapshot of ``row_digests``, and where in the log
        self.publication = published.NOTHING  # the last prior that newcomers get
        self.uploaders: set[int] = set()  # agents with uploads since then; no more than a publication needs
        self.private: dict[int, int] = {}  # private uploads of each agent
        self._needed = published.MARGIN * (1 + (0 if policy.sharing is None else policy.sharing.min_others))
        self.row_digests: dict[str, list[bytes]] = {}  # of the chunks of the holdings' arrays; empty if unknown
        self.names: tuple[int, Labels] | None = None  # position of the journal, and cluster names by place

    @property
    def rounds(self) -> int:
        return self.server.rounds

    @property
    def clusters(self) -> int:
        return len(self.server.groups)

    @property
    def fullest(self) -> float:
        """Observations of the largest agent, as a share of the most that one may upload."""
        return float(self.server.holdings.count.max(initial=0)) / LARGEST_TOTAL

    @property
    def reward_rates(self) -> tuple[float, float]:
        """Clicks and rewards per list in the uploads of all agents, to 2 digits: no single upload shows."""
        if not self.rounds:
            return 0.0, 0.0
        held, rounds = self.server.holdings, self.rounds
        clicks = float(held.clicks.sum())
        return round(clicks / rounds, 2), round((clicks - float(held.shortfall.sum())) / rounds, 2)

    def get_labels(self, agents: Iterable[int] | None = None) -> dict[int, int]:
        """Return the group labels of agents that have uploaded, by default of all."""
        labels = self.server.groups.labels
        wanted = self.places if agents is None else agents
        return {agent: int(labels[self.places[agent]]) for agent in wanted if agent in self.places}

    def list_sizes(self, most: int) -> list[int]:
        """Return the sizes of the ``most`` largest groups, the largest first."""
        sizes = np.bincount(self.server.groups.labels)
        largest = np.sort(np.partition(sizes, -most)[-most:] if sizes.size > most else sizes)[::-1]
        return [size for size in largest.tolist() if size]

    @property
    def groups(self) -> int:
        """Number of groups of two agents or more; 0 while all agents are one population without groups."""
        return int((np.bincount(self.server.groups.labels) > 1).sum())

    def count_group(self, agent: int) -> int:
        """Return how many agents share the group of this one, itself included."""
        return self.server.groups.count_members(self.places[agent])

    def get_statistics(self, agent: int) -> Statistics:
        """Return what the server holds of an agent, without a copy: the next upload changes it."""
        return self.server.holdings.view(self.places[agent]) if agent in self.places else self._nothing

    def count_spent(self) -> list[tuple[float, int]]:
        """Return the epsilons that agents have spent, and the number of agents of each; nothing without privacy."""
        privacy, spent = self.policy.privacy, Counter[float]()
        if privacy is not None:
            for uploads, agents in Counter(list(self.private.values())).items():
                spent[privacy.measure_budget(uploads).spent] += agents
        return sorted(spent.items())

    def sum_statistics(self) -> Statistics:
        return self.server.holdings.total(np.arange(len(self.server.holdings)))

    def apply(self, upload: Upload, position: int) -> Statistics:
        """Apply the next upload of the log; return the agent's download.

        Refuse an upload that would make a sum unsolvable, before anything changes. The check uses the smallest lambda
        that a server of this dimension accepts, so that the log can be replayed under any other.
        """
        is_change = upload.cause is Cause.CHANGE
        before = self.get_statistics(upload.agent)
        kept = self._nothing if is_change else before
        after = upload.statistics.count + kept.count
        if after > LARGEST_TOTAL:
            raise Refused(507, "full", f"an agent may upload {LARGEST_TOTAL} observations, this would make {after}")
        total = self.observations + after - before.count
        is_private = self.policy.privacy is not None  # the server adds what ``discount`` makes of it
        if not (is_private or can_factorise(kept.gram, upload.statistics.gram, self._smallest_lambda)):
            raise Refused(422, "impossible", "gram must stay positive semi-definite when added to earlier uploads")
        place = self._find_place(upload.agent)
        self.resets += is_change
        placed = Upload(agent=place, sequence=upload.sequence, cause=upload.cause, statistics=upload.statistics)
        downloads = self.server.take(placed)
        self.position, self.observations, self.changed[place] = position, total, position
        if is_private:
            self.private[upload.agent] = upload.sequence
        if len(self.uploaders) < self._needed and position > self.publication.position:
            self.uploaders.add(upload.agent)
        for agent, download in downloads:
            if agent == place:  # other agents get their downloads when they upload
                return download
        raise AssertionError("the server did not answer the agent that uploaded")

    def answer(self, agent: int) -> Statistics:
        """Return the current download of an agent whose upload was counted before."""
        return self.server.answer(self.places[agent])

    def publish_prior(self, store: Store, now: float) -> None:
        """Publish the prior of newcomers if it is due and enough agents have uploaded since the last publication."""
        if len(self.uploaders) < self._needed or not self.publication.is_due(self.position, now):
            return
        prior = self.server.groups.prior_for_newcomer()
        if prior is None:
            return
        last = published.load_publication(store)
        if last == self.publication:  # otherwise another server of the store has published
            counts = {"system_rounds": wire.coarsen(self.rounds), "agents": wire.coarsen(len(self.places))}
            numbers = wire.pack_numbers(published.round_prior(prior, self.policy.lambda_))
            message = wire.PriorMessage(count=0, clicks=0, rounds=0, numbers=numbers, **counts)
            last = published.Publication(position=self.position, at=now, prior=message)
            published.save_publication(store, last)
        self.publication = last
        self.uploaders.clear()

    def expire_publication(self, store: Store, now: float) -> None:
        """Withdraw the last publication a day after the first deletion of an agent whose data it may hold."""
        last = published.load_publication(store)
        if last.prior is not None and last.expires is None:
            self.publication = msgspec.structs.replace(last, expires=now + published.DAY)
            published.save_publication(store, self.publication)

    def get_prior(self, agent: int, now: float) -> wire.PriorMessage | None:
        """Return the published prior for an agent at enrolment; None if there is none, or if it has uploaded before."""
        expires = self.publication.expires
        is_sent = agent not in self.places and (expires is None or now < expires)
        return self.publication.prior if is_sent else None

    def forget(self, agent: int, position: int) -> None:
        self.position = position
        self.uploaders.discard(agent)
        self.private.pop(agent, None)
        place = self.places.pop(agent, None)
        if not self.places:
            self.server, self.agents = make_empty_server(self.policy, self.dimension), self.agents[:0].copy()
            self.observations, self.names = 0, None
            self.note_snapshot({}, position)
        elif place is not None:
            self.observations -= int(self.server.holdings.count[place])
            self.server.forget(place)
            last = self.agents.size - 1
            moved, self.agents = int(self.agents[last]), drop_row(self.agents, place)
            self.vacated.append((place, last))
            self.changed.pop(last, None)
            if place < last:
                self.changed[place] = position
                self.places[moved] = place

    def note_snapshot(self, row_digests: dict[str, list[bytes]], position: int) -> None:
        """Note the chunks of the snapshot in the store, and forget the changes up to its position."""
        self.row_digests = row_digests
        self.changed = {place: at for place, at in self.changed.items() if at > position}

    def _find_place(self, agent: int) -> int:
        """Return the agent's place in the arrays; add a new agent."""
        if agent not in self.places:
            self.places[agent], self.agents = self.server.join(), append_zeros(self.agents)
            self.agents[-1] = agent
        return self.places[agent]

    def dump(self) -> bytes:
        return encode_state(self.to_state())

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain values and arrays; the arrays are not copied."""
        return {
            "format": STATE_FORMAT,
            "origin": describe_origin(self.policy, self.dimension),
            "position": self.position,
            "places": self.agents,
            "resets": self.resets,
            "server": self.server.to_state() if self.places else None,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], policy: Policy, dimension: int) -> "ServerState | None":
        """Restore a state from ``to_state``; return None for another format, policy or dimension."""
        if state.get("format") != STATE_FORMAT or state.get("origin") != describe_origin(policy, dimension):
            return None
        restored = cls(policy, dimension)
        restored.position = state["position"]
        restored.agents = state["places"]
        restored.resets = state["resets"]
        restored.places = {agent: place for place, agent in enumerate(restored.agents.tolist())}
        if state["server"] is not None:
            restored.server = Server.from_state(state["server"], policy=policy, dimension=dimension)
            restored.observations = int(restored.server.holdings.count.sum())
        return restored


def make_empty_server(policy: Policy, dimension: int) -> Server:
    """Make a server without agents, which join it one by one."""
    server = Server(policy=policy, agents=1, dimension=dimension)
    server.forget(0)
    return server


def describe_origin(policy: Policy, dimension: int) -> str:
    """Describe what a state depends on beside the log, as a text to compare."""
    return repr((policy.name, list(list_texts(policy.describe_constants()).items()), dimension))


def replay_log(store: Store, policy: Policy, dimension: int, state: ServerState | None = None) -> ServerState:
    """Replay the log to its end, from ``state`` or else from the last snapshot."""
    rewritten = store.find_head().rewritten
    if state is None or rewritten > state.position:
        snapshot = store.read_snapshot()
        state = None if snapshot is None else _restore_state(snapshot, policy, dimension)
        state = state or ServerState(policy, dimension)
        state.publication = published.load_publication(store)
        if policy.privacy is not None:
            state.private = {each.agent: each.uploads for each in store.sum_by_agent(state.position)}
    for entry in store.read_entries(after=state.position):
        try:
            state.apply(entry.upload, entry.position)
        except Refused as refusal:
            upload = f"upload {entry.upload.sequence} of agent {entry.upload.agent}, entry {entry.position} of the log"
            raise ValueError(f"{upload}, cannot be replayed: {refusal}") from None
    state.position = max(state.position, rewritten)
    state.epoch = load_epoch(store)
    return state


def _restore_state(snapshot: Snapshot, policy: Policy, dimension: int) -> ServerState | None:
    decoded = read_state(snapshot.chunks)
    try:
        state = ServerState.from_state(decoded, policy, dimension)
    except ValueError as error:
        log.warning("the snapshot is invalid, so the whole log is read: %s", error)
        return None
    if state is not None and decoded["server"] is not None:
        state.row_digests = find_row_digests(decoded, snapshot.digests)
        state.names = (state.position, decoded["names"]) if "names" in decoded else None
    return state


def describe_changes(state: ServerState, *, is_whole: bool = False) -> Any:
    """Describe a state for a snapshot: changed rows, or all if ``is_whole``, and cluster names if they are current."""
    plain = track_rows(state.to_state(), state.changed, {} if is_whole else state.row_digests)
    is_named = state.names is not None and state.names[0] == state.position and not state.vacated
    return plain | {"names": state.names[1]} if is_named and state.names is not None else plain


def track_rows(state: dict[str, Any], changed: Iterable[int], digests: Mapping[str, list[bytes]]) -> Any:
    """Copy only the changed rows of the holdings' arrays; all rows of those whose digests are unknown."""
    if state["server"] is None:
        return state
    held, places = state["server"]["holdings"], np.fromiter(changed, np.int64)
    rows = {
        name: copy_changed(held[name], places if name in digests else None, digests.get(name, ())) for name in ARRAYS
    }
    return state | {"server": state["server"] | {"holdings": held | rows}}


def find_row_digests(state: dict[str, Any], digests: Sequence[bytes]) -> dict[str, list[bytes]]:
    """Map rows of the holdings' arrays to a snapshot's chunks; return nothing if the chunks do not match."""
    unknown = {name: [UNKNOWN] * state["server"]["holdings"][name].shape[0] for name in ARRAYS}
    tracked = track_rows(state, (), unknown)
    chunks = list(gather_chunks(tracked))
    if len(chunks) != len(digests):
        return {}
    for chunk, digest in zip(chunks, digests, strict=True):
        if isinstance(chunk, Piece):
            chunk.rows.digests[chunk.number] = digest
    return {name: tracked["server"]["holdings"][name].digests for name in ARRAYS}


def warm_up(policy: Policy, dimension: int) -> None:
    """Compile or load the code that uploads need, so that no agent waits for a compiler."""
    state = ServerState(policy, dimension)
    many, moment = 10_000 * dimension, np.full(dimension, 5_000 / np.sqrt(dimension))  # enough to make a group
    statistics = Statistics(10_000 * np.eye(dimension), moment, many, many // 2, many)
    for position in range(1, 8):
        cause = Cause.FORCED if position < 7 else Cause.CHANGE
        upload = Upload(agent=position % 3, sequence=position, cause=cause, statistics=statistics)
        state.apply(upload, position)
        state.answer(upload.agent)
        state.count_group(upload.agent)
    state.forget(0, 8)
