"""Accidents: restored backups, copied files, wrong clocks, new terms. Agents recover, and nothing counts twice."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from attack.arena import Arena, ServerProcess, take_over_with, wait_until
from attack.peers import connect_agent, fetch_rounds, teach
from attack.registry import Finding, attack
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import RemoteAgent

with suppress(ImportError):  # older trees have no clock: their agents read the system's
    from fedcascade.service.protocol.clock import Clock

PATIENCE = 15.0  # seconds until an agent should have been answered
DAY = 86_400.0


def back_up(server: ServerProcess) -> None:
    """Stop the server, keep a copy of its files, and start it again."""
    server.stop()
    copy_store(server.folder, "store.db", "copy.db")
    server.start()


def restore(server: ServerProcess) -> None:
    """Stop the server, replace its files by the copy, and start it again, without notice to agents."""
    server.stop()
    for path in server.folder.glob("store.db*"):
        path.unlink()
    copy_store(server.folder, "copy.db", "store.db")
    server.start()


def copy_store(folder: Path, source: str, target: str) -> None:
    """Copy a store's file with the write-ahead log that a server may have left beside it."""
    for path in folder.glob(f"{source}*"):
        shutil.copy(path, folder / path.name.replace(source, target))


def settle(agent: RemoteAgent) -> str:
    """Wait for all answers; return 'answered', or what is left and why."""
    if agent.flush(PATIENCE):
        return "answered"
    return f"{agent.unsent} wait: {str(agent.trouble)[:160]}"


def count_lost(agent: RemoteAgent) -> int:
    """Return the agent's count of lost rounds; 0 in a tree without one."""
    return int(getattr(agent, "lost", 0))


@attack(
    6,
    "backup restored, agent ahead",
    sends="5 uploads, backup, 5 more, restore, 1 more",
    holds="what is lost is said",
)
def restore_backup(arena: Arena) -> Finding:
    server = arena.serve()
    agent = connect_agent(server, str(arena.folder / "agent.db"))
    try:
        rounds = teach(agent, 5)
        agent.flush(PATIENCE)
        back_up(server)
        rounds += teach(agent, 5, seed=2)
        agent.flush(PATIENCE)
        restore(server)
        rounds += teach(agent, 1, seed=3)
        state = settle(agent)
        wait_until(lambda: fetch_rounds(server, agent.id) == rounds, 5.0)
        held = fetch_rounds(server, agent.id)
        lost = count_lost(agent)
    finally:
        agent.close()
    measured = f"{state}; the server holds {held} of {rounds} rounds, {lost} are said to be lost"
    return Finding(measured, state == "answered" and held + lost == rounds)


@attack(6, "enrolled after the backup", sends="backup, enrol, restore, another enrols", holds="both go on")
def enrol_after_backup(arena: Arena) -> Finding:
    server = arena.serve()
    back_up(server)
    agent = connect_agent(server, str(arena.folder / "agent.db"))
    try:
        rounds = teach(agent, 3)
        agent.flush(PATIENCE)
        number = agent.id
        restore(server)
        newcomer = connect_agent(server, str(arena.folder / "newcomer.db"))
        other = teach(newcomer, 1)
        newcomer.flush(PATIENCE)
        rounds += teach(agent, 1, seed=2)
        state = settle(agent)
        wait_until(lambda: fetch_rounds(server, agent.id) == rounds, 5.0)
        held, others = fetch_rounds(server, agent.id) + count_lost(agent), fetch_rounds(server, newcomer.id)
        reused = newcomer.id == number
        newcomer.close()
    finally:
        agent.close()
    measured = f"{state}; number {'' if reused else 'not '}reused; {held} of {rounds} rounds held or lost"
    return Finding(measured, state == "answered" and not reused and (held, others) == (rounds, other))


@attack(
    6,
    "agent file copied",
    sends="the copy and the original both upload",
    holds="both are answered, nothing counts twice",
)
def clone_agent(arena: Arena) -> Finding:
    server = arena.serve()
    path, copy = arena.folder / "agent.db", arena.folder / "clone.db"
    with connect_agent(server, str(path)) as agent:
        teach(agent, 3)
        agent.flush(PATIENCE)
        number = agent.id
    shutil.copy(path, copy)
    with connect(server.url, store=str(path), pauses=(0.05, 0.5)) as agent:
        teach(agent, 2, seed=2)
        original = settle(agent)
    with connect(server.url, store=str(copy), pauses=(0.05, 0.5)) as clone:
        teach(clone, 2, seed=3)
        copied = settle(clone)
    held = fetch_rounds(server, number)
    return Finding(f"original {original}, copy {copied}; {held} rounds held", original == copied == "answered")


@attack(6, "clock a day ahead", sends="40 uploads ahead, then one", holds="answered")
def correct_clock(arena: Arena) -> Finding:
    server = arena.serve("--policy", "fedc3ucb-h")  # its agents also upload at random
    path = str(arena.folder / "agent.db")
    with shift_clock(DAY) as options, connect_agent(server, path, **options) as agent:
        teach(agent, 40)
        ahead = settle(agent)
    with connect(server.url, store=path, pauses=(0.05, 0.5)) as agent:
        teach(agent, 1, seed=2)
        after = settle(agent)
    return Finding(f"ahead: {ahead}; corrected: {after}", ahead == after == "answered")


@contextmanager
def shift_clock(seconds: float) -> Iterator[dict[str, Any]]:
    """Shift the clock of an agent; yield options for ``connect``."""
    real = time.time
    time.time = lambda: real() + seconds
    try:
        yield {"clock": Clock(now=time.time)} if "clock" in signature(connect).parameters else {}
    finally:
        time.time = real


@attack(6, "terms changed", sends="the server starts again with --lambda 2000", holds="the agent's estimate follows")
def change_terms(arena: Arena) -> Finding:
    server = arena.serve("--policy", "fedc3ucb-h")  # its agents also upload at random
    agent = connect_agent(server, str(Path(arena.folder) / "agent.db"))
    try:
        teach(agent, 20)
        agent.flush(PATIENCE)
        before = float(np.linalg.norm(agent.estimate))
        server.stop()
        server.options += take_over_with("--lambda", "2000")
        server.start()
        teach(agent, 3, seed=2)
        state = settle(agent)
        after = float(np.linalg.norm(agent.estimate))
    finally:
        agent.close()
    return Finding(f"{state}; |theta| from {before:.2f} to {after:.2f}", state == "answered" and after < before / 4)
