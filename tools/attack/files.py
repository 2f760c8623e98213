"""Attacks on the store's files: what a thief finds after a forgetting, damage, growth."""

import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attack.arena import Arena, list_commands, list_options, run_command
from attack.peers import Peer, play_rounds
from attack.registry import Finding, attack
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol import wire

THETA = np.array([0.5, 0.3, 0.1])


@attack(5, "forgotten data in the store", sends="a forget, then a search of the files", holds="no sum with its data")
def reconstruct_forgotten(arena: Arena) -> Finding:
    """Look for each sum of the agent's data with others' in tables and raw files."""
    server = arena.serve()
    random = np.random.default_rng(3)
    peers = [Peer(server) for _ in range(3)]
    said: list[list[Statistics]] = [[], [], []]
    for _ in range(3):
        for number, peer in enumerate(peers):
            said[number].append(play_rounds(random, THETA, 20))
            assert peer.upload(said[number][-1]).status_code == 200
    server.connect_operator().forget(peers[0].agent)
    targets = [pack(mine + others) for mine, others in list_sums(said)]
    live = find_nearest(arena.folder, targets)
    server.stop()
    return report_nearest(min(live, find_nearest(arena.folder, targets)))


def report_nearest(nearest: float) -> Finding:
    text = "nothing of it is found" if nearest > 1e-3 else f"gram and moment recovered to {nearest:.1g}"
    return Finding(text, nearest > 1e-3)


def list_sums(said: list[list[Statistics]]) -> Iterator[tuple[Statistics, Statistics]]:
    """List the sums that an answer can hold: some uploads of the first agent, and some of each other agent."""
    zero = Statistics.zero(THETA.size)
    prefixes = [[sum(uploads[:size], zero) for size in range(len(uploads) + 1)] for uploads in said]
    for mine in prefixes[0][1:]:
        for others in itertools.product(*prefixes[1:]):
            yield mine, sum(others, zero)


def pack(statistics: Statistics) -> NDArray[np.float64]:
    return np.frombuffer(wire.pack_numbers(statistics), "<f8")


def find_nearest(folder: Path, targets: list[NDArray[np.float64]]) -> float:
    """Find the smallest distance of float64 numbers in the store's files and rows to the targets."""
    return min((measure_distance(blob, target) for blob in list_blobs(folder) for target in targets), default=np.inf)


def list_blobs(folder: Path) -> Iterator[bytes]:
    """List the store's files as they are, and every value in its tables."""
    for path in folder.glob("store.db*"):
        yield path.read_bytes()
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                yield from (value for value in row if isinstance(value, bytes))


def measure_distance(blob: bytes, target: NDArray[np.float64]) -> float:
    """Measure the smallest maximum difference between the target and consecutive float64 numbers, at any offset."""
    best = np.inf
    for offset in range(8):
        usable = (len(blob) - offset) // 8
        values = np.frombuffer(blob, "<f8", count=max(usable, 0), offset=min(offset, len(blob)))
        if values.size < target.size:
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            starts = np.flatnonzero(np.abs(values[: values.size - target.size + 1] - target[0]) < 1e-3)
        for start in starts:
            with np.errstate(invalid="ignore", over="ignore"):
                distance = np.abs(values[start : start + target.size] - target).max()
            best = min(best, float(distance)) if np.isfinite(distance) else best
    return best


def fill_store(arena: Arena, uploads: int = 60) -> list[Statistics]:
    """Fill a store with uploads, and stop the server."""
    server = arena.serve()
    random = np.random.default_rng(6)
    peers = [Peer(server) for _ in range(3)]
    said = []
    for number in range(uploads):
        said.append(play_rounds(random, THETA, 20))
        assert peers[number % 3].upload(said[-1]).status_code == 200
    server.stop()
    shutil.copy(arena.folder / "store.db", arena.folder / "good.db")
    return said


def is_noticed(arena: Arena) -> tuple[bool, str]:
    """Return whether the server or ``fedcascade verify`` rejects a damaged store, and how."""
    if "verify" in list_commands():
        done = run_command("verify", "sqlite:///store.db", folder=arena.folder)
        if done.returncode != 0:
            return "Traceback" not in done.stderr, "verify refuses"
    try:
        server = arena.serve()
    except RuntimeError as error:
        return "Traceback" not in "".join(arena.servers[-1].said), str(error)
    server.stop()
    return False, "starts"


