"""Reports regret and reward of a simulated run to the server, so that the dashboard can draw them."""

import time

from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.protocol.errors import Refused
from fedcascade.simulation.trace import Recorder

SERIES = "this run"
EVERY_SECONDS = 0.5


class RegretReporter:
    """Reports the totals of a swarm twice a second; the first report drops those of earlier runs."""

    def __init__(self, operator: OperatorClient) -> None:
        self._operator = operator
        self._due = 0.0
        self._accepted = self._send(fresh=True)

    def report_round(self, t: int, recorder: Recorder) -> None:
        """Report after a round, if half a second has passed or it was the last one."""
        if not self._accepted or (time.monotonic() < self._due and t != recorder.rounds):
            return
        self._due = time.monotonic() + EVERY_SECONDS
        self._send((SERIES, t, recorder.regret, recorder.reward))

    def _send(self, *measures: tuple[str, int, float, int], fresh: bool = False) -> bool:
        """Send a report; False if the server did not take it, which is no reason to stop."""
        try:
            self._operator.report_measures(measures, fresh=fresh)
        except (Refused, OSError):
            return False
        return True
