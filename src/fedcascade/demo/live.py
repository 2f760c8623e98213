"""A demo beside a server: simulated users with real agents, two yardsticks on the same streams, and a shop window."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedcascade.checks import require
from fedcascade.demo.catalogue import DIMENSION
from fedcascade.demo.drift import ChangingWorld, Companion
from fedcascade.demo.swarm import RegretReporter, run_swarm
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import DEFAULT_POLICY, Drift, Policy, get_policy
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol.errors import Refused
from fedcascade.simulation.trace import Recorder

CONSTANTS = {"alpha_c": 0.5}  # agents speak often, so that there is something to see
# Beside users who change their minds, agents detect changes, and sooner than usual: visitors do not wait.
DRIFT_CONSTANTS = {"drift": Drift.RESTART, "threshold": 6.0, "limit": 6.0}
ITEMS, LIST_LENGTH, CHECKPOINTS = 12, 2, 200
YARDSTICKS = {"fedind": "alone", "known-clusters": "clusters known"}
COMPANIONS = {"fedind": "alone", DEFAULT_POLICY: "without restarts"}  # beside users who change their minds
WAIT_SECONDS = 30.0
MOST_VISITORS = 1_000
STORY = (
    "Each dot is the agent of one simulated user: it shows lists, learns from the clicks, and keeps them to itself.",
    "Now and then an agent sends the server a summary; where one taste explains the summaries of several agents, the"
    " server lets them share what they learn, and their dots gather in a cluster.",
    "Watch the regret flatten as the clusters are found: it should end below that of agents who never talk, and above"
    " that of agents who were told the clusters.",
)


DRIFT_STORY = (
    *STORY[:2],
    "Let half of them change their minds: their lists miss, until their agents notice, say so to the server, and begin"
    " anew among those whom they are like now. The same policy without such restarts goes on losing.",
)


class DemoStopped(Exception):  # noqa: N818 (not an accident)
    """The demo ends before its last round."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """How many users a demo simulates, with how many tastes, for how many rounds; the seed names the world.

    With ``drift``, half of the users change their minds whenever a visitor says so.
    """

    users: int = 40
    clusters: int = 5
    rounds: int = 20_000
    seed: int = 1
    drift: bool = False

    def __post_init__(self) -> None:
        most = DIMENSION - 1
        require(self.clusters <= most, f"clusters must be at most {most}, the attributes of films, got {self.clusters}")

    def build_environment(self) -> Synthetic:
        kind = ChangingWorld if self.drift else Synthetic
        return kind(users=self.users, clusters=self.clusters, dimension=DIMENSION, items=ITEMS, seed=self.seed)

    def build_policy(self) -> Policy:
        policy = get_policy(DEFAULT_POLICY).with_constants(**CONSTANTS)
        return policy.with_constants(**DRIFT_CONSTANTS) if self.drift else policy

    def build_companions(self, world: Synthetic) -> dict[str, Companion]:
        """Build the systems that play beside users who change their minds, by what pages call them."""
        if not self.drift:
            return {}
        sizes = CONSTANTS, world, LIST_LENGTH, self.rounds
        return {series: Companion(policy, *sizes) for policy, series in COMPANIONS.items()}

    def build_yardstick_command(self) -> list[str]:
        """Build the command that plays both yardsticks with the exact engine, with the same users, items and luck."""
        return [
            *(sys.executable, "-m", "fedcascade", "run", "--json"),
            *(word for name in YARDSTICKS for word in ("--policy", name)),
            *("--users", str(self.users), "--clusters", str(self.clusters), "--dimension", str(DIMENSION)),
            *("--items", str(ITEMS), "--list-length", str(LIST_LENGTH), "--rounds", str(self.rounds)),
            *("--seed", str(self.seed), "--checkpoints", str(min(CHECKPOINTS, self.rounds))),
            *(word for name, value in CONSTANTS.items() for word in (f"--{name.replace('_', '-')}", str(value))),
        ]


class Demo:
    """Simulated users at a pace that a page can change. ``start`` once the server listens, ``stop`` before it stops."""

    def __init__(self, settings: DemoSettings, *, pace: float, token: Path) -> None:
        self.settings = settings
        self.pace = pace
        self.round = 0
        self.state = "starting"
        self._token = token
        self._url = ""
        self._running = threading.Event()
        self._changed = threading.Condition()
        self._stopping = False
        self._due = 0.0
        self._threads: list[threading.Thread] = []
        self._yardsticks: subprocess.Popen[str] | None = None
        self._visitors = 0
        self._world = settings.build_environment()
        self._companions = settings.build_companions(self._world)
        self._is_change_due = False
        self.resets = 0
        self.changes: list[dict[str, int]] = []  # of minds: when, and how many resets there had been

    def describe_progress(self) -> dict[str, Any]:
        progress = {"state": self.state, "pace": self.pace, "round": self.round}
        drift = {"changes": self.changes, "resets": self.resets} if self.settings.drift else {}
        return asdict(self.settings) | progress | drift

    def introduce(self) -> dict[str, Any]:
        return self.describe_progress() | {"story": DRIFT_STORY if self.settings.drift else STORY}

    def change_minds(self) -> None:
        """Let half of the users change their minds, or change them back, before their next round."""
        if not self.settings.drift:
            raise Refused(409, "no-drift", "users of this demo keep their minds: start it with --drift")
        self._is_change_due = True

    def set_pace(self, pace: float) -> None:
        """Set the rounds per second from now on; 0 pauses."""
        with self._changed:
            self.pace, self._due = pace, time.monotonic()
            self._changed.notify_all()

    def start(self, url: str) -> None:
        """Start the users and the yardsticks against the server at that address."""
        self._url = url
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # forty agents have much to say
        works = (self._run_swarm,) if self.settings.drift else (self._run_swarm, self._run_yardsticks)
        for work in works:
            thread = threading.Thread(target=work, name="fedcascade-demo", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the users and the yardsticks."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._yardsticks is not None:
            self._yardsticks.terminate()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)

    @contextmanager
    def _connect_operator(self) -> Iterator[OperatorClient]:
        with closing(HttpTransport(self._url)) as transport:
            yield OperatorClient(transport, self._token.read_text(encoding="utf-8").strip())

    def _run_swarm(self) -> None:
        try:
            with self._connect_operator() as operator:
                reporter = RegretReporter(operator)
                run_swarm(
                    self._world,
                    self.settings.build_policy(),
                    rounds=self.settings.rounds,
                    operator=operator,
                    transport=HttpTransport(self._url),
                    folder=None,
                    list_length=LIST_LENGTH,
                    after_round=lambda t, recorder: self._finish_round(t, recorder, reporter),
                )
            self.state = "done"
        except DemoStopped:
            self.state = "stopped"
        except (OSError, ValueError) as error:
            self.state = f"stopped: {error}"

    def _finish_round(self, t: int, recorder: Recorder, reporter: RegretReporter) -> None:
        """Report, and wait until the next round is due. Delays are not made up for by going faster later."""
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
        """Count resets, and change minds between two rounds if a visitor said so."""
        if not isinstance(self._world, ChangingWorld):
            return
        self.resets = recorder.ledger.count_cause(Cause.CHANGE)
        if self._is_change_due:
            self._is_change_due, self._world.is_changed = False, not self._world.is_changed
            now = int(1000 * time.time())
            self.changes.append({"round": t, "at": now, "resets": self.resets, "users": self._world.changing})

    def _run_yardsticks(self) -> None:
        """Play 'alone' and 'clusters known' in a process of their own, and report their regret."""
        command = self.settings.build_yardstick_command()
        with (
            self._connect_operator() as operator,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process,
        ):
            self._yardsticks = process
            assert process.stdout is not None
            for line in process.stdout:
                summary = json.loads(line)
                series = YARDSTICKS[summary["policy"]]
                operator.report_measures([(series, point["round"], point["regret"], 0) for point in summary["curve"]])

    def create_visitor_token(self) -> str:
        """Create the enrolment token of one more visitor of the shop, once the simulated users have enrolled."""
        with self._changed:
            if self._visitors >= MOST_VISITORS:
                raise Refused(429, "too-many-requests", f"this demo takes {MOST_VISITORS} visitors: start another one")
            self._visitors += 1
        self._running.wait(WAIT_SECONDS)
        with self._connect_operator() as operator:
            [token] = operator.create_tokens()
        return token
