"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedcascade.learning.statistics import Statistics
from fedcascade.service import auth, operations, wire
from fedcascade.service.checks import check_upload
from fedcascade.service.errors import Refused
from fedcascade.service.wire import MSGPACK

if TYPE_CHECKING:
    from fedcascade.service.app import Service

PATH = "/v1/exchanges"


async def exchanged(service: "Service", headers: Mapping[str, str], body: bytes) -> bytes:
    """The answer to an upload, in the form in which that came; whatever is wrong is refused."""
    started = time.perf_counter()
    claimed = await service.claimed(headers, "POST", PATH, body)
    media = wire.media_of(headers)
    try:
        offer, statistics = _checked(claimed, body, media, service.dimension)
    except Refused:
        await service.admitted(claimed)  # a stranger is told that it is one, and nothing else
        raise
    answer = await service.writer.do(
        operations.exchange(claimed.agent, offer, statistics, claimed.nonce),
        upload=(claimed.agent, offer.sequence),
        signed=service.signed(claimed),
        admit=lambda: service.admit(claimed),
    )
    if media != MSGPACK or offer.protocol != wire.PROTOCOLS[-1]:
        said = wire.decoded(answer, wire.Answer, MSGPACK)
        answer = wire.encoded(wire.in_protocol(said, offer.protocol), media)
    service.metrics.exchange(offer.cause, len(body), len(answer), time.perf_counter() - started)
    return answer


def _checked(claimed: auth.Claim, body: bytes, media: str, dimension: int) -> tuple[wire.Offered, Statistics]:
    """What an upload says, if data can have said it."""
    try:
        offer, statistics = wire.offered(body, media, dimension)
        check_upload(statistics, dimension)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(422, "impossible", str(error)) from None
    if offer.sequence != claimed.sequence:
        raise auth.unauthorised("altered", "the signed sequence number is not that of the upload")
    return offer, statistics
