"""Exchanges between compiled agents and the server."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.own_data import OwnData, Row, compute_width, unpack_row
from fedcascade.federation.own_data_keeper import OwnDataKeeper, make_policy_data
from fedcascade.federation.privacy import SimulatedNoise
from fedcascade.federation.warm_start import check_warm_start, feed_server
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import GRID
from fedcascade.numerics.linear import pack_sums, unpack_sums
from fedcascade.simulation.exact import arrays
from fedcascade.simulation.exact.arrays import AgentState, PackedStates, PersonalState, PushedState
from fedcascade.simulation.exact.lowering import ENVIRONMENTS, PERSONAL_PARTS, compile_policy, lower
from fedcascade.simulation.exact.sequential_kernels import fit_personal
from fedcascade.simulation.scenario import Scenario, Simulation


class ExchangeDriver:
    """The agents of a run as arrays, their server, and the exchanges between them.

    ``packed`` states take a third of the memory; an engine unpacks an agent before playing its rounds.
    """

    def __init__(self, scenario: Scenario, simulation: Simulation, *, is_packed: bool = False) -> None:
        self.environment = environment = scenario.clustered
        users, d = environment.users, environment.dimension
        self.policy = policy = simulation.policy
        self.problem = simulation.problem
        self.server = simulation.server
        self.recorder = simulation.recorder
        self.compiled_environment = lower(ENVIRONMENTS, environment)(environment)
        self.compiled_policy = compile_policy(policy, scenario.oracle, simulation.problem)
        if self.compiled_policy.limits is not None:  # let the oracle reject missing attributes
            items = environment.count_items(1)
            scenario.oracle.best(np.ones(items), environment.attributes(1, items))
        self.states = make_states(0 if is_packed else users, d)
        self.packed = make_packed_states(users if is_packed else 0, d)
        learners = users if lower(PERSONAL_PARTS, policy.personal) else 0
        self.personal = PersonalState(np.zeros((learners, d, d)), np.zeros((learners, d)), np.zeros((learners, d, d)))
        self.pushed = make_pushed_state(users if policy.reply_rule.delays_pushes else 0, d)
        self.own_data = None
        if policy.keeps_own_data:
            self.own_data = make_policy_data(policy, (users,), d)
        self.first = None if policy.privacy is None else np.zeros((users, compute_width(d)))
        self.noise = SimulatedNoise(simulation.seed)
        self.uploads = np.zeros(users, np.int64)
        nothing = Statistics.zero(d)
        keeper = OwnDataKeeper(policy, d) if policy.trust is not None else None
        blank = Ridge(nothing if keeper is None else keeper.weigh(nothing), policy.lambda_)
        deviation = 1.0 if keeper is None else keeper.deviation
        self.packed.numbers[:] = self._compute_numbers(blank, deviation)
        pack_sums(blank.statistics.gram, blank.statistics.moment, row := np.zeros(self.packed.download.shape[1]))
        self.packed.download[:] = row
        for agent in range(self.states.counts.shape[0]):
            self.load_ridge(agent, blank, deviation)

    def warm_up(self, sums: LogSums) -> None:
        """Start the server and the agents with data of a log, as ``warm_start.warm_up`` does."""
        check_warm_start(self.server, sums)
        if self.policy.reply_rule.single_learner:
            _fill_buffer(self.states, 0, sums.total())
            return
        downloads = feed_server(self.server, sums)
        if self.own_data is not None:
            for user in range(sums.users):
                self._keep_own_data(user, self.own_data).restart(sums[user])
        self.receive(downloads)

    def run_exchange(self, round_: int, agent: int, cause: Cause, fetched: Downloads = ()) -> None:
        """Upload the buffer of an agent and apply all downloads; ``fetched`` are those from before the round."""
        upload = self._upload(agent, cause)
        uploads = (upload, *(self._upload(collected, cause) for collected in self.server.agents_to_collect(upload)))
        downloads = self.server.take(*uploads)  # uploads of compiled agents need no check
        self.receive(downloads, is_delayed=self.policy.reply_rule.delays_pushes)
        uploads, downloads = self.server.reply_state.select_counted(uploads, fetched + downloads)
        self.recorder.record_exchange(round_, uploads, downloads, self.policy.reply_rule.download_cause)

    def _upload(self, agent: int, cause: Cause) -> Upload:
        self.uploads[agent] += 1
        if self.packed.counts.size:
            buffer = _take_packed_buffer(self.packed, agent, self.problem.dimension)
        else:
            buffer = _take_buffer(self.states, agent)
            download = Statistics(self.states.gram[agent], self.states.moment[agent], 0, 0, 0)
            unanswered = self.policy.reply_rule.keep_unanswered(download, buffer)
            if unanswered is not None:
                self.load_ridge(agent, Ridge(unanswered, self.policy.lambda_))
        sent = self._restart(agent) if cause is Cause.CHANGE else buffer
        upload = Upload(agent=agent, sequence=int(self.uploads[agent]), cause=cause, statistics=sent)
        return upload if self.first is None else self._release(upload, self.first[agent])

    def _release(self, upload: Upload, first: Row) -> Upload:
        """Return a private upload of the first items, with noise."""
        kept = unpack_row(first, self.problem.dimension)
        first[:] = 0.0
        assert self.policy.privacy is not None
        released = self.policy.privacy.release(replace(upload, statistics=kept), self.noise)
        assert released is not None, "the budget of a list is never spent"
        return released

    def _restart(self, agent: int) -> Statistics:
        """Start over for a changed user; return its data, or none if the simulation reported the change."""
        if self.own_data is None:
            return Statistics.zero(self.problem.dimension)
        keeper = self._keep_own_data(agent, self.own_data)
        kept = keeper.total
        keeper.restart(kept)
        return kept

    def _keep_own_data(self, agent: int, own_data: OwnData) -> OwnDataKeeper:
        """Return a keeper of an agent's own data, as a view of that of all agents."""
        return OwnDataKeeper(self.policy, self.problem.dimension, OwnData(*(array[agent] for array in own_data)))

    def start_round(self, round_: int, changes: list[tuple[int, int]], newcomers: list[int]) -> None:
        """Report changed agents to a server that knows true clusters, and send its prior to newcomers."""
        for agent, cluster in changes:
            self.server.groups.set_true_cluster(agent, cluster)
            self.run_exchange(round_, agent, Cause.CHANGE)
        self.receive(tuple((agent, self.server.answer(agent)) for agent in newcomers))

    def receive(self, downloads: Downloads, *, is_delayed: bool = False) -> None:
        """Apply downloads to their agents, now or in their next rounds."""
        if self.own_data is not None:
            nothing = Statistics.zero(self.problem.dimension)  # the buffer after an upload
            for agent, statistics in downloads:
                keeper = self._keep_own_data(agent, self.own_data)
                believed = keeper.receive(statistics, nothing)
                self.load_ridge(agent, Ridge(believed, self.policy.lambda_), keeper.deviation)
            return
        ridges: dict[int, Ridge] = {}  # agents of one group get the same statistics
        for agent, statistics in downloads:
            key = id(statistics)
            ridges[key] = ridges.get(key) or Ridge(statistics, self.policy.lambda_)
            if is_delayed:
                self._set_decision(self.pushed.states, agent, ridges[key])
                self.pushed.waits[agent] = True
            else:
                self.load_ridge(agent, ridges[key])

    def load_ridge(self, agent: int, ridge: Ridge, deviation: float = 1.0) -> None:
        """Set the ridge with which an agent decides; ``deviation`` multiplies beta."""
        packed, sums = self.packed, ridge.statistics
        if packed.counts.size:  # the buffer of such an agent is empty
            pack_sums(sums.gram, sums.moment, packed.download[agent])
            packed.numbers[agent] = self._compute_numbers(ridge, deviation)
            return
        self._set_decision(self.states, agent, ridge, deviation)
        if self.policy.personal:
            fit_personal(self.compiled_policy, arrays.select_agent(self.states, agent), self.personal, agent)

    def _set_decision(self, states: AgentState, agent: int, ridge: Ridge, deviation: float = 1.0) -> None:
        states.gram[agent], states.moment[agent] = ridge.statistics.gram, ridge.statistics.moment
        states.theta[agent], states.root[agent] = ridge.theta, ridge.root
        states.numbers[agent] = self._compute_numbers(ridge, deviation)

    def _compute_numbers(self, ridge: Ridge, deviation: float = 1.0) -> tuple[float, float, float]:
        """Return ``AgentState.numbers`` for this ridge and an empty buffer."""
        return ridge.log_det, deviation * self.policy.confidence.radius(ridge, self.problem), 0.0


