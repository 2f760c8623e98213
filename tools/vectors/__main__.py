"""Write all cases to files, one for each kind: ``PYTHONPATH=tools python -m vectors --out FOLDER``."""

import argparse
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedcascade.service.protocol.wire import PROTOCOLS
from vectors import arithmetic, messages, sessions
from vectors.draws import Case, Draws

KINDS: Mapping[str, Callable[[Draws], list[Case]]] = {
    "logarithms": arithmetic.build_logarithms,
    "exponentials": arithmetic.build_exponentials,
    "features": arithmetic.build_features,
    "statistics": arithmetic.build_statistics,
    "ridges": arithmetic.build_ridges,
    "trust": arithmetic.build_trust,
    "drift": arithmetic.build_drift,
    "oracles": arithmetic.build_oracles,
    "triggers": arithmetic.build_triggers,
    "possible": arithmetic.build_possible,
    "uploads": messages.build_uploads,
    "answers": messages.build_answers,
    "signatures": messages.build_signatures,
    "enrolments": messages.build_enrolments,
    "sessions": sessions.build_sessions,
    "rewards": arithmetic.build_rewards,
    "valued_sessions": sessions.build_valued_sessions,
    "privacy": arithmetic.build_privacy,
    "private_sessions": sessions.build_private_sessions,
}


def write_vectors(folder: Path, seed: int) -> dict[str, int]:
    """Write the cases of every kind to ``folder``; return the number of each."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for kind, build in KINDS.items():
        cases = build(np.random.default_rng([seed, zlib.crc32(kind.encode())]))
        content = {"kind": kind, "protocol": PROTOCOLS[-1], "seed": seed, "cases": cases}
        (folder / f"{kind}.json").write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        counts[kind] = len(cases)
    return counts


def main() -> None:
    """Write the cases, and print the number of each kind."""
    parser = argparse.ArgumentParser(prog="vectors", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to: one JSON file for each kind")
    parser.add_argument("--seed", type=int, default=1, help="names the cases")
    options = parser.parse_args()
    counts = write_vectors(options.out, options.seed)
    for kind, count in [*counts.items(), ("in all", sum(counts.values()))]:
        print(f"{kind:<12} {count:>4}")


if __name__ == "__main__":
    main()
