"""A demo on a server: agents with simulated users, two baseline policies, and a shop window."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.demo.catalogue import DIMENSION
from fedcascade.demo.options import DemoSettings, SwarmOptions
from fedcascade.demo.swarm import RegretReporter, fetch_labels, run_swarm
from fedcascade.environments.environment import Environment
from fedcascade.environments.options import Change
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import Drift, Policy, get_policy, load_policies
from fedcascade.learning.oracles import TopK
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.pool import PoolAgent
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.serve import ServerSettings
from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits
from fedcascade.simulation.reference import make_agents, play_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation
from fedcascade.simulation.trace import Recorder, compute_clustering_error

# With drift, agents detect changes sooner than by default, since visitors do not wait.
DRIFT_CONSTANTS = {"drift": Drift.RESTART, "threshold": 6.0, "limit": 6.0}
ITEMS, LIST_LENGTH = 12, 2
WAIT_SECONDS = 30.0
MOST_VISITORS = MOST_USERS = 1_000
STORY = (
    "Each dot is the agent of one simulated user. It shows lists, learns from the clicks, and never uploads a click.",
    "Sometimes an agent uploads a summary. If one taste explains the summaries of several agents, the server lets them"
    " share what they learn, and their dots gather in a cluster.",
    "The regret flattens as the clusters are found. It should end below that of agents that never share, and above that"
    " of agents that know the clusters.",
)


DRIFT_STORY = (
    *STORY[:2],
    "Press the button, and half of the users change their taste. Their lists miss until their agents detect the drift,"
    " reset, and join other clusters. The same policy without resets keeps losing.",
)
NO_POLICY = "none"


class DemoStopped(Exception):  # noqa: N818 (not an accident)
    """The end of a demo before its last round."""


class ChangingEnvironment(Synthetic):
    """An environment in which half of each cluster switches to the next cluster, and back, on request."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._changed = Synthetic(**arguments, change=Change(at=1, to="existing"))
        self.is_changed = False

    @property
    def changing(self) -> int:
        """The number of users that drift."""
        return sum(role.kind == "changing" for role in self._changed.history.user_roles)

    @property
    def true_clusters(self) -> NDArray[np.int64]:
        """The cluster of each user now."""
        return self._changed.find_moment(1).clusters if self.is_changed else self.clusters

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        if self.is_changed:
            return self._changed.weights(round_, user, features)
        return super().weights(round_, user, features)


class Companion:
    """A policy in this process that plays the rounds of a demo, without change detection."""

    def __init__(self, policy: Policy, environment: Environment, length: int, rounds: int) -> None:
        self._environment, self._oracle, self.regret = environment, TopK(length=length), 0.0
        simulation = prepare_simulation(Scenario(environment, policy, rounds, self._oracle, checkpoints=1))
        self._server, self._agents = simulation.server, make_agents(simulation, self._oracle)

    def play(self, round_: int) -> None:
        """Play a round with the same user, items and clicks as the demo."""
        user = self._environment.arrival(round_)
        agent = self._agents[user]
        deliver_arrival(self._server, self._agents, user)
        played = play_round(self._environment, self._oracle, round_, user, agent.recommend, agent.observe)
        if played.upload is not None:
            run_exchange(self._server, self._agents, played.upload)
        self.regret += played.regret

    @property
    def labels(self) -> NDArray[np.int64]:
        return self._server.groups.labels[: self._environment.users]


def build_environment(settings: DemoSettings) -> Synthetic:
    """Build the environment of a demo; with drift, its users can change."""
    most = DIMENSION - 1
    words = f"clusters must be at most {most}, the attributes of films, got {settings.clusters}"
    require(settings.clusters <= most, words)
    kind = ChangingEnvironment if settings.drift else Synthetic
    return kind(users=settings.users, clusters=settings.clusters, dimension=DIMENSION, items=ITEMS, seed=settings.seed)


