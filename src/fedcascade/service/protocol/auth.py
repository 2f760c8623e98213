"""Who may talk: HTTP message signatures (RFC 9421) with Ed25519, digests of bodies (RFC 9530), hashed tokens.

One form is spoken, and nothing else is accepted: the signature covers method, path, digest of the body and sequence
number; its parameters are the time, the agent's number as key id, and a nonce that grows with every request.
"""

import base64
import hashlib
import hmac
import re
import secrets
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import NamedTuple

from nacl.bindings import crypto_core_ed25519_is_valid_point
from nacl.signing import SigningKey

from fedcascade.service.protocol.errors import Refused

FRESH_SECONDS = 300
NONCES_KEPT = 32
SEQUENCE = "fedcascade-sequence"
COVERED = f'("@method" "@path" "content-digest" "{SEQUENCE}")'
PARAMETERS = re.compile(
    re.escape(COVERED) + r';created=(\d{1,12});keyid="(\d{1,18})";nonce="(\d{1,18})";alg="ed25519"', re.ASCII
)
SIGNATURE = re.compile(r"agent=:([A-Za-z0-9+/]{86}==):")
NUMBER = re.compile(r"0|[1-9]\d{0,15}", re.ASCII)


class Unauthorised(Refused):
    """A request that does not prove who sent it."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(401, reason, detail)


class SignatureHeaders(NamedTuple):
    """The signature headers of a request, parsed but not verified."""

    agent: int
    created: int
    nonce: int
    sequence: int
    digest: str
    parameters: str
    signature: str


def sign(
    key: SigningKey, *, agent: int, method: str, path: str, body: bytes, sequence: int, created: int, nonce: int
) -> dict[str, str]:
    """Sign a request for an agent; the headers that carry the signature."""
    parameters = f'{COVERED};created={created};keyid="{agent}";nonce="{nonce}";alg="ed25519"'
    unsigned = SignatureHeaders(agent, created, nonce, sequence, compute_digest(body), parameters, "")
    signature = key.sign(build_signature_base(method, path, unsigned)).signature
    return {
        "content-digest": unsigned.digest,
        SEQUENCE: str(sequence),
        "signature-input": f"agent={parameters}",
        "signature": f"agent=:{base64.b64encode(signature).decode()}:",
    }


def parse_signature(headers: Mapping[str, str]) -> SignatureHeaders:
    """Parse the signature headers of a request; refuse one that is not signed in the one accepted form."""
    digest, sequence = headers.get("content-digest", ""), headers.get(SEQUENCE, "")
    parameters = headers.get("signature-input", "").removeprefix("agent=")
    match = PARAMETERS.fullmatch(parameters)
    signature = SIGNATURE.fullmatch(headers.get("signature", ""))
    if not digest or match is None or signature is None or NUMBER.fullmatch(sequence) is None:
        raise Unauthorised("unsigned", "the request must carry content-digest, signature-input and signature")
    created, agent, nonce = map(int, match.groups())
    return SignatureHeaders(agent, created, nonce, int(sequence), digest, parameters, signature[1])


def require_fresh(signature: SignatureHeaders, now: float) -> None:
    """Refuse a signature that was made too long ago, or too far in the future."""
    age = now - signature.created
    if abs(age) > FRESH_SECONDS:
        raise Unauthorised("stale", f"the signature is {age:.0f} s old, at most {FRESH_SECONDS} s are accepted")


def build_signature_base(method: str, path: str, signature: SignatureHeaders) -> bytes:
    """The bytes that are signed (RFC 9421, section 2.5)."""
    return (
        f'"@method": {method}\n"@path": {path}\n"content-digest": {signature.digest}\n'
        f'"{SEQUENCE}": {signature.sequence}\n"@signature-params": {signature.parameters}'
    ).encode()


def is_public_key(key: bytes) -> bool:
    """Whether 32 bytes are an Ed25519 public key: a canonical point of the prime-order subgroup."""
    return crypto_core_ed25519_is_valid_point(key)


def compute_digest(body: bytes) -> str:
    """The SHA-256 of a body as the Content-Digest header carries it (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


class Nonces:
    """An anti-replay window per agent: a nonce is good once, and only if it is not older than those kept."""

    def __init__(self) -> None:
        self._seen: dict[int, list[int]] = {}

    def use(self, agent: int, nonce: int) -> None:
        """Record a nonce; refuse one that was used, or that is too old to tell."""
        seen = self._seen.setdefault(agent, [])
        place = bisect_left(seen, nonce)
        used = place < len(seen) and seen[place] == nonce
        if used or (place == 0 and len(seen) == NONCES_KEPT):
            raise Unauthorised("replayed", "this signature was used before: sign every request anew")
        insort(seen, nonce)
        del seen[:-NONCES_KEPT]


def create_token() -> str:
    """A new secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """What is kept of a token. It is random and long, so a plain hash cannot be guessed backwards."""
    return hashlib.sha256(token.encode()).digest()


def is_operator(header: str, operator_hash: bytes | None) -> bool:
    """Whether an Authorization header carries the operator's token."""
    token = header.removeprefix("Bearer ")
    return operator_hash is not None and hmac.compare_digest(hash_token(token), operator_hash)
