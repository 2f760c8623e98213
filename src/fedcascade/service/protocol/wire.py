"""What travels between agents and a server: frozen values, as JSON or MessagePack.

A gram is symmetric, so only its upper triangle travels, row by row: an asymmetric one cannot be said.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol import floats
from fedcascade.service.protocol.errors import Refused

# Version 2 answers also say how many agents share the group. Agents of either version may talk to this server.
PROTOCOLS = (1, 2)
JSON, MSGPACK = "application/json", "application/msgpack"
FIXMAP = 0x80  # the first half byte of a short map in MessagePack
LARGEST_COUNT = 2**40
LARGEST_DIMENSION = 512

Protocol = Annotated[int, Meta(ge=1, le=1_000, description="The version of the protocol that the sender speaks.")]
Sequence = Annotated[int, Meta(ge=1, le=2**53 - 1, description="The agent's uploads count from 1.")]
Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Triangle = Annotated[
    list[float],
    Meta(
        min_length=1,
        max_length=LARGEST_DIMENSION * (LARGEST_DIMENSION + 1) // 2,
        description="The upper triangle of the gram, row by row: d (d + 1) / 2 numbers.",
    ),
]
Moment = Annotated[list[float], Meta(min_length=1, max_length=LARGEST_DIMENSION, description="d numbers.")]
Token = Annotated[str, Meta(min_length=16, max_length=128)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every message says which version of the protocol it speaks."""

    protocol: Protocol


class _Offer(Message, frozen=True, kw_only=True):
    sequence: Sequence
    cause: Cause
    count: Count
    clicks: Count
    rounds: Count


class Offer(_Offer, frozen=True, kw_only=True):
    """An agent's upload (Algorithm 1, line 8). Who it is from is said by the signature."""

    gram: Triangle
    moment: Moment


class RawOffer(_Offer, frozen=True, kw_only=True):
    """The same, whose numbers have not been looked at."""

    gram: msgspec.Raw
    moment: msgspec.Raw


Offered = Offer | RawOffer


class _Answer(Message, frozen=True, kw_only=True, omit_defaults=True):
    sequence: Sequence
    count: Count
    clicks: Count
    rounds: Count
    system_rounds: Count
    agents: Count
    group_agents: Count | None = None


