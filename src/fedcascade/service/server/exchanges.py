"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes."""

import time
from collections.abc import Mapping

from fedcascade.service.protocol import wire
from fedcascade.service.protocol.wire import MSGPACK
from fedcascade.service.server import operations
from fedcascade.service.server.service import Service

PATH = "/v1/exchanges"


async def exchanged(service: Service, headers: Mapping[str, str], body: bytes) -> bytes:
    """The answer to an upload, in the form in which that came; whatever is wrong is refused."""
    started = time.perf_counter()
    claim = await service.identify_agent(headers)
    media = wire.media_of(headers)
    papers = service.build_papers(claim, "POST", PATH, body, media=media)
    offer, answer = await service.run_signed(papers, operations.exchange(claim.agent, claim.nonce))
    if media != MSGPACK or offer.protocol != wire.PROTOCOLS[-1]:
        said = wire.decoded(answer, wire.Answer, MSGPACK)
        answer = wire.encoded(wire.in_protocol(said, offer.protocol), media)
    service.metrics.exchange(offer.cause, len(body), len(answer), time.perf_counter() - started)
    return answer
