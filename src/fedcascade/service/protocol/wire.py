"""The messages of agents and server: frozen values, encoded as JSON or MessagePack.

Gram and moment are one block of bytes. It holds only the gram's upper triangle, so an asymmetric gram cannot be sent.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol.arms import BUCKETS, ArmCount
from fedcascade.service.protocol.errors import Refused

PROTOCOLS = (2,)
EXCHANGES = "/v1/exchanges"
ENROLMENTS = "/v1/agents"
WITH_PRIOR = "prior"  # query of an enrolment that asks for ``EnrolmentAnswer.prior``
JSON, MSGPACK = "application/json", "application/msgpack"
LARGEST_DIMENSION = 512
LARGEST_MINIMUM = 10_000  # observations; agents reject terms with a larger minimum of an upload

Protocol = Annotated[int, Meta(ge=1, le=1_000, description="The sender's version of the protocol.")]
Sequence = Annotated[int, Meta(ge=1, le=2**53 - 1, description="The number of the agent's upload, from 1.")]
LastSequence = Annotated[int, Meta(ge=0, le=2**53 - 1, description="The number of an upload; 0 if there is none.")]
Count = Annotated[int, Meta(ge=0, le=LARGEST_TOTAL)]
Sum = Annotated[int, Meta(ge=0, description="A sum over agents, without an upper bound.")]
LAYOUT = (
    "d (d + 3) / 2 float64, little-endian: the gram's upper triangle row by row, then the moment, and then, if it is "
    "not 0, clicks minus the sum of their rewards. MessagePack: bin. JSON: base64."
)
_FLOAT64 = np.dtype("<f8")
MOST_BYTES = 4 * LARGEST_DIMENSION * (LARGEST_DIMENSION + 3) + 8
Numbers = Annotated[bytes, Meta(min_length=16, max_length=MOST_BYTES, description=LAYOUT)]
Token = Annotated[str, Meta(min_length=16, max_length=128)]
FeatureName = Annotated[str, Meta(max_length=128, description="The version of the features: a label, or label:hash.")]
EpochName = Annotated[str, Meta(max_length=64, description="The id of the store's history of uploads.")]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all messages, with the version of the protocol."""

    protocol: Protocol


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's signed statement that its log had reached a position in an epoch.

    An agent sends its last receipt along. A server whose log ends before that position was restored from a backup.
    """

    epoch: EpochName
    position: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    proof: Annotated[bytes, Meta(min_length=16, max_length=16)]


class UploadMessage(Message, frozen=True, kw_only=True):
    """An agent's upload (Algorithm 1, line 8). The signature identifies the sender.

    With the cause ``change`` it replaces all earlier uploads of the agent.
    """

    sequence: Sequence
    cause: Cause
    count: Count
    clicks: Count
    rounds: Count
    numbers: Numbers
    receipt: Receipt | None = None

    @classmethod
    def from_upload(cls, upload: Upload, receipt: Receipt | None = None) -> "UploadMessage":
        sums = upload.statistics
        return cls(
            protocol=PROTOCOLS[-1],
            sequence=upload.sequence,
            cause=upload.cause,
            count=sums.count,
            clicks=sums.clicks,
            rounds=sums.rounds,
            numbers=pack_numbers(sums),
            receipt=receipt,
        )

    def to_upload(self, agent: int, dimension: int) -> Upload:
        """Unpack the upload; raise ValueError for another dimension."""
        statistics = unpack_statistics(self.numbers, (self.count, self.clicks, self.rounds), dimension)
        return Upload(agent=agent, sequence=self.sequence, cause=self.cause, statistics=statistics)


class AnswerMessage(Message, frozen=True, kw_only=True):
    """The pooled statistics of an agent's group (Algorithm 1, line 10), and the server's counts.

    An agent extrapolates t from ``system_rounds`` and ``agents``. ``group_agents`` is the size of the group. All three
    are coarse.
    ``held_count`` and ``held_rounds`` sum this agent's uploads at the server: an agent with other sums fetches its
    standing. ``terms_id`` names the current terms.
    """

    sequence: Sequence
    count: Sum
    clicks: Sum
    rounds: Sum
    system_rounds: Sum
    agents: Sum
    group_agents: Sum
    held_count: Sum
    held_rounds: Sum
    terms_id: str
    receipt: Receipt
    numbers: Numbers


class Credential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recovery credential: an agent that the server has lost enrols again with it, without a token."""

    agent: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    enrolled: Annotated[
        float, Meta(ge=0, le=10**12, description="The time of the first enrolment, in seconds since 1970.")
    ]
    epoch: EpochName
    proof: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Enrolment(Message, frozen=True, kw_only=True):
    """The enrolment of an agent, with a one-time token or a recovery credential.

    ``proof`` is the signature of ``created``, token and credential with the key: see ``auth.sign_enrolment``.
    """

    public_key: Annotated[bytes, Meta(min_length=32, max_length=32, description="Ed25519, 32 bytes, base64 in JSON.")]
    created: Annotated[int, Meta(ge=0, le=10**12, description="Seconds since 1970.")]
    proof: Annotated[bytes, Meta(min_length=64, max_length=64)]
    token: Token | None = None
    credential: Credential | None = None