def build_policy(settings: DemoSettings, name: str | None = None) -> Policy:
    """Build the policy of a demo's server, or another one with the same constants but without change detection."""
    names = ("beta", "alpha_c", "alpha_d")
    given = {each: getattr(settings, each) for each in names if getattr(settings, each) is not None}
    policy = get_policy(name or settings.policy).with_known_constants(given)
    return policy.with_constants(**DRIFT_CONSTANTS) if settings.drift and name is None else policy


def build_companions(settings: DemoSettings, environment: Synthetic) -> dict[str, Companion]:
    """Build the policies that play beside the server: two baselines, and the second policy."""
    known = {"without resets": settings.policy} if settings.drift else {"clusters known": "known-clusters"}
    names = {"alone": "fedind"} | known
    if settings.other != NO_POLICY:
        names[settings.other] = settings.other
    return {
        series: Companion(build_policy(settings, name), environment, LIST_LENGTH, settings.rounds)
        for series, name in names.items()
    }


def build_server_settings(settings: DemoSettings, **options: Any) -> ServerSettings:
    """Build the settings of a demo's server; refuse a policy that no server can run."""
    options |= {"limits": Limits(rate=1e6, burst=1e6), "bounds": FOR_SIMULATIONS}
    return ServerSettings(policy=build_policy(settings), dimension=DIMENSION, **options)


@cache
def list_policies() -> dict[str, list[str]]:
    """List the policies that a server can run, and those that can play beside it."""
    served = []
    for name in load_policies():
        with suppress(ValueError):
            build_server_settings(DemoSettings(policy=name), store="sqlite:///:memory:")
            served.append(name)
    return {"served": served, "others": [NO_POLICY, *load_policies()]}


