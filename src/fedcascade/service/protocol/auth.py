"""Authentication: HTTP message signatures (RFC 9421) with Ed25519, body digests (RFC 9530), and tokens.

Only one form of signature is accepted. It covers method, path, body digest and sequence number; its parameters are the
time, the agent's number as key id, and a nonce.
"""

import base64
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign_open
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from fedcascade.checks import require
from fedcascade.platforms import sync_file
from fedcascade.service.protocol.errors import Refused

FRESH_SECONDS = 300  # accept signatures up to 5 minutes old
SEQUENCE = "fedcascade-sequence"
SERVER_TIME = "fedcascade-time"  # header of a 401 for a wrong clock, in seconds since 1970
UNRECOGNISED = "the signature matches no enrolled agent: enrol again"
REPLAYED = "this signature was used before: sign every request with a new nonce"
COVERED = f'("@method" "@path" "content-digest" "{SEQUENCE}")'
PARAMETERS = re.compile(
    re.escape(COVERED) + r';created=(\d{1,12});keyid="(\d{1,18})";nonce="(\d{1,18})";alg="ed25519"', re.ASCII
)
SIGNATURE = re.compile(r"agent=:([A-Za-z0-9+/]{86}==):")
CLAIM = re.compile(r'keyid="(\d{1,18})"', re.ASCII)
NUMBER = re.compile(r"0|[1-9]\d{0,15}", re.ASCII)


class Unauthorised(Refused):
    """A request without a valid proof of its sender."""

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
    key: SigningKey, *, agent: int, method: str, path: str, digest: str, sequence: int, created: int, nonce: int
) -> dict[str, str]:
    """Sign a request of an agent, with the digest of its body, and return the headers of the signature."""
    parameters = f'{COVERED};created={created};keyid="{agent}";nonce="{nonce}";alg="ed25519"'
    unsigned = SignatureHeaders(agent, created, nonce, sequence, digest, parameters, "")
    signature = key.sign(build_signature_base(method, path, unsigned)).signature
    return {
        "content-digest": unsigned.digest,
        SEQUENCE: str(sequence),
        "signature-input": f"agent={parameters}",
        "signature": f"agent=:{base64.b64encode(signature).decode()}:",
    }


def verify(key: bytes, method: str, path: str, signature: SignatureHeaders) -> None:
    """Refuse a signature that is not by the owner of a public key."""
    try:
        crypto_sign_open(base64.b64decode(signature.signature) + build_signature_base(method, path, signature), key)
    except BadSignatureError:
        raise Unauthorised("unrecognised", UNRECOGNISED) from None


def parse_signature(headers: Mapping[str, str]) -> SignatureHeaders:
    """Parse the signature headers of a request; reject any other form."""
    digest, sequence = headers.get("content-digest", ""), headers.get(SEQUENCE, "")
    parameters = headers.get("signature-input", "").removeprefix("agent=")
    match = PARAMETERS.fullmatch(parameters)
    signature = SIGNATURE.fullmatch(headers.get("signature", ""))
    if not digest or match is None or signature is None or NUMBER.fullmatch(sequence) is None:
        raise Unauthorised("unsigned", "the request must carry content-digest, signature-input and signature")
    created, agent, nonce = map(int, match.groups())
    return SignatureHeaders(agent, created, nonce, int(sequence), digest, parameters, signature[1])


def require_fresh(created: int, now: float) -> None:
    """Reject a signature that is too old, or too far in the future."""
    age = now - created
    if abs(age) > FRESH_SECONDS:
        raise Unauthorised("stale", f"the signature is {age:.0f} s old, at most {FRESH_SECONDS} s are accepted")


def build_signature_base(method: str, path: str, signature: SignatureHeaders) -> bytes:
    """Build the bytes to sign (RFC 9421, section 2.5)."""
    return (
        f'"@method": {method}\n"@path": {path}\n"content-digest": {signature.digest}\n'
        f'"{SEQUENCE}": {signature.sequence}\n"@signature-params": {signature.parameters}'
    ).encode()


def sign_enrolment(key: SigningKey, created: int, claim: bytes) -> bytes:
    """Sign an enrolment: only the owner of a key can enrol it. ``claim`` encodes the token or credential."""
    return key.sign(_build_enrolment_base(created, claim)).signature


def verify_enrolment(public_key: bytes, proof: bytes, created: int, claim: bytes) -> None:
    """Reject an enrolment with a weak key, or without a signature by that key."""
    if not crypto_core_ed25519_is_valid_point(public_key):  # a canonical point of the prime-order subgroup
        raise Refused(422, "impossible", "public_key is not an Ed25519 key")
    try:
        VerifyKey(public_key).verify(_build_enrolment_base(created, claim), proof)
    except BadSignatureError:
        raise Unauthorised("unsigned", "an enrolment must be signed with the key that it enrols") from None


def _build_enrolment_base(created: int, claim: bytes) -> bytes:
    return b"fedcascade enrolment\n%d\n%b" % (created, claim)


def compute_digest(body: bytes) -> str:
    """Compute the Content-Digest header of a body (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def read_claimed_agent(headers: Mapping[str, str]) -> str:
    """Return the agent's number that a request claims, unverified; empty if none."""
    match = CLAIM.search(headers.get("signature-input", ""))
    return match[1] if match else ""


def create_token() -> str:
    """Create a secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """Hash a token for storage. A token has 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).digest()


def is_operator(header: str, operator_hash: bytes | None) -> bool:
    """Return whether an Authorization header carries the operator's token."""
    token = header.removeprefix("Bearer ")
    return operator_hash is not None and hmac.compare_digest(hash_token(token), operator_hash)


PUBLISHED_TOKEN = "67f5d9711a97197e1cd4918f593b535907361e127ba31e3566456a151641cbd4"  # hash of one in old clones
LEAST_CHARACTERS = 16  # a shorter token could be guessed


def read_private_token(path: Path) -> str:
    """Read the operator's token; reject a file that others can read, and a token that was once published."""
    token = read_token(path)
    is_open = os.name != "nt" and path.stat().st_mode & 0o007
    require(not is_open, f"'{path}' holds the operator's token, and others can read it: run chmod o-rwx '{path}'")
    is_known = hash_token(token).hex() == PUBLISHED_TOKEN
    require(not is_known, f"the operator's token in '{path}' was published with the sources: delete the file")
    return token


def read_token(path: Path) -> str:
    """Read the operator's token from its file; reject one that is missing, short or not one line."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        found = f"cannot read the operator's token from '{path}': {error.strerror}"
        raise ValueError(f"{found}; give the file that the server uses with --operator-token") from None
    except UnicodeDecodeError:
        token = ""
    is_good = len(token) >= LEAST_CHARACTERS and token.isprintable()
    expected = f"one line of at least {LEAST_CHARACTERS} letters and digits"
    require(is_good, f"'{path}' must hold the operator's token, {expected}: write one, or delete the file")
    return token


def write_token(path: Path, token: str) -> None:
    """Write a token to a new file that only its owner can read, and sync it to disk."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{token}\n")
            file.flush()
            sync_file(file.fileno())
    except OSError as error:
        raise ValueError(f"cannot write the operator's token to '{path}': {error.strerror}") from None


def require_token_path(path: Path) -> None:
    """Reject a path that neither holds the operator's token nor can be written."""
    is_writable = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    words = f"'{path.parent}' must be a folder that you can write to"
    require(path.exists() or is_writable, f"cannot write the operator's token to '{path}': {words}")
