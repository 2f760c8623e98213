"""Clients of a server: one signs for an agent, one speaks for the operator; how long to wait after a failure."""

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from nacl.signing import SigningKey

from fedcascade.service.agent.transport import HttpReply, Transport
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON, MSGPACK

Kind = TypeVar("Kind", bound=msgspec.Struct)
NONCE_BITS = 56  # at most 17 digits


class BadReply(ValueError):  # noqa: N818 (a bad reply is an event like a refusal)
    """A reply of success that cannot be read: of a broken server, or of something else in its place."""


class AgentClient:
    """Signs and sends the requests of one agent; the clock follows the server's if they disagree."""

    def __init__(self, transport: Transport, key: SigningKey, agent: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.transport, self.key, self.agent, self.clock = transport, key, agent, clock
        self.clock_offset = 0.0

    def exchange(self, message: wire.UploadMessage) -> wire.AnswerMessage:
        reply = self.send("POST", wire.EXCHANGES, msgspec.msgpack.encode(message), message.sequence)
        answer = decode_reply(reply, wire.AnswerMessage)
        if answer.sequence != message.sequence:
            raise BadReply(f"the server answered upload {answer.sequence}, and upload {message.sequence} was sent")
        return answer

    def leave(self) -> None:
        decode_reply(self.send("DELETE", f"/v1/agents/{self.agent}", b"", 0), None)

    def fetch_standing(self) -> wire.Standing:
        return decode_reply(self.send("GET", f"/v1/agents/{self.agent}", b"", 0), wire.Standing)

    def send(self, method: str, path: str, body: bytes, sequence: int) -> HttpReply:
        """Send a signed request; once more if the server finds this agent's clock wrong."""
        reply = self.transport.send(method, path, body, self.sign_headers(method, path, body, sequence))
        if (server_time := _read_server_time(reply)) is not None:
            self.clock_offset = server_time - self.clock.now()
            reply = self.transport.send(method, path, body, self.sign_headers(method, path, body, sequence))
        return reply

    def sign_headers(self, method: str, path: str, body: bytes, sequence: int) -> dict[str, str]:
        """Sign a request with a random nonce and return its headers."""
        now, agent = self.clock.now() + self.clock_offset, self.agent
        nonce = secrets.randbits(NONCE_BITS)
        signed = auth.sign(
            self.key, agent=agent, method=method, path=path, body=body, sequence=sequence, created=int(now), nonce=nonce
        )
        return {"content-type": MSGPACK, "accept": MSGPACK, **signed}


def enrol_agent(
    transport: Transport, token: str | None, key: SigningKey, *,
    credential: wire.Credential | None = None, clock: Clock = SYSTEM_CLOCK,
) -> wire.Welcome:  # fmt: skip
    """Enrol an agent with a token, or again with a credential; return its number and the server's terms."""
    grounds, public_key = wire.encode_grounds(token, credential), bytes(key.verify_key)

    def send(now: float) -> HttpReply:
        proof = auth.sign_enrolment(key, int(now), grounds)
        message = wire.Enrolment(protocol=wire.PROTOCOLS[-1], public_key=public_key, created=int(now), proof=proof,
                                 token=token, credential=credential)  # fmt: skip
        path = f"{wire.ENROLMENTS}?{wire.WITH_DOWNLOAD}=1"  # an older server does not look at the query
        return transport.send("POST", path, msgspec.msgpack.encode(message), {"content-type": MSGPACK})

    reply = send(clock.now())
    server_time = _read_server_time(reply)
    return decode_reply(reply if server_time is None else send(server_time), wire.Welcome)


def _read_server_time(reply: HttpReply) -> float | None:
    """The server's time in seconds since 1970, if it has refused a request because this clock is wrong."""
    text = reply.headers.get(auth.SERVER_TIME, "")
    return float(text) if reply.status == 401 and text.isdecimal() and len(text) <= 12 else None


def fetch_terms(transport: Transport) -> wire.Terms:
    """Fetch what a server runs: policy, constants, dimension."""
    return decode_reply(transport.send("GET", "/v1/terms", b"", {"content-type": MSGPACK}), wire.Terms)


class OperatorClient:
    """Sends the requests of the operator, with the operator's token."""

    def __init__(self, transport: Transport, token: str) -> None:
        self.transport = transport
        self._headers: Mapping[str, str] = {"content-type": MSGPACK, "authorization": f"Bearer {token}"}

    def create_tokens(self, count: int = 1, valid_seconds: int = 7 * 86_400) -> list[str]:
        message = wire.TokenRequest(protocol=wire.PROTOCOLS[-1], count=count, valid_seconds=valid_seconds)
        reply = self.transport.send("POST", "/v1/enrolment-tokens", msgspec.msgpack.encode(message), self._headers)
        return decode_reply(reply, wire.Tokens).tokens

    def revoke(self, agent: int) -> None:
        """Have an agent's requests refused from now on."""
        decode_reply(self.transport.send("POST", f"/v1/agents/{agent}/revocation", b"", self._headers), None)

    def forget(self, agent: int) -> None:
        """Have an agent removed, and what it taught subtracted."""
        decode_reply(self.transport.send("DELETE", f"/v1/agents/{agent}", b"", self._headers), None)

    def list_agents(self, after: int = 0, most: int = 100, state: str = "all") -> wire.AgentList:
        """List agents in the order of their numbers, those beyond ``after``."""
        path = f"/v1/agents?after={after}&most={most}&state={state}"
        return decode_reply(self.transport.send("GET", path, b"", self._headers), wire.AgentList)

    def replace_token(self, token: str) -> None:
        """Have the operator's token replaced; only its hash travels."""
        message = wire.TokenReplacement(protocol=wire.PROTOCOLS[-1], token_hash=auth.hash_token(token))
        body = msgspec.msgpack.encode(message)
        decode_reply(self.transport.send("PUT", "/v1/operator-token", body, self._headers), None)

    def fetch_overview(self) -> wire.Overview:
        """Fetch how far the log is, and which group each agent is in."""
        return decode_reply(self.transport.send("GET", "/v1/overview", b"", self._headers), wire.Overview)

    def report_measures(self, measures: Sequence[tuple[str, int, float, int]], *, fresh: bool = False) -> None:
        """Report a simulated run to the dashboard: series, round, regret and reward of each measure."""
        body = msgspec.json.encode({"measures": measures, "fresh": fresh})
        reply = self.transport.send("POST", "/live/measures", body, {**self._headers, "content-type": JSON})
        decode_reply(reply, None)


def decode_reply(reply: HttpReply, kind: type[Kind] | None) -> Kind:
    """Decode the message of a reply; raise ``Refused`` if the server refused the request."""
    if reply.status >= 400:
        refusal = decode_refusal(reply)
        retry_after = reply.headers.get("retry-after", "")
        wait = float(retry_after) if retry_after.isdecimal() else None
        raise Refused(reply.status, refusal.reason, refusal.detail, retry_after=wait)
    if kind is None:
        return None  # type: ignore[return-value]
    media = reply.headers.get("content-type", MSGPACK).partition(";")[0]
    try:
        return wire.decode(reply.body, kind, media)
    except Refused as error:
        raise BadReply(f"the server's reply makes no sense: {error.detail}") from None


def decode_refusal(reply: HttpReply) -> wire.RefusalBody:
    """Decode why a request was refused."""
    try:
        return msgspec.json.decode(reply.body, type=wire.RefusalBody)
    except msgspec.MsgspecError:  # a proxy answered
        return wire.RefusalBody(reason="unknown", detail=f"status {reply.status}")


def compute_pause(
    failures: int, pauses: tuple[float, float], retry_after: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Seconds until the next try: exponential back-off with jitter, and never sooner than the server asked for.

    >>> compute_pause(3, (0.25, 300.0), None, lambda: 1.0), compute_pause(1, (0.25, 300.0), 7.0)
    (1.0, 7.0)
    """
    first, longest = pauses
    return max(retry_after or 0.0, min(longest, first * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * draw()))
