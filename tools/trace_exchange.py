"""Print the functions of fedcascade that one exchange enters, in order, from ``feedback`` to the answer.

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

from fedcascade.federation.messages import Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.transport import HttpTransport
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


FORMS = (Upload, UploadMessage, Exchange, AnswerMessage)


def find_carried(value: object) -> Iterator[object]:
    """Return the uploads and answers in a value, in any form, including bytes."""
    if isinstance(value, FORMS) or (isinstance(value, bytes) and len(value) >= LEAST_BYTES):
        yield value
    elif isinstance(value, list | tuple | dict):
        for element in value.values() if isinstance(value, dict) else value:
            yield from find_carried(element)


class CallRecorder:
    """A recorder of the functions of fedcascade that any thread enters, and of the messages that they carry.

    A function carries what it takes or returns, and what it gives to a function that it calls.
    """

    def __init__(self) -> None:
        self.carried: dict[str, list[object]] = {}
        self.is_on = False

    def record(self, frame: FrameType, event: str, result: object) -> None:
        """Record one event of ``sys.setprofile``."""
        if self.is_on and event in ("call", "return") and (name := name_function(frame)):
            values = [result] if event == "return" else list(frame.f_locals.values())
            carried = list(find_carried(values))
            self.carried.setdefault(name, []).extend(carried)
            if carried and frame.f_back is not None and (caller := name_function(frame.f_back)):
                self.carried.setdefault(caller, []).extend(carried)

    def list_types(self) -> list[str]:
        """Return the types of the upload and the answer, except bytes."""
        return sorted({type(value).__name__ for carried in self.carried.values() for value in carried} - {"bytes"})

    def list_functions(self) -> list[tuple[str, bool]]:
        """Return all functions in order, and whether each carries the upload or the answer."""
        values = [value for carried in self.carried.values() for value in carried]
        numbers = [pack_numbers(value.statistics) for value in values if isinstance(value, Upload)]
        numbers += [value.numbers for value in values if isinstance(value, AnswerMessage)]
        return [(name, any(is_carried(value, numbers) for value in carried)) for name, carried in self.carried.items()]


def name_function(frame: FrameType) -> str | None:
    """Return module and name of a function of fedcascade, or None for other functions."""
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
    is_written = frame.f_code.co_filename.endswith(".py") and "<" not in name.split(".")[-1]
    return f"{module}:{name}" if is_written and module.startswith("fedcascade.") else None


def is_carried(value: object, numbers: Sequence[bytes]) -> bool:
    """Return whether a value is an upload or an answer, or bytes that contain its numbers."""
    return not isinstance(value, bytes) or any(packed in value for packed in numbers)


def trace(folder: Path) -> CallRecorder:
    """Record the functions that one exchange enters."""
    recorder = CallRecorder()
    threading.setprofile(recorder.record)
    sys.setprofile(recorder.record)
    writer = Writer(lambda: open_store(f"sqlite:///{folder}/store.db"), POLICY, 3)
    writer.submit(set_operator(TOKEN)).result()
    listening = socket.create_server(("127.0.0.1", 0))
    app = build_application(Service(writer, Limits(), FOR_SIMULATIONS))
    server = uvicorn.Server(uvicorn.Config(app, http=ExchangeHttpProtocol, log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    transport = HttpTransport(url)
    [token] = OperatorClient(transport, TOKEN).create_tokens()
    transport.close()
    policy = replace(POLICY, trigger=Always())
    with connect(url, store=f"{folder}/agent.db", token=token, policy=policy, min_observations=0) as agent:
        for number in range(4):  # the first exchanges compile, and load the agent's key
            shown = agent.recommend(np.eye(3), 1)
            recorder.is_on = number == 3
            agent.feedback(shown, 0)
            agent.flush(60)
            time.sleep(0.2)  # until the writer and the connection wait again
        recorder.is_on = False
    server.should_exit = True
    return recorder


def main() -> None:
    """Print the functions, starred if they carry a message, their number, and the types of messages."""
    with tempfile.TemporaryDirectory() as name:
        recorder = trace(Path(name))
    functions = recorder.list_functions()
    for function, carries in functions:
        print(" *"[carries], function)
    print(f"{sum(carries for _, carries in functions)} of {len(functions)} functions carry the upload or the answer")
    print(f"in {len(recorder.list_types())} types: {', '.join(recorder.list_types())}")


if __name__ == "__main__":
    main()
