"""What a server writes to stderr for its operator: lines of text or JSON, which never hold up an upload.

A thread writes. Where stderr is not read, lines are dropped, not waited for. Tokens and keys are in no line. Of refused
requests a few of each minute are logged one by one, the others counted, so that no caller can fill a disk.
"""

import atexit
import json
import logging
import os
import queue
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Literal, get_args

LevelName = Literal["debug", "info", "warning", "error"]
FormatName = Literal["text", "json"]
VARIABLE = "FEDCASCADE_LOG"  # how processes beside the server are told its level and format
MOST_WAITING = 1_000  # lines
FLUSH_SECONDS = 1.0  # for the last lines, at the end
log = logging.getLogger("fedcascade.service")


def log_event(message: str, **facts: object) -> None:
    """Log something that took place; ``facts`` are the fields of a line in JSON."""
    log.info("%s", message, extra={"facts": facts})


class TextFormatter(logging.Formatter):
    """A line for people: time, level, message. What strangers sent cannot begin a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in record.getMessage())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{format_time(record)} {record.levelname.lower()}: {message}{trace}"


class JsonFormatter(logging.Formatter):
    """A line for machines: one object with time, level and message, and the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": format_time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def format_time(record: logging.LogRecord) -> str:
    """Format when something was logged, in UTC, to the millisecond."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


class StderrHandler(logging.Handler):
    """Hands lines to a thread that writes them to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write_lines, name="fedcascade-log", daemon=True)
        self._thread.start()
        atexit.register(self.finish)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            return

    def finish(self) -> None:
        """Wait a moment for the lines that are still to be written."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(FLUSH_SECONDS)

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                print(line, file=sys.stderr, flush=True)
            except (OSError, ValueError):  # nobody reads, or stderr is closed
                return


def configure_logging(level: LevelName, form: FormatName) -> None:
    """Log to stderr from now on, in this process and in those that it starts; of other libraries, warnings alone."""
    handler = StderrHandler()
    handler.setFormatter(FORMATTERS[form]())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("fedcascade").setLevel(level.upper())
    os.environ[VARIABLE] = f"{level} {form}"


def configure_as_parent() -> None:
    """Log as the server does that started this process, if it said how."""
    level, _, form = os.environ.get(VARIABLE, "").partition(" ")
    if level in get_args(LevelName) and form in get_args(FormatName):
        configure_logging(level, form)  # type: ignore[arg-type]


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
