"""A demo on a server: agents with simulated users, two baseline policies, and a shop window."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedcascade.checks import require
from fedcascade.demo.catalogue import DIMENSION
from fedcascade.demo.drift import ChangingEnvironment, Companion
from fedcascade.demo.options import DemoSettings, SwarmOptions
from fedcascade.demo.swarm import RegretReporter, run_swarm
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import DEFAULT_POLICY, Drift, Policy, get_policy
from fedcascade.learning.oracles import TopK
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol.errors import Refused
from fedcascade.simulation.trace import Recorder

CONSTANTS = {"alpha_c": 0.5}  # frequent exchanges, for the dashboard
# With drift, agents detect changes sooner than by default, since visitors do not wait.
DRIFT_CONSTANTS = {"drift": Drift.RESTART, "threshold": 6.0, "limit": 6.0}
ITEMS, LIST_LENGTH = 12, 2
COMPANIONS = {"fedind": "alone", "known-clusters": "clusters known"}  # baselines and their names on the pages
DRIFT_COMPANIONS = {"fedind": "alone", DEFAULT_POLICY: "without resets"}
WAIT_SECONDS = 30.0
MOST_VISITORS = 1_000
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


class DemoStopped(Exception):  # noqa: N818 (not an accident)
    """The end of a demo before its last round."""


def build_environment(settings: DemoSettings) -> Synthetic:
    """Build the environment of a demo; with drift, its users can change."""
    most = DIMENSION - 1
    words = f"clusters must be at most {most}, the attributes of films, got {settings.clusters}"
    require(settings.clusters <= most, words)
    kind = ChangingEnvironment if settings.drift else Synthetic
    return kind(users=settings.users, clusters=settings.clusters, dimension=DIMENSION, items=ITEMS, seed=settings.seed)


def build_policy(settings: DemoSettings) -> Policy:
    """Build the policy of a demo's server."""
    policy = get_policy(DEFAULT_POLICY).with_constants(**CONSTANTS)
    return policy.with_constants(**DRIFT_CONSTANTS) if settings.drift else policy


class Demo:
    """Simulated users at an adjustable pace; ``start`` after the server listens, ``stop`` before it stops."""

    def __init__(self, settings: DemoSettings, *, token: Path) -> None:
        self.settings = settings
        self.pace = settings.pace
        self.round = 0
        self.state = "starting"
        self._token = token
        self._url = ""
        self._running = threading.Event()
        self._changed = threading.Condition()
        self._stopping = False
        self._due = 0.0
        self._thread = threading.Thread(target=self._run_swarm, name="fedcascade-demo", daemon=True)
        self._visitors = 0
        self._environment = build_environment(settings)
        sizes = CONSTANTS, self._environment, LIST_LENGTH, settings.rounds
        compared = DRIFT_COMPANIONS if settings.drift else COMPANIONS
        self._companions = {series: Companion(policy, *sizes) for policy, series in compared.items()}
        self._is_change_due = False
        self.resets = 0
        self.changes: list[dict[str, int]] = []  # round, time, users and earlier resets of each drift

    def describe_progress(self) -> dict[str, Any]:
        progress = {"state": self.state, "pace": self.pace, "round": self.round}
        drift = {"changes": self.changes, "resets": self.resets} if self.settings.drift else {}
        return asdict(self.settings) | progress | drift

    def introduce(self) -> dict[str, Any]:
        return self.describe_progress() | {"story": DRIFT_STORY if self.settings.drift else STORY}

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
        self._url = url
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # forty agents make many requests
        self._thread.start()

    def stop(self) -> None:
        """Stop the users."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(WAIT_SECONDS)

    @contextmanager
    def _connect_operator(self) -> Iterator[OperatorClient]:
        with closing(HttpTransport(self._url)) as transport:
            yield OperatorClient(transport, self._token.read_text(encoding="utf-8").strip())

    def _run_swarm(self) -> None:
        try:
            with self._connect_operator() as operator:
                reporter = RegretReporter(operator)
                run_swarm(
                    self._environment,
                    SwarmOptions(rounds=self.settings.rounds, lockstep=True),
                    operator=operator,
                    transport=HttpTransport(self._url),
                    oracle=TopK(length=LIST_LENGTH),
                    after_round=lambda t, recorder: self._finish_round(t, recorder, reporter),
                )
            self.state = "done"
        except DemoStopped:
            self.state = "stopped"
        except (OSError, ValueError) as error:
            self.state = f"stopped: {error}"

    def _finish_round(self, t: int, recorder: Recorder, reporter: RegretReporter) -> None:
        """Report a round, and wait for the next; a late round does not speed up later rounds."""
        self.round, self.state = t, "running"
        self._running.set()
        for companion in self._companions.values():
            companion.play(t)
        reporter.report_round(t, recorder, {name: each.regret for name, each in self._companions.items()})
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
