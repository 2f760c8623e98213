"""What travels between agents and a server: frozen values, as JSON or MessagePack.

Gram and moment travel as one block of bytes. A gram is symmetric, so only its upper triangle is in it: an asymmetric
one cannot be sent.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.service.protocol.errors import Refused

PROTOCOLS = (2,)
EXCHANGES = "/v1/exchanges"
ENROLMENTS = "/v1/agents"
WITH_DOWNLOAD = "download"  # the query of an enrolment by an agent that understands ``Welcome.download``
JSON, MSGPACK = "application/json", "application/msgpack"
LARGEST_DIMENSION = 512

Protocol = Annotated[int, Meta(ge=1, le=1_000, description="The version of the protocol that the sender speaks.")]
Sequence = Annotated[int, Meta(ge=1, le=2**53 - 1, description="The agent's uploads count from 1.")]
Count = Annotated[int, Meta(ge=0, le=LARGEST_TOTAL)]
Sum = Annotated[int, Meta(ge=0, description="A sum over agents: it has no bound that one upload could break.")]
LAYOUT = (
    "d (d + 3) / 2 float64, little-endian: the gram's upper triangle row by row, then the moment. "
    "MessagePack: bin. JSON: base64."
)
_FLOAT64 = np.dtype("<f8")
MOST_BYTES = 4 * LARGEST_DIMENSION * (LARGEST_DIMENSION + 3)
Numbers = Annotated[bytes, Meta(min_length=16, max_length=MOST_BYTES, description=LAYOUT)]
Token = Annotated[str, Meta(min_length=16, max_length=128)]
EpochName = Annotated[str, Meta(max_length=64, description="Which history of uploads a store holds.")]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every message says which version of the protocol it speaks."""

    protocol: Protocol


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's word that its log was at this position in this epoch.

    An agent shows the last one that it got. A server whose log ends before it was restored from a backup.
    """

    epoch: EpochName
    position: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    proof: Annotated[bytes, Meta(min_length=16, max_length=16)]


class UploadMessage(Message, frozen=True, kw_only=True):
    """An agent's upload (Algorithm 1, line 8). The signature identifies the sender.

    With the cause ``change`` it replaces everything that the agent uploaded before.
    """

    sequence: Sequence
    cause: Cause
    count: Count
    clicks: Count
    rounds: Count
    numbers: Numbers
    receipt: Receipt | None = None

    @classmethod
    def from_upload(
        cls, upload: Upload, protocol: int = PROTOCOLS[-1], receipt: Receipt | None = None
    ) -> "UploadMessage":
        """Pack an upload."""
        sent = upload.statistics
        counts = {"count": sent.count, "clicks": sent.clicks, "rounds": sent.rounds}
        key = {"protocol": protocol, "sequence": upload.sequence}
        return cls(**key, cause=upload.cause, numbers=pack_numbers(sent), receipt=receipt, **counts)

    def to_upload(self, agent: int, dimension: int) -> Upload:
        """Unpack the upload; ValueError if it is of another dimension."""
        statistics = unpack_statistics(self.numbers, (self.count, self.clicks, self.rounds), dimension)
        return Upload(agent=agent, sequence=self.sequence, cause=self.cause, statistics=statistics)


class AnswerMessage(Message, frozen=True, kw_only=True):
    """The pooled statistics of an agent's group (Algorithm 1, line 10), and how far the system is.

    ``system_rounds`` and ``agents`` are what the server knows of; an agent extrapolates t from them. ``group_agents``
    is how many agents share the group. ``held_count`` and ``held_rounds`` are the sums over all uploads of this agent
    that the server holds: an agent that remembers others asks for its standing. ``terms_id`` is that of the terms that
    hold now.
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

    @classmethod
    def from_download(
        cls, download: Download, sequence: int, group_agents: int, *, held: tuple[int, int], **more: Any
    ) -> "AnswerMessage":
        """Pack an answer; ``held`` are the observations and rounds that the server holds of this agent."""
        pooled = download.statistics
        return cls(
            protocol=PROTOCOLS[-1], sequence=sequence, group_agents=group_agents, count=pooled.count,
            clicks=pooled.clicks, rounds=pooled.rounds,
            system_rounds=download.rounds, agents=download.agents, held_count=held[0], held_rounds=held[1],
            numbers=pack_numbers(pooled), **more,
        )  # fmt: skip

    def to_download(self, agent: int, dimension: int) -> Download:
        """Unpack the download; ValueError if it is of another dimension."""
        statistics = unpack_statistics(self.numbers, (self.count, self.clicks, self.rounds), dimension)
        return Download(agent=agent, statistics=statistics, rounds=self.system_rounds, agents=self.agents)


