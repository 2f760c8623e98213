"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import SignatureHeaders
from fedcascade.service.server.jobs import Deliver, settle_future
from fedcascade.service.server.operations import record_upload
from fedcascade.service.server.service import Service
from fedcascade.service.server.state import ServerState
from fedcascade.service.server.verifier import SignedRequest
from fedcascade.service.store.contract import Identity, Store


async def answer_exchange(service: Service, headers: Mapping[str, str], body: bytes, caller: str) -> bytes:
    """Answer an upload in the protocol and media type in which it came from a network, once it is durable."""
    signature = service.read_signature(headers, caller)
    await service.load_identity(signature.agent)
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    start_exchange(service, signature, headers, body, caller=caller, deliver=partial(settle_future, future))
    try:
        return await future
    finally:
        del future  # an exception holds this frame, and a future holds its exception


def start_exchange(
    service: Service,
    signature: SignatureHeaders,
    headers: Mapping[str, str],
    body: bytes,
    *,
    caller: str,
    deliver: Deliver,
) -> None:
    """Begin an exchange with an agent whose identity is loaded; ``deliver`` gets the answer, or the exception."""
    identity = service.get_identity(signature.agent)
    media_type = wire.get_media_type(headers)
    request = SignedRequest(identity.public_key, "POST", wire.EXCHANGES, signature, body, media_type)
    exchange = Exchange(service, identity, request, media_type, deliver, time.perf_counter())
    service.start_signed(exchange.record, request, caller, exchange.finish)


@dataclass(slots=True)
class Exchange:
    """An exchange under way: what the writer does with the upload, and what becomes of the answer."""

    service: Service
    identity: Identity
    request: SignedRequest
    media_type: str
    deliver: Deliver
    started: float  # in seconds of ``time.perf_counter``

    def record(self, store: Store, state: ServerState) -> tuple[wire.UploadMessage, bytes]:
        """Count the upload; the message that it came in, and its answer in MessagePack."""
        message, signature = wire.decode(self.request.body, wire.UploadMessage, self.media_type), self.request.signature
        answer = record_upload(
            store,
            state,
            message.to_upload(signature.agent, state.dimension),
            signature.nonce,
            created=signature.created,
            receipt=message.receipt,
            terms_id=self.service.terms.terms_id,
            numbers=message.numbers,
            limit=self.limit,
        )
        return message, answer

    def limit(self, upload: Upload, held_rounds: int) -> None:
        """Refuse an upload beyond the bounds on what one agent may claim."""
        self.service.limit_upload(self.identity, upload, held_rounds)

    def finish(self, result: Any) -> None:
        """Deliver what ``record`` returned, in the protocol and media type of the request, or the exception."""
        if not isinstance(result, BaseException):
            try:
                result = self._encode(*result)
            except Exception as error:  # whoever waits is told
                result = error
        self.deliver(result)

    def _encode(self, message: wire.UploadMessage, answer: bytes) -> bytes:
        if self.media_type != wire.MSGPACK or message.protocol != wire.PROTOCOLS[-1]:
            answer = wire.convert_answer(answer, message.protocol, self.media_type)
        seconds = time.perf_counter() - self.started
        self.service.metrics.count_exchange(message.cause, len(self.request.body), len(answer), seconds)
        return answer
