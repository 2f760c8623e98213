"""HTTP clients of a server, for an agent and for the operator, and the pause after a failure."""

import random
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from httpx2 import Response
from nacl.signing import SigningKey

from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.arms import ArmCount
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.wire import JSON, MSGPACK

Kind = TypeVar("Kind", bound=msgspec.Struct)
NONCE_BITS = 56  # at most 17 digits
LONGEST_WAIT = 3_600.0  # seconds; an agent asks again after an hour, however long a server wants it to wait


class BadReply(ValueError):  # noqa: N818 (a bad reply is an event like a refusal)
    """A successful reply that cannot be decoded, from a broken server or from a proxy."""


class AgentClient:
    """The signed requests of one agent. The clock follows the server's if they disagree."""

    def __init__(self, transport: Transport, key: SigningKey, agent: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.transport, self.key, self.agent, self.clock = transport, key, agent, clock
        self.clock_offset = 0.0

    def exchange(self, message: wire.UploadMessage) -> wire.AnswerMessage:
        reply = self.send("POST", wire.EXCHANGES, msgspec.msgpack.encode(message), message.sequence)
        answer = decode_reply(reply, wire.AnswerMessage)
        if answer.sequence != message.sequence:
            raise BadReply(f"the server answered upload {answer.sequence} instead of {message.sequence}")
        return answer

    def leave(self) -> None:
        decode_reply(self.send("DELETE", f"/v1/agents/{self.agent}", b"", 0), None)

    def fetch_standing(self) -> wire.Standing:
        return decode_reply(self.send("GET", f"/v1/agents/{self.agent}", b"", 0), wire.Standing)

    def send(self, method: str, path: str, body: bytes, sequence: int) -> Response:
        """Send a signed request; retry once with the server's time if this clock is wrong."""
        digest = auth.compute_digest(body)
        reply = self.transport.send(method, path, body, self.sign_headers(method, path, digest, sequence))
        if reply.status_code == 401 and (server_time := _read_server_time(reply)) is not None:
            self.clock_offset = server_time - self.clock.now()
            reply = self.transport.send(method, path, body, self.sign_headers(method, path, digest, sequence))
        return reply

    def sign_headers(self, method: str, path: str, digest: str, sequence: int) -> dict[str, str]:
        """Sign a request with the digest of its body and a random nonce; return its headers."""
        named = {"agent": self.agent, "sequence": sequence, "nonce": secrets.randbits(NONCE_BITS)}
        created = int(self.clock.now() + self.clock_offset)
        signed = auth.sign(self.key, method=method, path=path, digest=digest, created=created, **named)
        return {"content-type": MSGPACK, "accept": MSGPACK, **signed}


def enrol_agent(
    transport: Transport,
    token: str | None,
    key: SigningKey,
    *,
    credential: wire.Credential | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> wire.EnrolmentAnswer:
    """Enrol an agent with a token, or again with a credential."""
    claim = {"public_key": bytes(key.verify_key), "token": token, "credential": credential}

    def send(now: float) -> Response:
        proof = auth.sign_enrolment(key, int(now), wire.encode_enrolment_claim(token, credential))
        message = wire.Enrolment(protocol=wire.PROTOCOLS[-1], created=int(now), proof=proof, **claim)  # type: ignore[arg-type]
        path = f"{wire.ENROLMENTS}?{wire.WITH_PRIOR}=1"
        return transport.send("POST", path, msgspec.msgpack.encode(message), {"content-type": MSGPACK})

    reply = send(clock.now())
    if reply.status_code == 401 and (server_time := _read_server_time(reply)) is not None:
        reply = send(server_time)
    answer = decode_reply(reply, wire.EnrolmentAnswer)
    if answer.agent < 1:
        raise BadReply(f"the server gave the agent the number {answer.agent}")
    return answer


def _read_server_time(reply: Response) -> float | None:
    """Return the server's time, in seconds since 1970, from a refusal with status 401; None if it is not the clock."""
    text = reply.headers.get(auth.SERVER_TIME, "")
    return float(text) if text.isdecimal() and len(text) <= 12 else None


def fetch_terms(transport: Transport) -> wire.Terms:
    """Fetch the server's policy, constants and limits."""
    return decode_reply(transport.send("GET", "/v1/terms", b"", {"content-type": MSGPACK}), wire.Terms)


class OperatorClient:
    """The requests of the operator, with the operator's token."""

    def __init__(self, transport: Transport, token: str) -> None:
        self.transport, self._token = transport, token

    def create_tokens(self, count: int = 1, valid_seconds: int = 7 * 86_400) -> list[str]:
        message = wire.TokenRequest(protocol=wire.PROTOCOLS[-1], count=count, valid_seconds=valid_seconds)
        return self._send("POST", "/v1/enrolment-tokens", message, wire.Tokens).tokens

    def set_enrolment_key(self, name: str, key: str | None, per_hour: int = 1_000) -> None:
        """Set an enrolment key by its hash, or revoke it if None. Its text begins with its name and a dot."""
        digest = None if key is None else auth.hash_token(key)
        message = wire.EnrolmentKey(protocol=wire.PROTOCOLS[-1], name=name, key_hash=digest, per_hour=per_hour)
        self._send("PUT", "/v1/enrolment-keys", message)

    def revoke(self, agent: int) -> None:
        """Revoke an agent: the server refuses its requests."""
        self._send("POST", f"/v1/agents/{agent}/revocation")

    def forget(self, agent: int) -> None:
        """Remove an agent, and subtract its uploads."""
        self._send("DELETE", f"/v1/agents/{agent}")

    def list_agents(self, after: int = 0, most: int = 100, state: str = "all") -> wire.AgentList:
        """List up to ``most`` agents with numbers above ``after``, in the order of their numbers."""
        return self._send("GET", f"/v1/agents?after={after}&most={most}&state={state}", kind=wire.AgentList)

    def replace_token(self, token: str) -> None:
        """Replace the operator's token; only its hash is sent."""
        message = wire.TokenReplacement(protocol=wire.PROTOCOLS[-1], token_hash=auth.hash_token(token))
        self._send("PUT", "/v1/operator-token", message)

    def pause(self, paused: bool = True) -> None:
        """Pause or resume exchanges; agents go on alone meanwhile."""
        self._send("PUT", "/v1/pause", wire.Switch(protocol=wire.PROTOCOLS[-1], paused=paused))

    def count_arms(self, counts: Iterable[ArmCount]) -> None:
        """Add lists and clicks of an A/B test."""
        self._send("POST", "/v1/arms", wire.ArmCounts(protocol=wire.PROTOCOLS[-1], counts=list(counts)))

    def fetch_overview(self) -> wire.Overview:
        """Fetch the totals of the server, and the group of each agent."""
        return self._send("GET", "/v1/overview", kind=wire.Overview)

    def report_measures(self, measures: Sequence[tuple[str, int, float, int]], *, fresh: bool = False) -> None:
        """Report a simulated run to the dashboard: series, round, regret and reward of each measure."""
        self._send("POST", "/live/measures", {"measures": measures, "fresh": fresh}, media_type=JSON)

    def _send(
        self, method: str, path: str, message: Any = None, kind: type[Kind] | None = None, media_type: str = MSGPACK
    ) -> Kind:
        """Send a request with a message, if any, and decode the reply."""
        body = b"" if message is None else wire.ENCODERS[media_type](message)
        headers = {"content-type": media_type, "authorization": f"Bearer {self._token}"}
        return decode_reply(self.transport.send(method, path, body, headers), kind)


def decode_reply(reply: Response, kind: type[Kind] | None) -> Kind:
    """Decode the message of a reply; raise ``Refused`` if the server refused the request."""
    if reply.status_code >= 400:
        try:
            refusal = msgspec.json.decode(reply.content, type=wire.RefusalBody)
        except msgspec.MsgspecError:  # a proxy answered
            refusal = wire.RefusalBody(reason="unknown", detail=f"status {reply.status_code}")
        retry_after = reply.headers.get("retry-after", "")
        wait = min(float(retry_after), LONGEST_WAIT) if retry_after.isdecimal() and len(retry_after) < 300 else None
        raise Refused(reply.status_code, refusal.reason, refusal.detail, retry_after=wait)
    if kind is None:
        return None  # type: ignore[return-value]
    media = reply.headers.get("content-type", MSGPACK).partition(";")[0]
    try:
        return wire.decode(reply.content, kind, media)
    except Refused as error:
        raise BadReply(f"the server's reply cannot be decoded: {error.detail}") from None


def compute_pause(
    failures: int, pauses: tuple[float, float], retry_after: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Compute the seconds until the next attempt: exponential backoff with jitter, and at least ``retry_after``.

    >>> compute_pause(3, (0.25, 300.0), None, lambda: 1.0), compute_pause(1, (0.25, 300.0), 7.0)
    (1.0, 7.0)
    """
    first, longest = pauses
    return max(retry_after or 0.0, min(longest, first * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * draw()))
