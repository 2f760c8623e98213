"""An agent's side of the wire: enrol, sign, send, understand."""

import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec
from nacl.signing import SigningKey

from fedcascade.service.agent.transport import Reply, Transport
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON, MSGPACK

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Client:
    """Speaks for one agent. Its nonces only grow; its clock follows the server's if that disagrees."""

    def __init__(self, transport: Transport, key: SigningKey, agent: int, protocol: int = wire.PROTOCOLS[-1]) -> None:
        self.transport = transport
        self.key = key
        self.agent = agent
        self.protocol = protocol
        self._nonce = 0
        self._offset = 0.0

    def exchange(self, offer: wire.Offer) -> wire.Answer:
        """Upload, and download the answer."""
        body = wire.encoded(offer, MSGPACK)
        reply = self.send("POST", "/v1/exchanges", body, offer.sequence)
        return understood(reply, wire.Answer)

    def leave(self) -> None:
        """Be forgotten."""
        understood(self.send("DELETE", f"/v1/agents/{self.agent}", b"", 0), None)

    def standing(self) -> wire.Standing:
        """How this agent stands."""
        return understood(self.send("GET", f"/v1/agents/{self.agent}", b"", 0), wire.Standing)

    def send(self, method: str, path: str, body: bytes, sequence: int) -> Reply:
        """A signed request; once more if the server finds this agent's clock wrong."""
        reply = self._send(method, path, body, sequence)
        if reply.status == 401 and _problem(reply).reason == "stale" and "date" in reply.headers:
            self._offset = parsedate_to_datetime(reply.headers["date"]).timestamp() - time.time()
            reply = self._send(method, path, body, sequence)
        return reply

    def _send(self, method: str, path: str, body: bytes, sequence: int) -> Reply:
        return self.transport.send(method, path, body, self.headers(method, path, body, sequence))

    def headers(self, method: str, path: str, body: bytes, sequence: int) -> dict[str, str]:
        """The headers of a signed request; no two calls give the same."""
        now = time.time() + self._offset
        self._nonce = max(self._nonce + 1, int(now * 1e6))
        signed = auth.sign(
            self.key,
            agent=self.agent,
            method=method,
            path=path,
            body=body,
            sequence=sequence,
            created=int(now),
            nonce=self._nonce,
        )
        return {"content-type": MSGPACK, "accept": MSGPACK, **signed}


def enrol(transport: Transport, token: str, key: SigningKey, protocol: int = wire.PROTOCOLS[-1]) -> wire.Welcome:
    """Become an agent of a server."""
    public = bytes(key.verify_key)
    asked = wire.Enrolment(protocol=protocol, token=token, public_key=public)
    reply = transport.send("POST", "/v1/agents", wire.encoded(asked, MSGPACK), {"content-type": MSGPACK})
    return understood(reply, wire.Welcome)


def terms(transport: Transport) -> wire.Terms:
    """What a server runs."""
    return understood(transport.send("GET", "/v1/terms", b"", {"content-type": MSGPACK}), wire.Terms)


class Operator:
    """Speaks for the operator."""

    def __init__(self, transport: Transport, token: str) -> None:
        self.transport = transport
        self._headers: Mapping[str, str] = {"content-type": MSGPACK, "authorization": f"Bearer {token}"}

    def enrolment_tokens(self, count: int = 1, valid_seconds: int = 7 * 86_400) -> list[str]:
        """New one-time tokens."""
        asked = wire.TokenRequest(protocol=wire.PROTOCOLS[-1], count=count, valid_seconds=valid_seconds)
        reply = self.transport.send("POST", "/v1/enrolment-tokens", wire.encoded(asked, MSGPACK), self._headers)
        return understood(reply, wire.Tokens).tokens

    def revoke(self, agent: int) -> None:
        """Let an agent speak no more."""
        understood(self.transport.send("POST", f"/v1/agents/{agent}/revocation", b"", self._headers), None)

    def forget(self, agent: int) -> None:
        """Remove an agent and what it taught."""
        understood(self.transport.send("DELETE", f"/v1/agents/{agent}", b"", self._headers), None)

    def overview(self) -> wire.Overview:
        """What the server holds."""
        return understood(self.transport.send("GET", "/v1/overview", b"", self._headers), wire.Overview)

    def report(self, measures: Sequence[tuple[str, int, float, int]], *, fresh: bool = False) -> None:
        """Regret and reward of a simulated run, for those who watch: series, round, regret, reward."""
        body = msgspec.json.encode({"measures": measures, "fresh": fresh})
        headers = {**self._headers, "content-type": JSON}
        understood(self.transport.send("POST", "/live/measures", body, headers), None)


def understood(reply: Reply, kind: type[Kind] | None) -> Kind:
    """The message of a reply; a refusal is raised as one."""
    if reply.status >= 400:
        said = _problem(reply)
        after = reply.headers.get("retry-after", "")
        wait = float(after) if after.isdecimal() else None
        raise Refused(reply.status, said.reason, said.detail, retry_after=wait)
    if kind is None:
        return None  # type: ignore[return-value]
    media = reply.headers.get("content-type", MSGPACK).partition(";")[0]
    return wire.decoded(reply.body, kind, media)


def _problem(reply: Reply) -> wire.RefusalBody:
    try:
        return msgspec.json.decode(reply.body, type=wire.RefusalBody)
    except msgspec.MsgspecError:  # a proxy answered
        return wire.RefusalBody(reason="unknown", detail=f"status {reply.status}")
