"""Progress on stderr: bars on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import progress
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from fedcascade.experiments.runner import Progress

GETTING_READY = "getting ready (compiles once per installation, about half a minute)"
COMPILING = "compiling, once per installation: about half a minute"
LINE_SECONDS = 10.0  # between two lines without a terminal


class _SpeedColumn(progress.TextColumn):
    """Rounds per second, without compilation: a task starts with its first rounds."""

    def render(self, task: progress.Task) -> Text:
        return Text(f"{task.speed or 0:,.0f} rounds/s" if task.started else GETTING_READY)


ROUNDS = (progress.MofNCompleteColumn(), _SpeedColumn(""))
RUNS = (progress.TaskProgressColumn(),)


def print_line(line: str) -> None:
    """Print a line to stderr and flush."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def show_progress_bars(counted: tuple[progress.ProgressColumn, ...] = ROUNDS) -> Iterator[progress.Progress]:
    """Show progress bars on stderr until done; hide them without a terminal."""
    console = Console(stderr=True)
    name = progress.TextColumn("{task.description:<16}")
    columns = (name, progress.BarColumn(), *counted, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield bars


def add_bar(bars: progress.Progress, name: str, rounds: int) -> Callable[[int], None]:
    """Add a bar, and return a callback that takes the number of finished rounds."""
    task = bars.add_task(name, total=rounds, start=False)

    def report(done: int) -> None:
        bars.start_task(task)
        bars.update(task, completed=done)

    return report


@contextmanager
def show_runs(*, lines: bool = True) -> Iterator[Callable[["Progress"], None]]:
    """Show the progress of runs: a bar over all rounds, or ``lines`` without a terminal."""
    if Console(stderr=True).is_terminal:
        with show_progress_bars(RUNS) as bars:
            yield _make_bar(bars)
    else:
        yield _make_lines() if lines else lambda _: None


def _make_bar(bars: progress.Progress) -> Callable[["Progress"], None]:
    """Add a bar over all rounds; its clock starts with the first new round."""
    task = bars.add_task("starting", total=None, start=False)
    rounds_before: int | None = None

    def show(now: "Progress") -> None:
        nonlocal rounds_before
        if rounds_before is None:
            rounds_before = now.rounds
        if now.rounds > rounds_before:
            bars.start_task(task)
        words, rounds = f"{now.runs:,} of {now.all_runs:,} runs", min(now.rounds, now.all_rounds)
        bars.update(task, description=words, total=now.all_rounds, completed=rounds)

    return show


def _make_lines() -> Callable[["Progress"], None]:
    """Return a callback that prints a line at the start and every few seconds."""
    printed_at, before, base = 0.0, -1, (0.0, 0)

    def show(now: "Progress") -> None:
        nonlocal printed_at, before, base
        if now.runs == now.all_runs or time.monotonic() < printed_at + LINE_SECONDS:
            return
        printed_at = time.monotonic()
        words = GETTING_READY if before < 0 else f"{now.rounds / now.all_rounds:.0%} of all rounds"
        if 0 < base[1] < now.rounds:
            speed = (now.rounds - base[1]) / (printed_at - base[0])
            words += f", about {(now.all_rounds - now.rounds) / speed / 60:.1f} min left"
        elif 0 <= before < now.rounds:  # the clock starts with the first line after compilation
            base = printed_at, now.rounds
        before = now.rounds
        print_line(f"{now.runs:,} of {now.all_runs:,} runs: {words}")

    return show