def encode_enrolment_claim(token: str | None, credential: Credential | None) -> bytes:
    """Encode the token and the credential of an enrolment, for its signature."""
    return msgspec.msgpack.encode((token, credential), order="deterministic")


class Terms(Message, frozen=True, kw_only=True):
    """The server's policy with its constants, the number of features, and bounds on uploads.

    ``longest_list`` bounds the items of a list, and ``min_observations`` is the minimum of an upload. An agent may
    upload ``rounds_burst`` rounds, and ``rounds_per_hour`` more for each hour since it enrolled. ``terms_id`` is a
    hash of the terms: an agent fetches them again if an answer names another one. ``features`` is set if the operator
    names the version of the features: an agent of another one refuses the server.
    """

    policy: str
    constants: dict[str, Any]
    dimension: int
    protocols: list[int]
    longest_list: int = 50
    min_observations: int = 1
    rounds_burst: int = LARGEST_TOTAL
    rounds_per_hour: Annotated[float, Meta(ge=0, le=10**12)] = 0.0
    terms_id: str = ""
    epoch: EpochName = ""
    features: FeatureName | msgspec.UnsetType = msgspec.UNSET

    def with_id(self) -> "Terms":
        """Return the terms with their hash as ``terms_id``."""
        content = msgspec.json.encode(msgspec.structs.replace(self, terms_id="", epoch=""), order="deterministic")
        return msgspec.structs.replace(self, terms_id=hashlib.sha256(content).hexdigest()[:16])


class PriorMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's prior for an agent without uploads, in the form of an answer; its counts are 0."""

    count: Sum
    clicks: Sum
    rounds: Sum
    system_rounds: Sum
    agents: Sum
    numbers: Numbers


class EnrolmentAnswer(Message, frozen=True, kw_only=True):
    """An agent's number, a recovery credential, and the server's terms.

    ``prior`` is set if the agent asked for it and the server has one.
    """

    agent: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    terms: Terms
    credential: Credential | None = None
    prior: PriorMessage | msgspec.UnsetType = msgspec.UNSET


class TokenRequest(Message, frozen=True, kw_only=True):
    """The number of enrolment tokens to create, and their lifetime."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    valid_seconds: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 7 * 86_400


class Tokens(Message, frozen=True, kw_only=True):
    """Enrolment tokens, each valid for one agent. The server keeps only their hashes."""

    tokens: list[str]


MOST_LABELS = 10_000
LARGEST_GROUPS = 60


class Overview(Message, frozen=True, kw_only=True):
    """The totals of a server, for operators: agents with uploads (``active``), and the group of each.

    Above ``MOST_LABELS`` agents there are no labels: ``sizes`` lists the sizes of the largest groups, and the list of
    agents names the group of each. ``resets`` counts the uploads that replaced earlier ones.
    """

    position: int
    enrolled: int
    rounds: int
    labels: dict[str, int]
    active: int = 0
    clusters: int = 0
    sizes: list[int] = []
    resets: int = 0


class Standing(Message, frozen=True, kw_only=True):
    """The sums over an agent's uploads since the last one with the cause ``change``, and the last sequence number.

    ``numbers`` is empty if the server holds no upload.
    """

    agent: int
    uploads: int
    count: Sum
    clicks: Sum
    rounds: Sum
    numbers: Annotated[bytes, Meta(max_length=MOST_BYTES, description=LAYOUT)]
    last_sequence: LastSequence
    last_change: LastSequence = 0
    epoch: EpochName
    revoked: bool
    credential: Credential

    def unpack_held(self, dimension: int) -> Statistics:
        """Unpack the sums; raise ValueError for another dimension."""
        if not self.numbers:
            return Statistics.zero(dimension)
        return unpack_statistics(self.numbers, (self.count, self.clicks, self.rounds), dimension)


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """An agent in a list for operators. ``enrolled`` and ``last``, its last upload, are milliseconds since 1970."""

    agent: int
    enrolled: int
    revoked: bool
    last: int | None
    rounds: int
    cluster: int | None


class AgentList(Message, frozen=True, kw_only=True):
    """A page of agents in the order of their numbers, and totals; ``more`` if the list goes on.

    ``clusters`` counts the groups of two agents or more.
    """

    enrolled: int
    active: int
    revoked: int
    clusters: int
    agents: list[AgentRow]
    more: bool


class Switch(Message, frozen=True, kw_only=True):
    """A switch that pauses exchanges and enrolments."""

    paused: bool


class ArmCounts(Message, frozen=True, kw_only=True):
    """New lists and clicks of an A/B test, by arm and bucket of users."""

    counts: Annotated[list[ArmCount], Meta(max_length=2 * BUCKETS)]


class TokenReplacement(Message, frozen=True, kw_only=True):
    """The SHA-256 of the operator's next token."""

    token_hash: Annotated[bytes, Meta(min_length=32, max_length=32)]


