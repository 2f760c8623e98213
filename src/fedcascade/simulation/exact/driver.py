"""Carries uploads from compiled agents to the server, and downloads back."""

import numpy as np

from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.personal import subtract_explained
from fedcascade.federation.server import Server
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.exact.lowering import PERSONAL_PARTS, compile_environment, compile_policy, lower
from fedcascade.simulation.exact.sequential_kernels import fit_personal
from fedcascade.simulation.exact.states import make_personal_states, make_states, take_buffer
from fedcascade.simulation.scenario import Scenario, Simulation


class ExchangeDriver:
    """The agents of one run as arrays, their server, and the exchanges between them, whichever engine plays rounds."""

    def __init__(self, scenario: Scenario, simulation: Simulation) -> None:
        self.environment = environment = scenario.clustered
        users, d = environment.users, environment.dimension
        self.policy = policy = simulation.policy
        self.problem = simulation.problem
        self.server: Server = simulation.server
        self.recorder = simulation.recorder
        self.compiled_environment = compile_environment(environment)
        self.compiled_policy = compile_policy(policy, scenario.oracle, simulation.problem)
        self.states = make_states(users, d)
        self.personal = make_personal_states(users if lower(PERSONAL_PARTS, policy.personal) else 0, d)
        self.uploads = np.zeros(users, np.int64)
        blank = Ridge(Statistics.zero(d), policy.lambda_)
        for agent in range(users):
            self.load_ridge(agent, blank)

    def run_exchange(self, round_: int, agent: int, cause: Cause, fetched: tuple[Download, ...] = ()) -> None:
        """Upload the buffer of an agent, and let every download take effect; ``fetched`` came before the round."""
        upload = self._upload(agent, cause)
        uploads = [upload, *(self._upload(collected, cause) for collected in self.server.agents_to_collect(upload))]
        downloads = self.server.receive(*uploads)
        ridges: dict[int, Ridge] = {}  # agents of one group get the same statistics
        for download in downloads:
            key = id(download.statistics)
            ridges[key] = ridges.get(key) or Ridge(download.statistics, self.policy.lambda_)
            self.load_ridge(download.agent, ridges[key])
        self.recorder.record_exchange(round_, uploads, fetched + downloads, self.policy.reply_rule.download_cause)

    def _upload(self, agent: int, cause: Cause) -> Upload:
        self.uploads[agent] += 1
        buffer = take_buffer(self.states, agent)
        if self.policy.personal:
            buffer = subtract_explained(buffer, self.personal.theta[agent])
        download = Statistics(self.states.gram[agent], self.states.moment[agent], 0, 0, 0)
        unanswered = self.policy.reply_rule.keep_unanswered(download, buffer)
        if unanswered is not None:
            self.load_ridge(agent, Ridge(unanswered, self.policy.lambda_))
        return Upload(agent=agent, sequence=int(self.uploads[agent]), cause=cause, statistics=buffer)

    def receive(self, download: Download) -> None:
        """Let an agent decide with a download from now on."""
        self.load_ridge(download.agent, Ridge(download.statistics, self.policy.lambda_))

    def load_ridge(self, agent: int, ridge: Ridge) -> None:
        """Let an agent decide with ``ridge`` from now on."""
        states = self.states
        states.gram[agent] = ridge.statistics.gram
        states.moment[agent] = ridge.statistics.moment
        states.theta[agent] = ridge.theta
        states.root[agent] = ridge.root
        # A push may come while the buffer holds data, whose widths by the new ridge were never added up.
        squared_widths = 0.0 if states.counts[agent, kernels.ROUNDS] == 0 else np.inf
        beta = self.policy.confidence.radius(ridge, self.problem)
        states.numbers[agent] = ridge.log_det, beta, squared_widths, 0.0
        if self.policy.personal:
            fit_personal(self.compiled_policy, kernels.select_agent(states, agent), self.personal, agent)