def make_states(users: int, d: int) -> AgentState:
    """Make the state of agents without data."""
    moment, theta, buffer_moment = np.zeros((3, users, d))
    gram, root, buffer_gram = np.zeros((3, users, d, d))
    numbers, counts = np.zeros((users, 3)), np.zeros((users, 5), np.int64)
    return AgentState(gram, moment, theta, root, buffer_gram, buffer_moment, numbers, counts)


def make_pushed_state(users: int, d: int) -> PushedState:
    """Make the state of agents without pushes; of no agents if downloads apply at once."""
    return PushedState(make_states(users, d), np.zeros(users, np.bool_))


def _fill_buffer(states: AgentState, agent: int, statistics: Statistics) -> None:
    """Add statistics to the buffer of an agent."""
    states.buffer_gram[agent] += statistics.gram
    states.buffer_moment[agent] += statistics.moment
    states.counts[agent, : arrays.ARRIVALS] += statistics.count, statistics.clicks, statistics.rounds
    states.counts[agent, arrays.SHORTFALL] += int(statistics.shortfall / GRID)


def make_packed_states(users: int, d: int) -> PackedStates:
    """Make packed states of agents without data."""
    width = d * (d + 1) // 2 + d
    download, buffer = np.zeros((users, width)), np.zeros((users, width))
    return PackedStates(download, buffer, np.zeros((users, 3)), np.zeros((users, 5), np.int64))


def _take_packed_buffer(packed: PackedStates, agent: int, d: int) -> Statistics:
    """Return the buffer of a packed agent, and empty it."""
    gram, moment = np.empty((d, d)), np.empty(d)
    unpack_sums(packed.buffer[agent], gram, moment)
    packed.buffer[agent] = 0.0
    return Statistics(gram, moment, *_take_counts(packed.counts[agent]))


def _take_buffer(states: AgentState, agent: int) -> Statistics:
    """Return the buffer of an agent, and empty it."""
    gram, moment = states.buffer_gram[agent].copy(), states.buffer_moment[agent].copy()
    states.buffer_gram[agent] = 0.0
    states.buffer_moment[agent] = 0.0
    return Statistics(gram, moment, *_take_counts(states.counts[agent]))


def _take_counts(counts: NDArray[np.int64]) -> tuple[int, int, int, float]:
    """Return items examined, clicks, rounds and shortfall of a buffer, and set them to 0."""
    examined, clicks, rounds, arrivals, shortfall = counts.tolist()
    counts[:] = 0, 0, 0, arrivals, 0
    return examined, clicks, rounds, GRID * shortfall