class Demo:
    """Simulated users at an adjustable pace; ``start`` after the server listens, ``stop`` before it stops."""

    def __init__(self, settings: DemoSettings, *, token: Path, key: str, can_restart: bool = True) -> None:
        self.key = key  # opens the dashboard
        self.settings, self.pace, self.url = settings, settings.pace, ""
        self.next: DemoSettings | None = None  # those of a restart that was asked for
        self.round, self.state = 0, "starting"
        self._run, self._can_restart = time.time_ns(), can_restart
        self._agents: Sequence[PoolAgent] = ()
        self._token = token
        self._running = threading.Event()
        self._changed = threading.Condition()
        self._stopping = False
        self._due = 0.0
        self._thread = threading.Thread(target=self._run_swarm, name="fedcascade-demo", daemon=True)
        self._visitors = 0
        self._environment = build_environment(settings)
        self._companions = build_companions(settings, self._environment)
        self._is_change_due = False
        self.resets = 0
        self.changes: list[dict[str, int]] = []  # round, time, users and earlier resets of each drift

    def describe_progress(self) -> dict[str, Any]:
        progress = {"state": self.state, "pace": self.pace, "round": self.round}
        drift = {"changes": self.changes, "resets": self.resets} if self.settings.drift else {}
        ids = [agent.id for agent in self._agents]
        groups = {"truth": list(zip(ids, self._list_truth(), strict=False))}
        if self.settings.other != NO_POLICY:
            groups["groups"] = list(zip(ids, self._companions[self.settings.other].labels.tolist(), strict=False))
        return asdict(self.settings) | progress | drift | groups | {"run": self._run}

    def introduce(self) -> dict[str, Any]:
        story = {"story": DRIFT_STORY if self.settings.drift else STORY}
        choices = {"policies": list_policies() if self._can_restart else None}
        return self.describe_progress() | story | choices

    def _list_truth(self) -> list[int]:
        clusters = getattr(self._environment, "true_clusters", self._environment.clusters)
        return [int(cluster) for cluster in clusters]

    def restart(self, changes: Mapping[str, Any]) -> None:
        """Ask for another demo with other settings, in place of this one; refuse settings that are not possible."""
        if not self._can_restart:
            raise Refused(409, "no-restart", "a demo with --store cannot start over: its store has agents already")
        try:
            settings = replace(self.settings, **changes)
            require(settings.users <= MOST_USERS, f"users must be at most {MOST_USERS}, got {settings.users}")
            build_server_settings(settings, store="sqlite:///:memory:")
            build_companions(settings, build_environment(settings))
        except (TypeError, ValueError) as error:
            raise Refused(400, "request", str(error)) from None
        self.next = settings

    def change_minds(self) -> None:
        """Let half of the users drift, or drift back, before the next round."""
        if not self.settings.drift:
            raise Refused(409, "no-drift", "users of this demo do not drift: start it with --drift")
        self._is_change_due = True

    def set_pace(self, pace: float) -> None:
        """Set the rounds per second from now on; 0 pauses."""
        with self._changed:
            self.pace, self._due = pace, time.monotonic()
            self._changed.notify_all()

    def start(self, url: str) -> None:
        """Start the users against the server at ``url``."""
        self.url = url
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # forty agents make many requests
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(WAIT_SECONDS)

    @contextmanager
    def _connect_operator(self) -> Iterator[OperatorClient]:
        with closing(HttpTransport(self.url)) as transport:
            yield OperatorClient(transport, self._token.read_text(encoding="utf-8").strip())

    def _run_swarm(self) -> None:
        try:
            with self._connect_operator() as operator:
                reporter = RegretReporter(operator)
                run_swarm(
                    self._environment,
                    SwarmOptions(rounds=self.settings.rounds, lockstep=True),
                    operator=operator,
                    transport=HttpTransport(self.url),
                    oracle=TopK(length=LIST_LENGTH),
                    on_ready=lambda agents: setattr(self, "_agents", agents),
                    after_round=lambda t, recorder: self._finish_round(t, recorder, reporter, operator),
                )
            self.state = "done"
        except DemoStopped:
            self.state = "stopped"
        except (OSError, ValueError) as error:
            self.state = f"stopped: {error}"

    def _measure(self, operator: OperatorClient) -> dict[str, float]:
        """Return the regrets of the other policies, and the clustering errors of this one and the second."""
        measures, truth = {name: each.regret for name, each in self._companions.items()}, self._list_truth()
        measures["error"] = compute_clustering_error(fetch_labels(self._agents, operator), truth)
        if self.settings.other != NO_POLICY:
            measures["other error"] = compute_clustering_error(self._companions[self.settings.other].labels, truth)
        return measures

    def _finish_round(self, t: int, recorder: Recorder, reporter: RegretReporter, operator: OperatorClient) -> None:
        """Report a round, and wait for the next; a late round does not speed up later rounds."""
        self.round, self.state = t, "running"
        self._running.set()
        for companion in self._companions.values():
            companion.play(t)
        reporter.report_round(t, recorder, lambda: self._measure(operator))
        self._follow_changes(t, recorder)
        with self._changed:
            now = time.monotonic()
            self._due = max(self._due, now - 0.1) + 1.0 / max(self.pace, 1e-9)
            while not self._stopping and (self.pace == 0 or self._due > time.monotonic()):
                self._changed.wait(None if self.pace == 0 else self._due - time.monotonic())
            if self._stopping:
                raise DemoStopped

    def _follow_changes(self, t: int, recorder: Recorder) -> None:
        """Count resets, and apply a requested drift between two rounds."""
        if not isinstance(self._environment, ChangingEnvironment):
            return
        self.resets = recorder.ledger.count_cause(Cause.CHANGE)
        if self._is_change_due:
            self._is_change_due = False
            self._environment.is_changed = not self._environment.is_changed
            changing = self._environment.changing
            self.changes.append({"round": t, "at": int(1000 * time.time()), "resets": self.resets, "users": changing})

    def create_visitor_token(self) -> str:
        """Create an enrolment token for a visitor of the shop, after the simulated users have enrolled."""
        with self._changed:
            if self._visitors >= MOST_VISITORS:
                raise Refused(429, "too-many-requests", f"this demo takes {MOST_VISITORS} visitors: start another one")
            self._visitors += 1
        self._running.wait(WAIT_SECONDS)
        with self._connect_operator() as operator:
            [token] = operator.create_tokens()
        return token
