"""Algorithm 1, lines 8 to 11, over a network: a signed upload comes, a durable answer goes.

Exchanges are nearly all requests, and a framework's routing and request objects cost more than checking and counting
an upload. So plain exchanges go from the socket to the writer by themselves; everything else, and an exchange that is
unusual in any way, goes to the application behind.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from fedcascade.learning.statistics import Statistics
from fedcascade.service import auth, operations, wire
from fedcascade.service.checks import check_upload
from fedcascade.service.errors import Refused
from fedcascade.service.wire import MSGPACK

if TYPE_CHECKING:
    from fedcascade.service.app import Service

PATH = "/v1/exchanges"
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


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
        before=lambda: service.admit(claimed),
    )
    if media != MSGPACK or offer.protocol != wire.PROTOCOLS[-1]:
        said = wire.decoded(answer, wire.Answer, MSGPACK)
        answer = wire.encoded(wire.in_protocol(said, offer.protocol), media)
    service.metrics.exchange(offer.cause, len(body), len(answer), time.perf_counter() - started)
    return answer


def _checked(claimed: auth.Claim, body: bytes, media: str, dimension: int) -> tuple[wire.Offer, Statistics]:
    """What an upload says, if data can have said it."""
    offer = wire.decoded(body, wire.Offer, media)
    if offer.sequence != claimed.sequence:
        raise auth.unauthorised("altered", "the signed sequence number is not that of the upload")
    try:
        statistics = wire.statistics_of(offer, dimension)
        check_upload(statistics, dimension)
    except ValueError as error:
        raise Refused(422, "impossible", str(error)) from None
    return offer, statistics


class ShortWay:
    """An ASGI application that answers plain exchanges, and leaves the rest to the one behind it."""

    def __init__(self, service: "Service", behind: Application) -> None:
        self.service = service
        self.behind = behind

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """One request."""
        headers = self._plain(scope)
        if headers is None:
            await self.behind(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        try:
            answer = await exchanged(self.service, headers, body)
            await _reply(send, 200, wire.media_of(headers), {}, answer)
        except (Refused, TimeoutError) as error:
            status, more, problem = self.service.refusal(error, PATH)
            await _reply(send, status, wire.JSON, more, problem)

    def _plain(self, scope: Event) -> dict[str, str] | None:
        """The headers of an exchange whose length is known and allowed; None of anything else."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        length = headers.get("content-length", "")
        known = length.isdecimal() and "transfer-encoding" not in headers
        return headers if known and int(length) <= self.service.body_bytes else None


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if the caller has gone."""
    body: bytes = b""
    while (event := await receive())["type"] == "http.request":
        body += event.get("body", b"")
        if not event.get("more_body", False):
            return body
    return None


async def _reply(send: Send, status: int, media: str, headers: Mapping[str, str], body: bytes) -> None:
    named = [(b"content-type", media.encode()), (b"content-length", b"%d" % len(body))]
    named += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})
