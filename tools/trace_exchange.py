"""Prints the functions of fedcascade that one exchange enters, in order, from ``feedback`` to the answer and back.

The server, its verifier and the agent run in this process, with a socket between them. A function with a star carries
the upload or the answer, in any of their forms. The others look at headers, open transactions, or compute.
"""

import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import uvicorn

from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.transport import HttpReply, HttpTransport
from fedcascade.service.protocol.wire import AnswerMessage, UploadMessage, pack_numbers
from fedcascade.service.server.app import build_application
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.http import ExchangeHttpProtocol
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.open import open_store

TOKEN = "the-operators-token"
POLICY = POLICIES["fedc3ucb-h"]
LEAST_BYTES = 72  # the numbers of an upload in three dimensions


FORMS = (Upload, UploadMessage, Exchange, Download, AnswerMessage, HttpReply)


def find_carried(value: object) -> Iterator[object]:
    """The uploads and answers in a value, in any of their forms; bytes might be the form that travels."""
    if isinstance(value, FORMS) or (isinstance(value, bytes) and len(value) >= LEAST_BYTES):
        yield value
    elif isinstance(value, list | tuple | dict):
        for element in value.values() if isinstance(value, dict) else value:
            yield from find_carried(element)


class CallRecorder:
    """Records the functions of fedcascade that are entered in any thread while it is switched on, and what they carry.

    A function carries what it takes or returns, and what it gives to a function that it calls.
    """

    def __init__(self) -> None:
        self.carried: dict[str, list[object]] = {}
        self.is_on = False

    def record(self, frame: FrameType, event: str, result: object) -> None:
        """Take one event of ``sys.setprofile``."""
        if self.is_on and event in ("call", "return") and (name := name_function(frame)):
            values = [result] if event == "return" else list(frame.f_locals.values())
            carried = list(find_carried(values))
            self.carried.setdefault(name, []).extend(carried)
            if carried and frame.f_back is not None and (caller := name_function(frame.f_back)):
                self.carried.setdefault(caller, []).extend(carried)

    def list_types(self) -> list[str]:
        """The types in which the upload and the answer were carried, beside bytes."""
        return sorted({type(value).__name__ for carried in self.carried.values() for value in carried} - {"bytes"})

    def list_functions(self) -> list[tuple[str, bool]]:
        """Every function, in the order of the first events, and whether it carries the upload or the answer."""
        values = [value for carried in self.carried.values() for value in carried]
        numbers = [pack_numbers(value.statistics) for value in values if isinstance(value, Upload | Download)]
        return [(name, any(is_carried(value, numbers) for value in carried)) for name, carried in self.carried.items()]


def name_function(frame: FrameType) -> str | None:
    """Module and name of a function that somebody has written in fedcascade; None for any other."""
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
    is_written = frame.f_code.co_filename.endswith(".py") and "<" not in name.split(".")[-1]
    return f"{module}:{name}" if is_written and module.startswith("fedcascade.") else None


def is_carried(value: object, numbers: Sequence[bytes]) -> bool:
    """Whether a value is an upload or an answer: bytes are if these numbers are among them."""
    return not isinstance(value, bytes) or any(packed in value for packed in numbers)


def trace(folder: Path) -> CallRecorder:
    """Record the functions that one exchange enters, and what they carry."""
    recorder = CallRecorder()
    threading.setprofile(recorder.record)
    sys.setprofile(recorder.record)
    writer = Writer(lambda: open_store(f"sqlite:///{folder}/store.db"), POLICY, 3)
    writer.submit(set_operator(TOKEN)).result()
    listening = socket.create_server(("127.0.0.1", 0))
    app = build_application(Service(writer, POLICY, 3, Limits(), FOR_SIMULATIONS))
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
    return recorder


def main() -> None:
    """Print the functions, with a star at those that carry, how many there are, and the types that they carry."""
    with tempfile.TemporaryDirectory() as name:
        recorder = trace(Path(name))
    functions = recorder.list_functions()
    for function, carries in functions:
        print(" *"[carries], function)
    print(f"{sum(carries for _, carries in functions)} of {len(functions)} functions carry the upload or the answer")
    print(f"in {len(recorder.list_types())} types: {', '.join(recorder.list_types())}")


if __name__ == "__main__":
    main()