class Credential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's word that it enrolled a key under a number: with it a lost agent enrols again, without a token."""

    agent: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    enrolled: Annotated[float, Meta(description="When the agent enrolled first, in seconds since 1970.")]
    epoch: EpochName
    proof: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Enrolment(Message, frozen=True, kw_only=True):
    """A newcomer with a one-time token, or an agent that the server has lost with its credential.

    ``proof`` is the signature of ``created``, token and credential under the key: see ``auth.sign_enrolment``.
    """

    public_key: Annotated[bytes, Meta(min_length=32, max_length=32, description="Ed25519, 32 bytes, base64 in JSON.")]
    created: Annotated[int, Meta(ge=0, le=10**12, description="Seconds since 1970.")]
    proof: Annotated[bytes, Meta(min_length=64, max_length=64)]
    token: Token | None = None
    credential: Credential | None = None


def encode_grounds(token: str | None, credential: Credential | None) -> bytes:
    """Encode what entitles an agent to enrol, for its signature."""
    return msgspec.msgpack.encode((token, credential), order="deterministic")


class Terms(Message, frozen=True, kw_only=True):
    """What the server runs and accepts: the policy with its constants, the number of features, bounds on uploads.

    ``longest_list`` is the most items that a list may show, and ``min_observations`` the fewest that an upload may
    hold. An agent may have ``rounds_burst`` rounds, and ``rounds_per_hour`` more for each hour since it enrolled.
    ``terms_id`` is a short hash of all this: an agent that sees another one in an answer fetches the terms again.
    ``epoch`` is that of the server's store.
    """

    policy: str
    constants: dict[str, Any]
    dimension: int
    protocols: list[int]
    longest_list: int = 50
    min_observations: int = 1
    rounds_burst: int = LARGEST_TOTAL
    rounds_per_hour: float = 0.0
    terms_id: str = ""
    epoch: EpochName = ""

    def with_id(self) -> "Terms":
        """The same terms under the hash of what they say."""
        content = msgspec.json.encode(msgspec.structs.replace(self, terms_id="", epoch=""), order="deterministic")
        return msgspec.structs.replace(self, terms_id=hashlib.sha256(content).hexdigest()[:16])


class DownloadMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server knows of a user who has said nothing, in the form of an answer; its counts are 0."""

    count: Sum
    clicks: Sum
    rounds: Sum
    system_rounds: Sum
    agents: Sum
    numbers: Numbers

    @classmethod
    def from_download(cls, download: Download) -> "DownloadMessage":
        known, rounds, agents = download.statistics, download.rounds, download.agents
        counts = {"count": known.count, "clicks": known.clicks, "rounds": known.rounds}
        return cls(**counts, system_rounds=rounds, agents=agents, numbers=pack_numbers(known))

    def to_download(self, agent: int, dimension: int) -> Download:
        """Unpack the download; ValueError if it is of another dimension."""
        statistics = unpack_statistics(self.numbers, (self.count, self.clicks, self.rounds), dimension)
        return Download(agent=agent, statistics=statistics, rounds=self.system_rounds, agents=self.agents)


class Welcome(Message, frozen=True, kw_only=True):
    """A newcomer's number, under which it signs from now on, a credential for bad days, and the server's terms.

    ``download`` is there if the agent asked for it and the server knows something of anybody.
    """

    agent: int
    terms: Terms
    credential: Credential | None = None
    download: DownloadMessage | msgspec.UnsetType = msgspec.UNSET


class TokenRequest(Message, frozen=True, kw_only=True):
    """How many enrolment tokens an operator wants, and for how long they are good."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    valid_seconds: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 7 * 86_400


class Tokens(Message, frozen=True, kw_only=True):
    """Enrolment tokens, each good for one agent. They are shown once and kept as hashes."""

    tokens: list[str]


MOST_LABELS = 10_000
LARGEST_GROUPS = 60


class Overview(Message, frozen=True, kw_only=True):
    """What the server holds, for operators: how many agents have spoken, and the label of each one's group.

    Of more than ``MOST_LABELS`` agents there are no labels: ``sizes`` has how many agents the largest groups have, and
    a list of agents, page by page, has the group of each. ``resets`` counts the uploads that replaced earlier ones.
    """

    position: int
    enrolled: int
    rounds: int
    labels: dict[str, int]
    spoken: int = 0
    clusters: int = 0
    sizes: list[int] = []
    resets: int = 0


