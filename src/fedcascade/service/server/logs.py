"""The server's log on stderr: lines of text or JSON, which never delay an upload.

A thread writes the lines; if stderr is not read, lines are dropped. Lines contain no tokens and no keys. Each minute
the first refused requests are logged one by one and the others counted, so that no caller can fill a disk.
"""

import json
import logging
import os
import queue
import sys
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, get_args

LevelName = Literal["debug", "info", "warning", "error"]
FormatName = Literal["text", "json"]
VARIABLE = "FEDCASCADE_LOG"  # level and format for child processes
MOST_WAITING = 1_000  # lines
FLUSH_SECONDS = 1.0  # for the last lines at exit
log = logging.getLogger("fedcascade.service")


def log_event(message: str, **facts: object) -> None:
    """Log an event; ``facts`` are the fields of a line in JSON."""
    log.info("%s", message, extra={"facts": facts})


class TextFormatter(logging.Formatter):
    """Lines of text: time, level, message. Control characters are escaped, so callers cannot forge lines."""

    def format(self, record: logging.LogRecord) -> str:
        message = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in record.getMessage())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{format_time(record)} {record.levelname.lower()}: {message}{trace}"


class JsonFormatter(logging.Formatter):
    """Lines of JSON: an object with time, level, message and the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": format_time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def format_time(record: logging.LogRecord) -> str:
    """Format the time of a record in UTC, to the millisecond."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


class StderrHandler(logging.Handler):
    """Handler that writes lines to stderr from a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write_lines, name="fedcascade-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(queue.Full):
            self._lines.put_nowait(self.format(record))

    def close(self) -> None:
        """Wait up to ``FLUSH_SECONDS`` for the remaining lines."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
            self._thread.join(FLUSH_SECONDS)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                print(line, file=sys.stderr, flush=True)
            except (OSError, ValueError):  # stderr is closed
                return


def configure_logging(level: LevelName, form: FormatName) -> None:
    """Log to stderr in this process and its children; of other libraries, only warnings."""
    handler = StderrHandler()
    handler.setFormatter(FORMATTERS[form]())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("fedcascade").setLevel(level.upper())
    os.environ[VARIABLE] = f"{level} {form}"


def configure_as_parent() -> None:
    """Log in the level and format of the parent process, if it set ``FEDCASCADE_LOG``."""
    level, _, form = os.environ.get(VARIABLE, "").partition(" ")
    if level in get_args(LevelName) and form in get_args(FormatName):
        configure_logging(level, form)  # type: ignore[arg-type]


LINES_PER_MINUTE = 20
SECONDS = 60.0
LONGEST_PATH = 100


class RefusalLog:
    """Log of refusals. ``now`` is the time of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._ends, self._lines = 0.0, 0
        self._unlogged: Counter[str] = Counter()

    def record(self, now: float, *, status: int, reason: str, detail: str, path: str, caller: str, agent: str) -> None:
        """Log a refusal, or count it if there were many. ``agent`` is the number that the request claims."""
        self.flush(now)
        if self._lines >= LINES_PER_MINUTE:
            self._unlogged[reason] += 1
            return
        if not self._lines:
            self._ends = now + SECONDS
        self._lines += 1
        sender = f"{f'agent {agent}' if agent else 'a caller'} at {caller or 'an unknown address'}"
        facts = {"status": status, "reason": reason, "path": path[:LONGEST_PATH], "caller": caller, "agent": agent}
        log_event(f"refused {sender}: {reason}, {detail}", event="refused", **facts)

    def flush(self, now: float) -> None:
        """Log the number of further refusals once their minute is over."""
        if now < self._ends:
            return
        if self._unlogged:
            words = ", ".join(f"{count} {reason}" for reason, count in self._unlogged.items())
            total, reasons = self._unlogged.total(), dict(self._unlogged)
            log_event(f"refused {total} more in that minute: {words}", event="refused more", reasons=reasons)
        self._lines = 0
        self._unlogged.clear()
