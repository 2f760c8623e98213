"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import SignatureHeaders
from fedcascade.service.server.jobs import Deliver, settle_future
from fedcascade.service.server.operations import record_upload
from fedcascade.service.server.service import Service
from fedcascade.service.server.state import ServerState
from fedcascade.service.server.verifier import SignedRequest
from fedcascade.service.store.contract import Store


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
    start, media_type = time.perf_counter(), wire.get_media_type(headers)
    agent, nonce, created = signature.agent, signature.nonce, signature.created
    identity = service.get_identity(agent)
    request = SignedRequest(identity.public_key, "POST", wire.EXCHANGES, signature, body, media_type)
    limit = partial(service.limit_upload, identity)

    def job(store: Store, state: ServerState) -> tuple[wire.UploadMessage, bytes]:
        message = wire.decode(body, wire.UploadMessage, media_type)
        upload, terms_id = message.to_upload(agent, state.dimension), service.terms.terms_id
        answer = record_upload(
            store,
            state,
            upload,
            nonce,
            created=created,
            receipt=message.receipt,
            terms_id=terms_id,
            numbers=message.numbers,
            limit=limit,
        )
        return message, answer

    def finish(result: Any) -> None:
        deliver(result if isinstance(result, BaseException) else encode(*result))

    def encode(message: wire.UploadMessage, answer: bytes) -> bytes | Exception:
        try:
            if media_type != wire.MSGPACK or message.protocol != wire.PROTOCOLS[-1]:
                answer = wire.convert_answer(answer, message.protocol, media_type)
        except Exception as error:  # whoever waits is told
            return error
        service.metrics.count_exchange(message.cause, len(body), len(answer), time.perf_counter() - start)
        return answer

    service.start_signed(job, request, caller, finish)
