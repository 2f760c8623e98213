"""A demo beside a server: simulated users with real agents, two yardsticks on the same streams, and a shop window."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcascade.demo.catalogue import DIMENSION
from fedcascade.demo.reporter import Reporter
from fedcascade.demo.shop import Shop
from fedcascade.demo.swarm import swarm
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.simulation.trace import Recorder

POLICY = "fedc3ucb-e"
CONSTANTS = {"alpha_c": 1.0, "beta": 1.0}
ITEMS, LIST_LENGTH, CHECKPOINTS = 12, 2, 200
YARDSTICKS = {"fedind": "alone", "known-clusters": "clusters known"}
WAIT_SECONDS = 30.0
STORY = (
    "Each dot is the agent of one simulated user: it shows lists, learns from the clicks, and keeps them to itself.",
    "Now and then an agent sends the server a summary; where one taste explains the summaries of several agents, the"
    " server lets them share what they learn, and their dots gather in a cluster.",
    "Watch the regret flatten as the clusters are found: it should end below that of agents who never talk, and above"
    " that of agents who were told the clusters.",
)
Clusters = Callable[[], dict[int, int]]


class Stopped(Exception):  # noqa: N818 (not an accident)
    """The demo ends before its last round."""


@dataclass(frozen=True, kw_only=True)
class Play:
    """What a demo plays."""

    users: int = 40
    clusters: int = 5
    rounds: int = 20_000
    seed: int = 1

    def world(self) -> Synthetic:
        """The users and what they are offered."""
        return Synthetic(users=self.users, clusters=self.clusters, dimension=DIMENSION, items=ITEMS, seed=self.seed)

    def policy(self) -> Policy:
        """The system that serves them."""
        return get_policy(POLICY).with_known_constants(CONSTANTS)

    def yardstick_command(self) -> list[str]:
        """The command that plays both yardsticks with the exact engine, with the same users, items and luck."""
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

    def __init__(self, play: Play, *, pace: float, token: Path) -> None:
        self.play = play
        self.pace = pace
        self.round = 0
        self.state = "starting"
        self._token = token
        self._url = ""
        self._clusters: Clusters = dict
        self._began = threading.Event()
        self._woken = threading.Condition()
        self._ending = False
        self._due = 0.0
        self._threads: list[threading.Thread] = []
        self._yardsticks: subprocess.Popen[str] | None = None
        self.shop = Shop(self._visitor, lambda: self._clusters(), play.seed)

    def describe_progress(self) -> dict[str, Any]:
        """How far it is, for pages."""
        play = self.play
        return {
            "state": self.state,
            "pace": self.pace,
            "round": self.round,
            "rounds": play.rounds,
            "users": play.users,
            "clusters": play.clusters,
            "seed": play.seed,
            "visitor": self.shop.visitor,
        }

    def introduce(self) -> dict[str, Any]:
        """The same for a page that has just been opened."""
        return self.describe_progress() | {"story": STORY}

    def set_pace(self, pace: float) -> None:
        """Rounds per second from now on; 0 pauses."""
        with self._woken:
            self.pace, self._due = pace, time.monotonic()
            self._woken.notify_all()

    def start(self, url: str, clusters: Clusters) -> None:
        """Start the users and the yardsticks; ``clusters`` says where the server has placed whom."""
        self._url, self._clusters = url, clusters
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # forty agents have much to say
        for work in (self._swarm, self._measure_yardsticks):
            thread = threading.Thread(target=work, name="fedcascade-demo", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop all of it."""
        with self._woken:
            self._ending = True
            self._woken.notify_all()
        if self._yardsticks is not None:
            self._yardsticks.terminate()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        self.shop.close()

    def _operator(self) -> OperatorClient:
        return OperatorClient(HttpTransport(self._url), self._token.read_text(encoding="utf-8").strip())

    def _swarm(self) -> None:
        operator = self._operator()
        reporter = Reporter(operator)
        try:
            swarm(
                self.play.world(),
                self.play.policy(),
                rounds=self.play.rounds,
                operator=operator,
                new_transport=lambda: HttpTransport(self._url),
                folder=None,
                list_length=LIST_LENGTH,
                watch=lambda t, recorder: self._after_round(t, recorder, reporter),
            )
            self.state = "done"
        except Stopped:
            self.state = "stopped"
        except (OSError, ValueError) as error:
            self.state = f"stopped: {error}"
        finally:
            operator.transport.close()

    def _after_round(self, t: int, recorder: Recorder, reporter: Reporter) -> None:
        """Report, and wait until the next round is due; a pace that cannot be kept is not made up for."""
        self.round, self.state = t, "running"
        self._began.set()
        reporter(t, recorder)
        with self._woken:
            now = time.monotonic()
            self._due = max(self._due, now - 0.1) + 1.0 / max(self.pace, 1e-9)
            while not self._ending and (self.pace == 0 or self._due > time.monotonic()):
                self._woken.wait(None if self.pace == 0 else self._due - time.monotonic())
            if self._ending:
                raise Stopped

    def _measure_yardsticks(self) -> None:
        """Play 'alone' and 'clusters known' in a process of their own, and report their curves."""
        operator = self._operator()
        command = self.play.yardstick_command()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            self._yardsticks = process
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                series = YARDSTICKS[told["policy"]]
                operator.report_measures([(series, point["round"], point["regret"], 0) for point in told["curve"]])
        operator.transport.close()

    def _visitor(self) -> RemoteAgent:
        """The agent of the visitor, who comes after the simulated users."""
        self._began.wait(WAIT_SECONDS)
        operator = self._operator()
        try:
            [token] = operator.create_tokens()
        finally:
            operator.transport.close()
        eager = replace(self.play.policy(), trigger=Always())  # a visitor wants to see soon what the server decides
        return connect(self._url, store=":memory:", token=token, policy=eager)
