"""Refused requests in the log: a few of each minute one by one, the others counted, so that nobody can fill a disk."""

from collections import Counter

from fedcascade.service.server.logs import log_event

LINES_PER_MINUTE = 20
SECONDS = 60.0
LONGEST_PATH = 100


class RefusalLog:
    """Logs refusals. ``now`` is the time of a clock that is never set back, in seconds."""

    def __init__(self) -> None:
        self._ends, self._lines = 0.0, 0
        self._unlogged: Counter[str] = Counter()

    def record(self, now: float, *, status: int, reason: str, detail: str, path: str, caller: str, agent: str) -> None:
        """Log a refusal, or count it if there were many. ``agent`` is the number in the request, proven or not."""
        self.flush(now)
        if self._lines >= LINES_PER_MINUTE:
            self._unlogged[reason] += 1
            return
        if not self._lines:
            self._ends = now + SECONDS
        self._lines += 1
        who = f"{f'agent {agent}' if agent else 'a caller'} at {caller or 'an unknown address'}"
        facts = {"status": status, "reason": reason, "path": path[:LONGEST_PATH], "caller": caller, "agent": agent}
        log_event(f"refused {who}: {reason}, {detail}", event="refused", **facts)

    def flush(self, now: float) -> None:
        """Log how many more there were, once their minute is over."""
        if now < self._ends:
            return
        if self._unlogged:
            words = ", ".join(f"{count} {reason}" for reason, count in self._unlogged.items())
            total, reasons = self._unlogged.total(), dict(self._unlogged)
            log_event(f"refused {total} more in that minute: {words}", event="refused more", reasons=reasons)
        self._lines = 0
        self._unlogged.clear()
