"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.wire import MSGPACK
from fedcascade.service.server import operations

if TYPE_CHECKING:
    from fedcascade.service.server.app import Service

PATH = "/v1/exchanges"


async def exchanged(service: "Service", headers: Mapping[str, str], body: bytes) -> bytes:
    """The answer to an upload, in the form in which that came; whatever is wrong is refused."""
    started = time.perf_counter()
    claimed = await service.claimed(headers)
    media = wire.media_of(headers)
    papers = service.papers(claimed, "POST", PATH, body, upload=media)
    offer, answer = await service.admitted(papers, operations.exchange(claimed.agent, claimed.nonce))
    if media != MSGPACK or offer.protocol != wire.PROTOCOLS[-1]:
        said = wire.decoded(answer, wire.Answer, MSGPACK)
        answer = wire.encoded(wire.in_protocol(said, offer.protocol), media)
    service.metrics.exchange(offer.cause, len(body), len(answer), time.perf_counter() - started)
    return answer
