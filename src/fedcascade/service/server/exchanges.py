"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes."""

import time
from collections.abc import Mapping
from functools import partial

from fedcascade.service.protocol import wire
from fedcascade.service.server.operations import record_upload
from fedcascade.service.server.service import NOBODY, Service
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store


async def answer_exchange(service: Service, headers: Mapping[str, str], body: bytes, caller: str) -> bytes:
    """Answer an upload in the protocol and media type in which it came from a network, once it is durable."""
    start = time.perf_counter()
    media_type = wire.get_media_type(headers)
    request = await service.read_signed(headers, "POST", wire.EXCHANGES, body, caller=caller, upload=media_type)
    agent, nonce, created = request.signature.agent, request.signature.nonce, request.signature.created
    limit = partial(service.limit_upload, service.identities.get(agent, NOBODY))

    def job(store: Store, state: ServerState) -> tuple[wire.UploadMessage, bytes]:
        message = wire.decode(body, wire.UploadMessage, media_type)
        upload, terms_id = message.to_upload(agent, state.dimension), service.terms.terms_id
        answer = record_upload(
            store, state, upload, nonce, created=created, receipt=message.receipt, terms_id=terms_id, limit=limit
        )
        return message, answer

    message, answer = await service.run_signed(job, request, caller)
    if media_type != wire.MSGPACK or message.protocol != wire.PROTOCOLS[-1]:
        answer = wire.convert_answer(answer, message.protocol, media_type)
    service.metrics.count_exchange(message.cause, len(body), len(answer), time.perf_counter() - start)
    return answer
