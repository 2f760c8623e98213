"""Prints the functions of fedcascade that one exchange enters, in order, from ``feedback`` to the answer and back.

The server, its verifier and the agent run in this process, with a socket between them. The two loops that wait for work
are entered before the exchange begins, and so are not listed: ``Writer._run_loop`` and ``RemoteAgent._send_uploads``.
"""

import socket
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import uvicorn

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.server.app import build_application
from fedcascade.service.server.http import ExchangeHttpProtocol
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Limits, Service
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.open import open_store

TOKEN = "the-operators-token"
POLICY = POLICIES["fedc3ucb-h"]


class CallRecorder:
    """Records the functions of fedcascade that are entered in any thread while it is switched on."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_on = False

    def record(self, frame: FrameType, event: str, _: object) -> None:
        """Take one event of ``sys.setprofile``."""
        module = frame.f_globals.get("__name__", "")
        name = frame.f_code.co_qualname
        if self.is_on and event == "call" and module.startswith("fedcascade.") and "<" not in name.split(".")[-1]:
            self.calls.append(f"{module}:{name}")


def trace(folder: Path) -> list[str]:
    """The functions that one exchange enters, each once, in the order of their first calls."""
    recorder = CallRecorder()
    threading.setprofile(recorder.record)
    sys.setprofile(recorder.record)
    writer = Writer(lambda: open_store(f"sqlite:///{folder}/store.db"), POLICY, 3)
    writer.submit(set_operator(TOKEN)).result()
    listening = socket.create_server(("127.0.0.1", 0))
    app = build_application(Service(writer, POLICY, 3, Limits()))
    server = uvicorn.Server(uvicorn.Config(app, http=ExchangeHttpProtocol, log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    transport = HttpTransport(url)
    [token] = OperatorClient(transport, TOKEN).create_tokens()
    transport.close()
    policy = replace(POLICY, trigger=Always())
    with connect(url, store=f"{folder}/agent.db", token=token, policy=policy, min_observations=0) as agent:
        for number in range(4):  # the first ones compile, and load the agent's key
            shown = agent.recommend(np.eye(3), 1)
            recorder.is_on = number == 3
            agent.feedback(shown, 0)
            agent.flush(60)
            time.sleep(0.2)  # until the writer and the connection wait again
        recorder.is_on = False
    server.should_exit = True
    return list(dict.fromkeys(recorder.calls))


def main() -> None:
    """Print a numbered list."""
    with tempfile.TemporaryDirectory() as name:
        for number, function in enumerate(trace(Path(name)), 1):
            print(f"{number:2}. {function}")


if __name__ == "__main__":
    main()
