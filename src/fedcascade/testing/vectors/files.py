"""Writes all cases to files, one for each kind."""

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedcascade.service.protocol.wire import PROTOCOLS
from fedcascade.testing.vectors import arithmetic, messages, sessions
from fedcascade.testing.vectors.draws import Case, Draws

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
}


def write_vectors(folder: Path, seed: int) -> dict[str, int]:
    """Write the cases of every kind to ``folder``; returns how many there are of each."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for kind, build in KINDS.items():
        cases = build(np.random.default_rng([seed, zlib.crc32(kind.encode())]))
        content = {"kind": kind, "protocol": PROTOCOLS[-1], "seed": seed, "cases": cases}
        (folder / f"{kind}.json").write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        counts[kind] = len(cases)
    return counts
