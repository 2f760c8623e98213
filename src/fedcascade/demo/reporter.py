"""A simulated run tells the server its regret and reward now and then, so that the page can draw them."""

import time

from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.protocol.errors import Refused
from fedcascade.simulation.trace import Recorder

SERIES = "this run"
EVERY_SECONDS = 0.5


class Reporter:
    """Called after every round of a swarm; the first report forgets those of earlier runs."""

    def __init__(self, operator: OperatorClient) -> None:
        self._operator = operator
        self._due = 0.0
        self._refused = not self._sent(fresh=True)

    def __call__(self, t: int, recorder: Recorder) -> None:
        """Report if it is time, and at the end."""
        if self._refused or (time.monotonic() < self._due and t != recorder.rounds):
            return
        self._due = time.monotonic() + EVERY_SECONDS
        self._sent((SERIES, t, recorder.regret, recorder.reward))

    def _sent(self, *measures: tuple[str, int, float, int], fresh: bool = False) -> bool:
        """A server that knows no reports, or has no time for one, is no reason to stop."""
        try:
            self._operator.report_measures(measures, fresh=fresh)
        except (Refused, OSError):
            return False
        return True