class Standing(Message, frozen=True, kw_only=True):
    """One agent, as the server knows it: the sums over its uploads, and the last sequence number among them.

    Uploads before the last one with the cause ``change`` are not part of the sums. ``numbers`` is empty where the
    server holds no upload.
    """

    agent: int
    uploads: int
    count: Sum
    clicks: Sum
    rounds: Sum
    numbers: Annotated[bytes, Meta(max_length=MOST_BYTES, description=LAYOUT)]
    last_sequence: Annotated[int, Meta(ge=0)]
    last_change: Annotated[
        int, Meta(ge=0, description="The sequence number of the last upload with the cause change; 0 if none.")
    ] = 0
    epoch: EpochName
    revoked: bool
    credential: Credential

    def unpack_held(self, dimension: int) -> Statistics:
        """Unpack what the server holds of the agent; ValueError if it is of another dimension."""
        if not self.numbers:
            return Statistics.zero(dimension)
        return unpack_statistics(self.numbers, (self.count, self.clicks, self.rounds), dimension)


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """An agent in a list for operators; ``last`` is when it last spoke. Times are in milliseconds since 1970."""

    agent: int
    enrolled: int
    revoked: bool
    last: int | None
    rounds: int
    cluster: int | None


class AgentList(Message, frozen=True, kw_only=True):
    """Some agents in the order of their numbers, and how many there are in all; ``more`` come after the last one."""

    enrolled: int
    spoken: int
    revoked: int
    clusters: int
    agents: list[AgentRow]
    more: bool


class TokenReplacement(Message, frozen=True, kw_only=True):
    """The SHA-256 of the operator's next token, which itself does not travel."""

    token_hash: Annotated[bytes, Meta(min_length=32, max_length=32)]


class RefusalBody(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused: a word for programs, a line for people."""

    reason: str
    detail: str


Kind = TypeVar("Kind", bound=msgspec.Struct)
_ENCODERS = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}


@cache
def _get_decoder(kind: type[Kind], media_type: str) -> Any:
    return (msgspec.json.Decoder if media_type == JSON else msgspec.msgpack.Decoder)(kind)


def get_media_type(headers: Mapping[str, str]) -> str:
    """The content type that headers name, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def decode(body: bytes, kind: type[Kind], media_type: str) -> Kind:
    """Decode a message; refuse one that is malformed, or of a protocol that is not spoken here."""
    if media_type not in _ENCODERS:
        raise Refused(415, "content-type", f"content type must be {JSON} or {MSGPACK}, got '{media_type[:80]}'")
    try:
        message: Kind = _get_decoder(kind, media_type).decode(body)
    except msgspec.ValidationError as error:
        raise Refused(422, "malformed", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not {media_type}: {error}") from None
    protocol = getattr(message, "protocol", PROTOCOLS[-1])
    if protocol not in PROTOCOLS:
        raise Refused(400, "protocol", f"protocol {protocol} is not spoken here: {PROTOCOLS[0]} to {PROTOCOLS[-1]} are")
    return message


def encode(message: msgspec.Struct, media_type: str) -> bytes:
    """The bytes of a message."""
    return _ENCODERS[media_type](message)


@cache
def _locate_triangle(dimension: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the upper triangle is in a flat matrix, and where each element of the matrix is in the triangle."""
    rows, columns = np.triu_indices(dimension)
    places = np.empty((dimension, dimension), np.intp)
    places[rows, columns] = places[columns, rows] = np.arange(rows.size)
    return rows * dimension + columns, places


def count_numbers(dimension: int) -> int:
    """How many numbers there are in the triangle of a gram and in a moment.

    >>> count_numbers(3)
    9
    """
    return dimension * (dimension + 3) // 2


def pack_numbers(statistics: Statistics) -> bytes:
    """Gram and moment as little-endian float64: the upper triangle row by row, then the moment.

    >>> import numpy as np
    >>> statistics = Statistics(np.array([[1.0, 2.0], [2.0, 3.0]]), np.array([4.0, 5.0]), 1, 1, 1)
    >>> np.frombuffer(pack_numbers(statistics), "<f8").tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    triangle = statistics.gram.take(_locate_triangle(statistics.dimension)[0])
    return triangle.astype(_FLOAT64, copy=False).tobytes() + statistics.moment.astype(_FLOAT64, copy=False).tobytes()


def unpack_statistics(numbers: bytes, counts: tuple[int, int, int], dimension: int) -> Statistics:
    """Statistics from the bytes of ``pack_numbers``, and count, clicks and rounds."""
    expected = count_numbers(dimension)
    if len(numbers) != 8 * expected:
        raise ValueError(f"numbers must hold {expected} float64 in dimension {dimension}, got {len(numbers) / 8:g}")
    values, size = np.frombuffer(numbers, _FLOAT64), expected - dimension
    return Statistics(values[:size].take(_locate_triangle(dimension)[1]), values[size:].copy(), *counts)