class Answer(_Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The pooled statistics of an agent's group (Algorithm 1, line 10), and how far the system is.

    ``system_rounds`` and ``agents`` are what the server knows of; an agent extrapolates t from them.
    """

    gram: Triangle
    moment: Moment


class RawAnswer(_Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The same, whose numbers are MessagePack already."""

    gram: msgspec.Raw
    moment: msgspec.Raw


class KeptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The same as a store keeps it: two of them fit into a page of SQLite."""

    protocol: int
    sequence: int
    count: int
    clicks: int
    rounds: int
    system_rounds: int
    agents: int
    group_agents: int
    numbers: bytes


class Enrolment(Message, frozen=True, kw_only=True):
    """A newcomer: its one-time token, and the public half of a key that it made itself."""

    token: Token
    public_key: Annotated[bytes, Meta(min_length=32, max_length=32, description="Ed25519, 32 bytes, base64 in JSON.")]


class Terms(Message, frozen=True, kw_only=True):
    """What the server runs: the policy with its constants, and the number of features."""

    policy: str
    constants: dict[str, Any]
    dimension: int
    protocols: list[int]


class Welcome(Message, frozen=True, kw_only=True):
    """A newcomer's number, under which it signs from now on, and the server's terms."""

    agent: int
    terms: Terms


class TokenRequest(Message, frozen=True, kw_only=True):
    """How many enrolment tokens an operator wants, and for how long they are good."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    valid_seconds: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 7 * 86_400


class Tokens(Message, frozen=True, kw_only=True):
    """Enrolment tokens, each good for one agent. They are shown once and kept as hashes."""

    tokens: list[str]


class Overview(Message, frozen=True, kw_only=True):
    """What the server holds, for operators: agents that have spoken and the label of each one's group."""

    position: int
    enrolled: int
    rounds: int
    labels: dict[str, int]


class Standing(Message, frozen=True, kw_only=True):
    """One agent, as the server knows it."""

    agent: int
    uploads: int
    rounds: int
    revoked: bool


class RefusalBody(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused: a word for programs, a line for people."""

    reason: str
    detail: str


Kind = TypeVar("Kind", bound=msgspec.Struct)
_SAY = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}


@cache
def _decoder(kind: type[Kind], media: str) -> Any:
    return (msgspec.json.Decoder if media == JSON else msgspec.msgpack.Decoder)(kind)


def media_of(headers: Mapping[str, str]) -> str:
    """The content type that headers name, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def decoded(body: bytes, kind: type[Kind], media: str) -> Kind:
    """A message from its bytes; one that is malformed, or of a protocol not spoken here, is refused."""
    if media not in _SAY:
        raise Refused(415, "content-type", f"content type must be {JSON} or {MSGPACK}, got '{media[:80]}'")
    try:
        message: Kind = _decoder(kind, media).decode(body)
    except msgspec.ValidationError as error:
        raise Refused(422, "malformed", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not {media}: {error}") from None
    spoken = getattr(message, "protocol", PROTOCOLS[-1])
    if spoken not in PROTOCOLS:
        raise Refused(400, "protocol", f"protocol {spoken} is not spoken here: {PROTOCOLS[0]} to {PROTOCOLS[-1]} are")
    return message


def encoded(message: msgspec.Struct, media: str) -> bytes:
    """The bytes of a message."""
    return _SAY[media](message)


@cache
def _upper(dimension: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the upper triangle is in a matrix, and where each element of the matrix is in the triangle."""
    rows, columns = np.triu_indices(dimension)
    place = np.empty((dimension, dimension), np.intp)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    return rows * dimension + columns, place


def triangle(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper triangle of a symmetric matrix, row by row.

    >>> import numpy as np
    >>> triangle(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    return gram.take(_upper(len(gram))[0])


def square(numbers: NDArray[np.float64], dimension: int) -> NDArray[np.float64]:
    """The symmetric matrix of an upper triangle."""
    return numbers.take(_upper(dimension)[1])


def packed(statistics: Statistics) -> bytes:
    """Gram and moment as bytes, as the log keeps them."""
    return triangle(statistics.gram).astype("<f8").tobytes() + statistics.moment.astype("<f8").tobytes()


def unpacked(numbers: bytes, counts: tuple[int, int, int], dimension: int) -> Statistics:
    """Statistics from the log."""
    values = np.frombuffer(numbers, "<f8")
    size, _ = _sizes(dimension)
    return Statistics(square(values[:size], dimension), np.array(values[size:]), *counts)


def offered(body: bytes, media: str, dimension: int) -> tuple[Offer, Statistics]:
    """An upload from its bytes, and what it carries."""
    offer = decoded(body, Offer, media)
    return offer, statistics_of(offer, dimension)


def plainly_offered(body: bytes, dimension: int) -> tuple[RawOffer, bytes]:
    """An upload in MessagePack whose numbers are all float64, and these; anything else is refused."""
    raw = decoded(body, RawOffer, MSGPACK)
    gram, moment = floats.heard(raw.gram, _sizes(dimension)[0]), floats.heard(raw.moment, dimension)
    if gram is None or moment is None:
        raise ValueError(f"gram and moment must hold the float64 of dimension {dimension}")
    return raw, gram + moment


def _sizes(dimension: int) -> tuple[int, int]:
    """How many numbers there are in the triangle of a gram, and in a moment."""
    return dimension * (dimension + 1) // 2, dimension


def statistics_of(message: Offer | Answer, dimension: int) -> Statistics:
    """What a message carries; one of another dimension is refused."""
    expected = _sizes(dimension)
    got = (len(message.gram), len(message.moment))
    require(got == expected, f"gram and moment must hold {expected} numbers in dimension {dimension}, got {got}")
    gram = square(np.array(message.gram, np.float64), dimension)
    return Statistics(gram, np.array(message.moment, np.float64), message.count, message.clicks, message.rounds)


def offer_of(upload: Upload, protocol: int = PROTOCOLS[-1]) -> Offer:
    """An upload as it travels."""
    held = upload.statistics
    return Offer(
        protocol=protocol,
        sequence=upload.sequence,
        cause=upload.cause,
        gram=triangle(held.gram).tolist(),
        moment=held.moment.tolist(),
        count=held.count,
        clicks=held.clicks,
        rounds=held.rounds,
    )


def answer_of(download: Download, sequence: int, group_agents: int) -> KeptAnswer:
    """A download, to be kept."""
    held = download.statistics
    counts = held.count, held.clicks, held.rounds, download.rounds, download.agents, group_agents
    return KeptAnswer(PROTOCOLS[-1], sequence, *counts, packed(held))


def said(kept: KeptAnswer, dimension: int) -> bytes:
    """An answer as MessagePack, in the newest version of the protocol."""
    numbers, size = np.frombuffer(kept.numbers, "<f8"), _sizes(dimension)[0]
    gram, moment = floats.said(numbers, size)
    answer = RawAnswer(
        protocol=kept.protocol,
        sequence=kept.sequence,
        gram=gram,
        moment=moment,
        count=kept.count,
        clicks=kept.clicks,
        rounds=kept.rounds,
        system_rounds=kept.system_rounds,
        agents=kept.agents,
        group_agents=kept.group_agents,
    )
    return encoded(answer, MSGPACK)


def said_again(kept: bytes, dimension: int) -> bytes:
    """The same from what a store has kept; earlier versions kept an answer as it was sent, which is a map."""
    is_map = kept[0] & 0xF0 == FIXMAP
    return kept if is_map else said(decoded(kept, KeptAnswer, MSGPACK), dimension)


def in_protocol(answer: Answer, protocol: int) -> Answer:
    """An answer as an agent of that version understands it."""
    if protocol == answer.protocol:
        return answer
    return msgspec.structs.replace(answer, protocol=protocol, group_agents=None)


def download_of(answer: Answer, agent: int, dimension: int) -> Download:
    """What an agent receives."""
    statistics = statistics_of(answer, dimension)
    return Download(agent=agent, statistics=statistics, rounds=answer.system_rounds, agents=answer.agents)
