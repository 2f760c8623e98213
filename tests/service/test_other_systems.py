"""A server and an agent do their work without what Windows and macOS lack: it is taken away before they start."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.connection import connect
from fedcascade.service.store.open import open_store

from .helpers import ServerProcess

BARE = """
import asyncio, concurrent.futures.thread, logging, os, random, select, subprocess, sys
for module in ("resource", "uvloop", "fcntl"):
    sys.modules[module] = None
for name in ("fork", "register_at_fork", "sched_getaffinity", "sysconf", "link"):
    delattr(os, name)
def refuse(*_):
    raise OSError(1, "no links here")
os.link = refuse
sys.argv[0] = "fedcascade"
from fedcascade.cli import main
main()
"""


class BareServerProcess(ServerProcess):
    """``fedcascade serve`` on a system without limits, links, sockets for children, forks and uvloop."""

    def command(self) -> list[str]:
        python, _, _, *rest = super().command()
        return [python, "-c", BARE, *rest]


def test_a_server_without_what_linux_has_counts_what_an_agent_sends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    server = BareServerProcess(tmp_path / "server", url).start()
    try:
        running = server.connect()
        [token] = running.operator.create_tokens(1)
        policy = replace(POLICIES["fedc3ucb-h"], trigger=Always())
        with connect(
            server.url, store=str(tmp_path / "agent.db"), token=token, policy=policy, min_observations=0
        ) as agent:
            for axis in range(3):
                agent.feedback(agent.recommend(np.eye(1, 3, axis, dtype=np.float32), 1), 0)
            assert agent.flush(60), agent.trouble
        running.transport.close()
    finally:
        server.stop()
    with closing(open_store(url)) as store, store.transaction():
        assert sum(entry.upload.statistics.rounds for entry in store.read_entries(after=0)) == 3
