"""The state of a server, replayed from its log: the same uploads in the same order give the same bits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import ARRAYS, append_zeros, drop_row
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import can_factorise, find_smallest_lambda
from fedcascade.service.store.contract import Snapshot, Store
from fedcascade.service.store.epoch import NO_EPOCH, load_epoch
from fedcascade.service.store.snapshot import Piece, copy_changed, encode_state, gather_chunks, read_state

STATE_FORMAT = 6  # grows with every change of what a snapshot holds, also inside ``Server.to_state``
UNKNOWN = b"?"
Integers = NDArray[np.int64]


class ServerState:
    """A ``federation.Server`` that meets its agents at their first uploads, and knows how far it has read."""

    def __init__(self, policy: Policy, dimension: int) -> None:
        self.policy = policy
        self.dimension = dimension
        self.position = self.observations = 0
        self.epoch = NO_EPOCH
        self.server: Server | None = None
        self._nothing, self._smallest_lambda = np.zeros((dimension, dimension)), find_smallest_lambda(dimension)
        self.places: dict[int, int] = {}  # an agent's number in the store -> its place in the server's arrays
        self.agents = np.empty(0, np.int64)  # and back
        self.vacated: list[tuple[int, int]] = []  # places of the forgotten, and of who has each since; for the journal
        self.resets = 0  # uploads that replaced all earlier ones of their agent
        self.changed: set[int] = set()  # places whose statistics are others than in the snapshot of ``row_digests``
        self.changed_lately: set[int] = set()  # since the snapshot was begun that is on its way into the store
        self._welcome: tuple[int, Download | None] = (-1, None)  # what newcomers are told at a position of the log
        self.row_digests: dict[str, list[bytes]] = {}  # of the chunks of the holdings' arrays; none if not known
        self.names: tuple[int, Integers] | None = None  # of the cluster of each place, in the journal at a position

    @property
    def rounds(self) -> int:
        return 0 if self.server is None else self.server.rounds

    @property
    def clusters(self) -> int:
        return 0 if self.server is None else len(self.server.groups)

    def list_agents(self) -> tuple[Integers, Integers, Integers]:
        """The agents that have spoken, in the order of their places; the label and the observations of each."""
        if self.server is None:
            return self.agents, self.agents, self.agents
        return self.agents, self.server.groups.labels, self.server.holdings.count

    def get_labels(self) -> dict[int, int]:
        """The label of the group of every agent that has spoken."""
        return self.get_labels_of(self.places)

    def get_labels_of(self, agents: Iterable[int]) -> dict[int, int]:
        """The label of the group of each of these agents that has spoken."""
        labels = () if self.server is None else self.server.groups.labels
        return {agent: int(labels[self.places[agent]]) for agent in agents if agent in self.places}

    def list_sizes(self, most: int) -> list[int]:
        """How many agents the largest groups have, at most so many groups, the largest first."""
        if self.server is None:
            return []
        sizes = np.bincount(self.list_agents()[1])
        largest = np.sort(np.partition(sizes, -most)[-most:] if sizes.size > most else sizes)[::-1]
        return [size for size in largest.tolist() if size]

    def count_group(self, agent: int) -> int:
        """How many agents share the group of this one, itself included."""
        assert self.server is not None
        return self.server.groups.count_members(self.places[agent])

    def count_held(self, agent: int) -> tuple[int, int]:
        """How many observations and rounds the server holds of an agent; none of one that has not spoken."""
        if self.server is None or agent not in self.places:
            return 0, 0
        place = self.places[agent]
        return int(self.server.holdings.count[place]), int(self.server.holdings.rounds[place])

    def get_statistics(self, agent: int) -> Statistics:
        if self.server is None or agent not in self.places:
            return Statistics.zero(self.dimension)
        return self.server.holdings[self.places[agent]]

    def sum_statistics(self) -> Statistics:
        if self.server is None:
            return Statistics.zero(self.dimension)
        return self.server.holdings.total(np.arange(len(self.server.holdings)))

    def apply(self, upload: Upload, position: int) -> Download:
        """Take the next upload of the log; return the agent's download.

        Refuse an upload whose sums with what is held could not be worked with, before anything has changed. The sums
        are tried with the smallest lambda that any server of this dimension takes, so that the log can be replayed
        under every other one.
        """
        is_change = upload.cause is Cause.CHANGE
        replaced = self.count_held(upload.agent)[0] if is_change else 0
        total = self.observations + upload.statistics.count - replaced
        if total > LARGEST_TOTAL:
            raise Refused(507, "full", f"a server holds at most {LARGEST_TOTAL} observations, this would make {total}")
        place = None if is_change or self.server is None else self.places.get(upload.agent)
        held = self._nothing if self.server is None or place is None else self.server.holdings.gram[place]
        if not can_factorise(held, upload.statistics.gram, self._smallest_lambda):
            raise Refused(422, "impossible", "gram must stay positive semi-definite when added to earlier uploads")
        place = self._find_place(upload.agent)
        assert self.server is not None
        self.resets += is_change
        placed = Upload(agent=place, sequence=upload.sequence, cause=upload.cause, statistics=upload.statistics)
        downloads = self.server.take(placed)
        self._note_change(place)
        self.position, self.observations = position, total
        for download in downloads:
            if download.agent == place:  # other agents get their downloads when they upload
                return download
        raise AssertionError("a server answers the agent that uploads")

    def answer(self, agent: int) -> Download:
        """The download of an agent whose upload was counted before: what its group holds now."""
        assert self.server is not None
        return self.server.answer(self.places[agent])

    def welcome(self, agent: int) -> Download | None:
        """What an agent is told when it enrols; None where nothing is known, or where it has spoken before."""
        if self.server is None or agent in self.places:
            return None
        position, known = self._welcome
        if position != self.position:  # many may enrol between two uploads
            known = self.server.make_prior(agent)
            self._welcome = self.position, known
        return known if known is None else replace(known, agent=agent)

    def forget(self, agent: int, position: int) -> None:
        """Remove an agent; what is left holds nothing of it."""
        self.position = position
        place = self.places.pop(agent, None)
        if not self.places:
            self.server, self.agents, self.observations = None, self.agents[:0].copy(), 0
            self.note_snapshot({}, set())
        elif place is not None and self.server is not None:
            self.observations -= int(self.server.holdings.count[place])
            self.server.forget(place)
            self._fill_place(place)

    def _fill_place(self, gone: int) -> None:
        """Note that the agent with the last place has another one now."""
        last = self.agents.size - 1
        moved, self.agents = int(self.agents[last]), drop_row(self.agents, gone)
        self.vacated.append((gone, last))
        self.changed.discard(last)
        self.changed_lately.discard(last)
        if gone < last:
            self._note_change(gone)
            self.places[moved] = gone

    def _note_change(self, place: int) -> None:
        self.changed.add(place)
        self.changed_lately.add(place)

    def note_snapshot(self, row_digests: dict[str, list[bytes]], changed: set[int]) -> None:
        """Note what chunks the snapshot in the store has, and the places that have changed since it was begun."""
        self.row_digests, self.changed, self.changed_lately = row_digests, changed, set()

    def _find_place(self, agent: int) -> int:
        """The agent's place in the arrays; a newcomer joins."""
        if self.server is None:
            self.server = Server(policy=self.policy, agents=1, dimension=self.dimension)
            self.places[agent], self.agents = 0, np.array([agent])
        elif agent not in self.places:
            self.places[agent], self.agents = self.server.join(), append_zeros(self.agents)
            self.agents[-1] = agent
        return self.places[agent]

    def dump(self) -> bytes:
        return encode_state(self.to_state())

    def to_state(self) -> dict[str, Any]:
        """The state as plain values and arrays; the arrays are those that the server goes on changing."""
        return {
            "format": STATE_FORMAT,
            "origin": describe_origin(self.policy, self.dimension),
            "position": self.position,
            "places": self.agents,
            "resets": self.resets,
            "server": None if self.server is None else self.server.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], policy: Policy, dimension: int) -> "ServerState | None":
        """The state whose ``to_state`` gave ``state``; None if it is that of another format, policy or dimension."""
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


