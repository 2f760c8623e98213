"""Full Traces of every policy as hashes: what no redesign may change.

``python tests/simulation/record_traces.py`` writes the assets that ``test_recorded_traces.py`` compares with. Run it
only when a change of the numbers is meant: raise ``simulation.trace.ARITHMETIC`` then, and say so in the changelog.
Names of policies as arguments record those alone.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedcascade import POLICIES, Ratings, Synthetic, TopK, Trace, simulate
from fedcascade.environments.matrices import generate_ratings

ASSET = Path(__file__).parent / "assets" / "traces.json"
SEEDS = (0, 7)
# The betas of the day when Traces were recorded, of policies whose own has changed since.
BETAS = {"fedind": 10.5, "known-clusters": 10.5}


def make_paper_world(seed: int) -> Any:
    return Synthetic(users=12, clusters=3, dimension=6, items=20, seed=seed)


def make_uneven_world(seed: int) -> Any:
    return Synthetic(
        users=7,
        clusters=[4, 2, 1],
        dimension=5,
        items=(3, 17),
        features="gaussian",
        arrivals="zipf",
        drift=500,
        seed=seed,
    )


def make_ratings_world(seed: int) -> Any:
    return Ratings.from_matrix(generate_ratings(60, 80), users=10, clusters=3, dimension=8, items=20, seed=seed)


# name of a shape: its world, the rounds to play, the length of a list
SHAPES: dict[str, tuple[Callable[[int], Any], int, int]] = {
    "paper": (make_paper_world, 1500, 4),
    "uneven": (make_uneven_world, 1000, 3),
    "ratings": (make_ratings_world, 800, 2),
}


def hash_world(world: Any) -> str:
    """Of all that a world is before its first round: a world of ratings comes from LAPACK, rounded to the grid."""
    return hashlib.sha256(np.asarray(world.thetas).tobytes() + np.asarray(world.catalogue).tobytes()).hexdigest()[:16]


def hash_trace(trace: Trace) -> str:
    """Of lists, ledger, curve and labels, floats to the last bit."""
    digest = hashlib.sha256()
    assert trace.lists is not None
    digest.update(np.ascontiguousarray(trace.lists).tobytes())
    for exchange in trace.ledger:
        line = (exchange.round, exchange.agent, str(exchange.cause), exchange.bytes_up, exchange.bytes_down)
        digest.update(repr(line).encode())
    for point in trace.curve:
        totals = (point.round, point.regret.hex(), point.reward, point.communications, point.clustering_error.hex())
        digest.update(repr(totals).encode())
    digest.update(repr((trace.observations, trace.partition)).encode())
    return digest.hexdigest()[:32]


def play(policy: str, shape: str, seed: int, engine: Any) -> tuple[str, str]:
    """The hashes of the world and of the Trace."""
    make, rounds, length = SHAPES[shape]
    world, row = make(seed), POLICIES[policy]
    row = row.with_constants(beta=BETAS[policy]) if policy in BETAS else row
    trace = simulate(world, row, rounds=rounds, oracle=TopK(length=length), engine=engine, keep_lists=True, threads=2)
    return hash_world(world), hash_trace(trace)


def list_cases() -> Iterator[tuple[str, str, int]]:
    for policy in POLICIES:
        for shape in SHAPES:
            for seed in SEEDS:
                yield policy, shape, seed


def main(policies: list[str]) -> None:
    recorded: dict[str, dict[str, str]] = json.loads(ASSET.read_text(encoding="utf-8")) if policies else {}
    for policy, shape, seed in list_cases():
        if policies and policy not in policies:
            continue
        reference, exact = (play(policy, shape, seed, engine) for engine in ("reference", "exact"))
        assert reference == exact, (policy, shape, seed)
        recorded[f"{policy} {shape} {seed}"] = {"world": reference[0], "trace": reference[1]}
        print(policy, shape, seed, reference[1], flush=True)
    ASSET.parent.mkdir(exist_ok=True)
    ASSET.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