class EnrolmentKey(Message, frozen=True, kw_only=True):
    """A key with which a back end makes enrolment tokens, and nothing else. Without a hash, the key is revoked."""

    name: Annotated[str, Meta(pattern="^[a-z0-9-]{1,40}$")]
    key_hash: Annotated[bytes, Meta(min_length=32, max_length=32)] | None
    per_hour: Annotated[int, Meta(ge=1, le=10**6)] = 1_000


class RefusalBody(msgspec.Struct, frozen=True, kw_only=True):
    """The reason of a refusal for programs, and one line for people."""

    reason: str
    detail: str


Kind = TypeVar("Kind", bound=msgspec.Struct)
ENCODERS = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}


@cache
def _get_decoder(kind: type[Kind], media_type: str) -> Any:
    return (msgspec.json.Decoder if media_type == JSON else msgspec.msgpack.Decoder)(kind)


def get_media_type(headers: Mapping[str, str]) -> str:
    """Return the content type of headers, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def decode(body: bytes, kind: type[Kind], media_type: str) -> Kind:
    """Decode a message; reject malformed ones and unknown protocol versions."""
    if media_type not in ENCODERS:
        raise Refused(415, "content-type", f"content type must be {JSON} or {MSGPACK}, got '{media_type[:80]}'")
    try:
        message: Kind = _get_decoder(kind, media_type).decode(body)
    except msgspec.ValidationError as error:
        raise Refused(422, "malformed", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not {media_type}: {error}") from None
    protocol = getattr(message, "protocol", PROTOCOLS[-1])
    if protocol not in PROTOCOLS:
        expected = f"{PROTOCOLS[0]} to {PROTOCOLS[-1]}"
        raise Refused(400, "protocol", f"protocol must be {expected}, got {protocol}: update this agent")
    return message


@cache
def _locate_triangle(dimension: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the upper triangle in a flat matrix, and of each matrix element in the triangle."""
    rows, columns = np.triu_indices(dimension)
    places = np.empty((dimension, dimension), np.intp)
    places[rows, columns] = places[columns, rows] = np.arange(rows.size)
    return rows * dimension + columns, places


def count_numbers(dimension: int) -> int:
    """Count the numbers in the triangle of a gram and in a moment.

    >>> count_numbers(3)
    9
    """
    return dimension * (dimension + 3) // 2


def pack_numbers(statistics: Statistics) -> bytes:
    """Pack gram and moment as little-endian float64: the upper triangle row by row, then the moment.

    A shortfall of rewards follows if it is not 0.

    >>> import numpy as np
    >>> statistics = Statistics(np.array([[1.0, 2.0], [2.0, 3.0]]), np.array([4.0, 5.0]), 1, 1, 1)
    >>> np.frombuffer(pack_numbers(statistics), "<f8").tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    triangle = statistics.gram.take(_locate_triangle(statistics.dimension)[0])
    packed = triangle.astype(_FLOAT64, copy=False).tobytes() + statistics.moment.astype(_FLOAT64, copy=False).tobytes()
    return packed + np.array(statistics.shortfall, _FLOAT64).tobytes() if statistics.shortfall else packed


def coarsen(count: int) -> int:
    """Round a counter over all agents down to 4 significant bits, so that it reveals no single upload."""
    dropped = max(0, count.bit_length() - 4)
    return count >> dropped << dropped


def unpack_statistics(numbers: bytes, counts: tuple[int, int, int], dimension: int) -> Statistics:
    """Unpack statistics from the bytes of ``pack_numbers``, and count, clicks and rounds."""
    expected = count_numbers(dimension)
    if len(numbers) not in (8 * expected, 8 * expected + 8):
        raise ValueError(f"numbers must hold {expected} float64 in dimension {dimension}, got {len(numbers) / 8:g}")
    values, size = np.frombuffer(numbers, _FLOAT64), expected - dimension
    gram, moment = values[:size].take(_locate_triangle(dimension)[1]), values[size:expected].copy()
    return Statistics(gram, moment, *counts, *values[expected:].tolist())
