"""Plays small simulations with compilation off, so that every line of the compiled functions runs as plain Python.

``NUMBA_DISABLE_JIT=1 python -m tests.simulation.interpreted POLICY ...`` prints a hash of each Trace. What exists in
compiled code alone, the instructions for sixteen numbers at a time, is replaced by NumPy here.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba.core.extending import _Intrinsic as Intrinsic

from fedcascade.numerics import jit, simd

ROUNDS = 60
LANES, LOWEST = simd.LANES, np.float32(-np.inf)


def store(row: Any, at: int, lanes: Any) -> None:
    row[at : at + LANES] = lanes


def fetch_and_increment(counter: Any) -> int:
    counter[0] += 1
    return int(counter[0]) - 1


def mask_at_least(row: Any, at: int, floor: Any) -> np.uint64:
    reached = row[at : at + simd.MASK_BITS] >= floor
    return np.uint64(sum(1 << int(place) for place in np.flatnonzero(reached)))


# What each function of simd does, for sixteen numbers in a NumPy array.
MEANING: dict[str, Callable[..., Any]] = {
    "load": lambda row, at: row[at : at + LANES].copy(),
    "store": store,
    "broadcast": lambda number: np.full(LANES, number, np.float32),
    "load_broadcast": lambda row, at: np.full(LANES, row[at], np.float32),
    "multiply_add": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
    "add": lambda a, b: a + b,
    "sqrt": np.sqrt,
    "maximum": np.maximum,
    "keep_first": lambda lanes, count: np.where(np.arange(LANES) < count, lanes, LOWEST),
    "keep_below": lambda lanes, number: np.where(lanes < number, lanes, LOWEST),
    "reduce_max": np.max,
    "count_at_least": lambda lanes, number: int((lanes >= number).sum()),
    "mask_at_least": mask_at_least,
    "find_lowest_bit": lambda bits: (int(bits) & -int(bits)).bit_length() - 1,
}


def replace_intrinsics() -> None:
    """Let NumPy do what instructions do; to be called before the engine is imported, which takes names from here."""
    for name, value in list(vars(simd).items()):
        if isinstance(value, Intrinsic):
            setattr(simd, name, MEANING[name])
    jit.fetch_and_increment = fetch_and_increment
    np.seterr(over="ignore", invalid="ignore")  # unsigned numbers wrap around, and padding has no square root


def pytest_configure() -> None:
    """Run any test with compilation off: ``NUMBA_DISABLE_JIT=1 pytest -p tests.simulation.interpreted``."""
    replace_intrinsics()


def hash_runs(policies: list[str]) -> Iterator[tuple[str, str]]:
    """Play every policy in small worlds. Yields the run's name and the hash of its Trace."""
    # Not before the intrinsics are replaced: these import the engine.
    from fedcascade import POLICIES, Synthetic, TopK, simulate
    from fedcascade.simulation.scenario import Delay

    from .record_traces import SHAPES, hash_trace

    worlds: dict[str, tuple[Any, int, float]] = {name: (make(0), k, 1.0) for name, (make, _, k) in SHAPES.items()}
    # So many items and so small a beta that a bound rules most items out before their widths are computed.
    worlds["crowded"] = (Synthetic(users=2, clusters=1, dimension=4, items=80), 2, 0.2)
    for shape, (world, length, beta) in worlds.items():
        for name in policies:
            policy, oracle = POLICIES[name].with_beta(beta), TopK(length=length)
            trace = simulate(world, policy, rounds=ROUNDS, oracle=oracle, keep_lists=True, threads=2)
            yield f"{name} {shape}", hash_trace(trace)
    valued = Synthetic(users=2, clusters=1, dimension=4, items=9, rewards="beta")
    for name in policies:
        trace = simulate(valued, POLICIES[name], rounds=ROUNDS, delay=Delay(0, 9), batch=3, keep_lists=True)
        yield f"{name} late values", hash_trace(trace)


if __name__ == "__main__":
    replace_intrinsics()
    print(json.dumps(dict(hash_runs(sys.argv[1:]))))