@attack(9, "damaged pages", sends="14 pages with 64 bytes of noise", holds="all are noticed")
def damage_pages(arena: Arena) -> Finding:
    fill_store(arena)
    random = np.random.default_rng(8)
    good = (arena.folder / "good.db").read_bytes()
    noticed = 0
    for page in random.choice(np.arange(1, len(good) // 4096), 14, replace=False):
        damaged = bytearray(good)
        start = int(page) * 4096 + find_content(good[int(page) * 4096 : int(page) * 4096 + 4096])
        damaged[start : start + 64] = random.bytes(64)
        restore_bytes(arena, bytes(damaged))
        noticed += is_noticed(arena)[0]
    return Finding(f"{noticed} of 14 noticed", noticed == 14)


def find_content(page: bytes) -> int:
    """Find the content of an SQLite page, 64 bytes before its end: rows grow from the end."""
    return len(page.rstrip(b"\0")) - 64 if any(page) else 0


@attack(9, "flipped bits in the log", sends="6 uploads with one bit changed", holds="all are noticed")
def flip_bits(arena: Arena) -> Finding:
    said = fill_store(arena)
    good = (arena.folder / "good.db").read_bytes()
    noticed = tried = 0
    for statistics in said[::10]:
        place = good.find(wire.pack_numbers(statistics))
        if place < 0:
            continue
        damaged = bytearray(good)
        damaged[place + 5] ^= 0x10
        restore_bytes(arena, bytes(damaged))
        tried += 1
        noticed += is_noticed(arena)[0]
    return Finding(f"{noticed} of {tried} noticed", noticed == tried > 0)


@attack(9, "truncated store", sends="half of the file", holds="refused in one line")
def truncate_store(arena: Arena) -> Finding:
    fill_store(arena)
    good = (arena.folder / "good.db").read_bytes()
    restore_bytes(arena, good[: len(good) // 8192 * 4096])
    return report_refusal(arena)


@attack(9, "emptied store", sends="a file of 0 bytes", holds="refused in one line")
def empty_store(arena: Arena) -> Finding:
    fill_store(arena)
    restore_bytes(arena, b"")
    return report_refusal(arena)


def report_refusal(arena: Arena) -> Finding:
    """Start a server on what is there; held if it refuses in one line."""
    try:
        arena.serve().stop()
    except RuntimeError:
        said = "".join(arena.servers[-1].said)
        tidy = "Traceback" not in said and said.count("\n") <= 1
        return Finding("refused in one line" if tidy else "a traceback", tidy)
    return Finding("starts as if nothing were wrong", False)


def restore_bytes(arena: Arena, body: bytes) -> None:
    for path in arena.folder.glob("store.db*"):
        path.unlink()
    (arena.folder / "store.db").write_bytes(body)


@attack(10, "store growth", sends="600 uploads at d = 20", holds="less than 1 GB a day at the permitted rate")
def grow_store(arena: Arena) -> Finding:
    server = arena.serve(dimension=20)
    peers, random, theta = [Peer(server) for _ in range(8)], np.random.default_rng(1), np.full(20, 0.1)
    sizes = []
    for uploads in (100, 500):
        for number in range(uploads):
            assert peers[number % 8].upload(play_rounds(random, theta, 25)).status_code == 200
        server.stop()
        sizes.append((arena.folder / "store.db").stat().st_size)
        server.start()
    each = (sizes[1] - sizes[0]) / 500
    rate = find_default("--rate")
    day = each * rate * 86_400 / 1e9
    folds = ", --retain folds old ones" if "--retain" in list_options() else ""
    return Finding(f"{each / 1e3:.2f} KB per upload, {day:.1f} GB a day at {rate:g}/s{folds}", day < 1.0)


def find_default(option: str) -> float:
    """Read the default of an option from the help of the tree under attack."""
    words = run_command("serve", "--help").stdout.replace("│", " ").split()
    after = words[words.index(option) :]
    return float(after[after.index("[default:") + 1].rstrip("]"))
