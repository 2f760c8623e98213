"""A log of uploads and the hash of the state that it leads to, for policies that can be served.

``python tests/simulation/record_uploads.py`` writes the asset that ``test_recorded_uploads.py`` replays. Run it only
when a change of the numbers is meant, and say so in the changelog. Names of policies as arguments record those alone.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedcascade import POLICIES, Server, Synthetic, TopK, simulate
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics

ASSET = Path(__file__).parent / "assets" / "uploads.npz"
SERVED = ("fedc3ucb-h", "population", "force-comm", "fedlinucb")
D = 6


def replay(name: str, uploads: list[Upload]) -> str:
    """The hash of every answer and of the state at the end; agents join at their first upload, and one is forgotten."""
    server, digest = Server(policy=POLICIES[name], agents=1, dimension=D), hashlib.sha256()
    places: dict[int, int] = {}
    forgotten = uploads[0].agent
    for number, upload in enumerate(uploads):
        if upload.agent not in places:
            places[upload.agent] = server.join() if places else 0
        place = places[upload.agent]
        moved = Upload(agent=place, sequence=upload.sequence, cause=upload.cause, statistics=upload.statistics)
        [[_, download]] = server.receive(moved)
        digest.update(download.gram.tobytes() + download.moment.tobytes())
        labels = [int(server.groups.labels[places[agent]]) for agent in sorted(places)]
        digest.update(repr((server.rounds, len(server.holdings), labels)).encode())
        if number == len(uploads) // 2:
            place = places.pop(forgotten)
            server.forget(place)
            places = {agent: place if at == len(server.holdings) else at for agent, at in places.items()}
    for agent in sorted(places):
        for statistics in (server.holdings[places[agent]], server.groups.pooled(places[agent])):
            digest.update(statistics.gram.tobytes() + statistics.moment.tobytes())
            digest.update(repr((statistics.count, statistics.clicks, statistics.rounds)).encode())
    return digest.hexdigest()[:32]


def load() -> dict[str, tuple[list[Upload], str]]:
    """The uploads of each policy and the recorded hash."""
    with np.load(ASSET) as kept:
        logs = {}
        for name in SERVED:
            numbers, counts, causes = kept[f"{name} numbers"], kept[f"{name} counts"], kept[f"{name} causes"]
            uploads = [
                Upload(agent=int(a), sequence=int(s), cause=Cause(str(cause)), statistics=Statistics(
                    row[: D * D].reshape(D, D).copy(), row[D * D :].copy(), int(n), int(c), int(r)))
                for row, (a, s, n, c, r), cause in zip(numbers, counts, causes, strict=True)
            ]  # fmt: skip
            logs[name] = uploads, str(kept[f"{name} state"])
        return logs


def main(policies: list[str]) -> None:
    world = Synthetic(users=12, clusters=3, dimension=D, items=20, seed=3)
    kept: dict[str, Any] = {}
    if policies:
        with np.load(ASSET) as before:
            kept = {key: before[key] for key in before.files if key.split()[0] in SERVED}
    for name in policies or SERVED:
        uploads: list[Upload] = []
        receive = Server.receive

        def record(server: Server, upload: Upload, *more: Upload, uploads: list[Upload] = uploads) -> Any:
            uploads.append(upload)
            return receive(server, upload, *more)  # noqa: B023

        Server.receive = record  # type: ignore[method-assign, assignment]
        simulate(world, POLICIES[name], rounds=2000, oracle=TopK(length=4), engine="reference")
        Server.receive = receive  # type: ignore[method-assign]
        uploads = uploads[:120]
        sums = [one.statistics for one in uploads]
        kept[f"{name} numbers"] = np.array([np.append(one.gram.ravel(), one.moment) for one in sums])
        kept[f"{name} counts"] = np.array(
            [(u.agent, u.sequence, u.statistics.count, u.statistics.clicks, u.statistics.rounds) for u in uploads]
        )
        kept[f"{name} causes"] = np.array([str(one.cause) for one in uploads])
        kept[f"{name} state"] = np.array(replay(name, uploads))
        print(name, len(uploads), kept[f"{name} state"])
    np.savez_compressed(ASSET, **kept)


if __name__ == "__main__":
    main(sys.argv[1:])
