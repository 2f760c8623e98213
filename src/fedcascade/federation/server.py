"""The server: takes an upload, answers with the pooled statistics of the agent's group (Algorithm 3)."""

from fedcascade.checks import require, whole
from fedcascade.federation.grouping import Labels
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import Order, Policy
from fedcascade.learning.ridge import Ridge


class Server:
    """Holds what agents uploaded, groups them, and answers the agent that asked. Nobody else is contacted."""

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Labels | None = None) -> None:
        whole("agents", agents)
        whole("dimension", dimension)
        self.policy = policy
        self.holdings = Holdings(agents, dimension, policy.lambda_)
        self.groups = policy.grouping.begin(self.holdings, truth)
        self.rounds = 0

    def receive(self, upload: Upload) -> tuple[Download, ...]:
        """Algorithm 3: add the upload, answer over the graph as it stood, then delete refuted edges."""
        self._check(upload)
        self.rounds += upload.statistics.rounds
        if self.policy.order is Order.AGGREGATE_FIRST:
            download = self._aggregate(upload.agent)
            self._add(upload)
        else:
            self._add(upload)
            download = self._aggregate(upload.agent)
        self.groups.revise(upload.agent)
        return (download,)

    def join(self) -> int:
        """Take in a newcomer, connected as the policy's grouping says; its number."""
        newcomer = self.holdings.join()
        self.groups.join()
        return newcomer

    def forget(self, agent: int) -> None:
        """Remove an agent and all that it uploaded; the numbers of those after it fall by one."""
        self.rounds -= int(self.holdings.rounds[agent])
        self.holdings.forget(agent)
        self.groups.forget(agent)

    def _add(self, upload: Upload) -> None:
        self.holdings.add(upload.agent, upload.statistics)
        self.groups.add(upload.agent, upload.statistics)

    def _aggregate(self, agent: int) -> Download:
        pooled = self.groups.pooled(agent)
        return Download(agent=agent, statistics=pooled, rounds=self.rounds, agents=len(self.holdings))

    def _check(self, upload: Upload) -> None:
        """Refuse before anything has changed."""
        agents = len(self.holdings)
        require(0 <= upload.agent < agents, f"an upload must come from an agent in 0..{agents - 1}, got {upload.agent}")
        upload.statistics.check(self.holdings.dimension)
        Ridge(upload.statistics, self.policy.lambda_)