def describe_origin(policy: Policy, dimension: int) -> str:
    """What a state depends on beside the log, as a text to compare."""
    constants = sorted((name, str(value)) for name, value in policy.constants().items())
    return repr((policy.name, constants, dimension))


def replay_log(store: Store, policy: Policy, dimension: int, state: ServerState | None = None) -> ServerState:
    """The state at the end of the log: from ``state`` on, or else from the last snapshot on."""
    rewritten = store.find_head().rewritten
    if state is None or rewritten > state.position:
        snapshot = store.read_snapshot()
        state = None if snapshot is None else _restore_state(snapshot, policy, dimension)
        state = state or ServerState(policy, dimension)
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
    """The state of a snapshot, which knows what chunks it came from; None if it is of another kind."""
    decoded = read_state(snapshot.chunks)
    state = ServerState.from_state(decoded, policy, dimension)
    if state is not None and decoded["server"] is not None:
        state.row_digests = find_row_digests(decoded, snapshot.digests)
        state.names = (state.position, decoded["names"]) if "names" in decoded else None
    return state


def describe_changes(state: ServerState, *, is_whole: bool = False) -> Any:
    """A state as plain values for a snapshot: what is known not to have changed is left out, unless all is wanted.

    The names of clusters are in it where the journal was written up to here, so that nobody need find them there.
    """
    plain = track_rows(state.to_state(), *((None, {}) if is_whole else (state.changed, state.row_digests)))
    is_named = state.names is not None and state.names[0] == state.position and not state.vacated
    return plain | {"names": state.names[1]} if is_named and state.names is not None else plain


def track_rows(state: dict[str, Any], changed: Iterable[int] | None, digests: Mapping[str, list[bytes]]) -> Any:
    """A state as plain values of which, of the holdings' arrays, only the changed rows are copied.

    Where ``changed`` is None, or digests are not known, all rows are.
    """
    if state["server"] is None:
        return state
    held = state["server"]["holdings"]
    places = None if changed is None else np.fromiter(changed, np.int64)
    rows = {
        name: copy_changed(held[name], places if name in digests else None, digests.get(name, ())) for name in ARRAYS
    }
    return state | {"server": state["server"] | {"holdings": held | rows}}


def find_row_digests(state: dict[str, Any], digests: Sequence[bytes]) -> dict[str, list[bytes]]:
    """Which of a snapshot's chunks hold which rows of the holdings' arrays; nothing if they are cut in another way."""
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
    """Compile, or load, what uploads need, so that no agent waits for a compiler."""
    state = ServerState(policy, dimension)
    statistics = Statistics(np.eye(dimension), np.zeros(dimension), dimension, 0, dimension)
    for position in range(1, 8):
        cause = Cause.FORCED if position < 7 else Cause.CHANGE
        upload = Upload(agent=position % 3, sequence=position, cause=cause, statistics=statistics)
        state.apply(upload, position)
        state.answer(upload.agent)
        state.count_group(upload.agent)
    state.welcome(7)
    state.forget(0, 8)
