"""Where agents' uploads are handed in and downloads taken out: all agents of a run as arrays, and their server."""

import numpy as np

from fedcascade.environments.clustered import Clustered
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.personal import subtract_explained
from fedcascade.federation.server import Server
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import kernels, sequential
from fedcascade.simulation.exact.lowering import compile_rules, compile_world, empty_fleet, empty_own, take_buffer
from fedcascade.simulation.scenario import Simulation


class ExchangeDriver:
    """The exchanges of one run, whichever engine plays its rounds."""

    def __init__(self, environment: Clustered, oracle: TopK, stage: Simulation) -> None:
        users, d = environment.users, environment.dimension
        self.environment = environment
        self.policy = policy = stage.policy
        self.problem = stage.problem
        self.server: Server = stage.server
        self.recorder = stage.recorder
        self.world = compile_world(environment)
        self.rules = compile_rules(policy, oracle, stage.problem)
        self.fleet = empty_fleet(users, d)
        self.own = empty_own(users if policy.personal else 0, d)
        self.uploads = np.zeros(users, np.int64)
        blank = Ridge(Statistics.zero(d), policy.lambda_)
        for agent in range(users):
            self._load(agent, blank)

    def exchange(self, round_: int, agent: int, cause: Cause, fetched: tuple[Download, ...] = ()) -> None:
        """Upload the buffer of an agent, and let every download take effect."""
        upload = self._upload(agent, cause)
        uploads = [upload, *(self._upload(called, cause) for called in self.server.agents_to_collect(upload))]
        downloads = self.server.receive(*uploads)
        ridges: dict[int, Ridge] = {}  # agents of one group get the same statistics
        for download in downloads:
            key = id(download.statistics)
            ridges[key] = ridges.get(key) or Ridge(download.statistics, self.policy.lambda_)
            self._load(download.agent, ridges[key])
        self.recorder.record_exchange(round_, uploads, fetched + downloads, self.policy.reply_rule.download_cause)

    def _upload(self, agent: int, cause: Cause) -> Upload:
        self.uploads[agent] += 1
        buffer = take_buffer(self.fleet, agent)
        if self.policy.personal:
            buffer = subtract_explained(buffer, self.own.theta[agent])
        if not self.policy.reply_rule.answers_uploads:
            one = kernels.one_of(self.fleet, agent)
            known = Statistics(one.gram + buffer.gram, one.moment + buffer.moment, 0, 0, 0)
            self._load(agent, Ridge(known, self.policy.lambda_))
        return Upload(agent=agent, sequence=int(self.uploads[agent]), cause=cause, statistics=buffer)

    def _receive(self, download: Download) -> None:
        self._load(download.agent, Ridge(download.statistics, self.policy.lambda_))

    def _load(self, agent: int, ridge: Ridge) -> None:
        """Let an agent decide with ``ridge`` from now on."""
        fleet = self.fleet
        fleet.gram[agent] = ridge.statistics.gram
        fleet.moment[agent] = ridge.statistics.moment
        fleet.theta[agent] = ridge.theta
        fleet.root[agent] = ridge.root
        # A push may come while the buffer holds data, whose widths by the new ridge nobody has added up.
        taught = 0.0 if fleet.counts[agent, kernels.ROUNDS] == 0 else np.inf
        fleet.numbers[agent] = ridge.log_det, self.policy.confidence.radius(ridge, self.problem), taught, 0.0
        if self.policy.personal:
            sequential.settle(self.rules, kernels.one_of(fleet, agent), self.own, agent)
