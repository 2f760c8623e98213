"""Damage a server's store at random places, again and again; count what is named, without effect, and silent.

Run it as a program: ``python tests/service/store/damages.py --damages 1000``. A damage changes one to three bytes. It
is *named* if opening, verifying or replaying the store ends with one line that says so, *without effect* if all that a
server reads from the store is the same, and *silent* otherwise.
"""

import argparse
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedcascade.federation.policies import POLICIES
from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.operations import add_tokens, forget, revoke, set_operator
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.epoch import load_epoch
from fedcascade.service.store.open import open_store
from fedcascade.testing.stores import make_unit_upload, record_upload

POLICY, DIMENSION, AGENTS, UPLOADS = POLICIES["fedc3ucb-h"], 8, 12, 240
KINDS = ("named", "without effect", "silent")


def write_store(path: Path) -> None:
    """Write a store with log, journal, snapshot, tokens, audit log, a revoked agent and a forgotten one."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        state, journal = ServerState(POLICY, DIMENSION), JournalWriter()
        with store.transaction():
            state.epoch = load_epoch(store)
            set_operator("the token of an operator")(store, state)
            add_tokens([f"token {number} of an operator" for number in range(20)], 4e9)(store, state)
            agents = [add_agent(store, bytes([number]) * 32, 1.0) for number in range(AGENTS)]
            for number in range(UPLOADS):
                agent, sequence, axis = agents[number % AGENTS], 1 + number // AGENTS, number % DIMENSION
                upload = make_unit_upload(agent, sequence, axis, dimension=DIMENSION)
                record_upload(store, state, upload, number)
                if number == UPLOADS // 2:
                    save_snapshot(store, state)
            journal.write(store, state, 0)
            revoke(agents[1], 2.0)(store, state)
            for number in range(20):
                assert store.use_nonce(agents[2 + number % 9], number + 1, 4_000_000_000)
            forget(agents[0])(store, state)
        store.run_maintenance(purge=True)


def read_all(path: Path) -> Any:
    """Verify a store and replay its log, as a server does; return every row that it reads."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.verify()
        with store.transaction():
            state = replay_log(store, POLICY, DIMENSION)
        return state.dump(), [(table, sorted(map(repr, rows))) for table, _, rows in store.read_tables()]  # type: ignore[attr-defined]


def damage(body: bytes, random: np.random.Generator) -> tuple[bytes, list[int]]:
    """Change one to three bytes; return also their places."""
    damaged, places = bytearray(body), random.integers(0, len(body), int(random.integers(1, 4))).tolist()
    for place in places:
        damaged[place] ^= int(random.integers(1, 256))
    return bytes(damaged), places


def judge(path: Path, expected: Any) -> str:
    """Read a damaged store; return what became of the damage, or an error that is no line for an operator."""
    try:
        return "without effect" if read_all(path) == expected else "silent"
    except (Unavailable, ValueError) as error:
        return "named" if "store" in str(error) and "\n" not in str(error) else repr(error)
    except Exception as error:
        return repr(error)


def run(damages: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Damage a store so many times; return the counts, and the places of what was neither named nor without effect."""
    whole, path = folder / "whole.db", folder / "store.db"
    write_store(whole)
    body, expected = whole.read_bytes(), read_all(whole)
    random, found, flaws = np.random.default_rng(seed), Counter[str](), []
    for _ in range(damages):
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        damaged, places = damage(body, random)
        path.write_bytes(damaged)
        verdict = judge(path, expected)
        found[verdict] += 1
        if verdict not in KINDS[:2]:
            flaws.append(f"{verdict} at {places}")
    return found, flaws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, flaws = run(given.damages, given.seed, Path(folder))
    print(", ".join(f"{kind}: {count}" for kind, count in found.most_common()))
    print("\n".join(flaws[:20]))
    sys.exit(bool(flaws))


if __name__ == "__main__":
    main()
