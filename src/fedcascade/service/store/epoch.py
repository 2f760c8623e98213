"""The epoch of a store: which history of uploads it holds. Whoever restores a backup begins a new epoch.

Names of epochs are compared and nothing else. Each has a number for people, and a random part, because two backups of
the same epoch may be restored. The store keeps a secret beside it, with which the server recognises its own words
after a restore: the secret stays the same from epoch to epoch.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import lru_cache

from fedcascade.service.protocol.wire import Credential, Receipt
from fedcascade.service.store.contract import Identity, SettingStore

EPOCH = "epoch"
PROOF_BYTES = 16
BLOCK_BYTES = 64  # of SHA-256


@dataclass(frozen=True)
class Epoch:
    """The name of an epoch, such as ``2-8f41c0d9a7b35e12``, and the secret of the store."""

    name: str
    secret: bytes

    def give_receipt(self, position: int) -> Receipt:
        """A receipt that says how far the log is, which only this store's secret can make."""
        return Receipt(epoch=self.name, position=position, proof=self.compute_proof(f"receipt {self.name} {position}"))

    def is_genuine(self, receipt: Receipt) -> bool:
        """Whether this store gave a receipt, in this epoch."""
        expected = self.compute_proof(f"receipt {self.name} {receipt.position}")
        return receipt.epoch == self.name and hmac.compare_digest(receipt.proof, expected)

    def give_credential(self, identity: Identity) -> Credential:
        """A credential with which an agent can be enrolled again, should the store lose it."""
        agent, enrolled = identity.agent, identity.enrolled
        proof = self.compute_proof(_write_credential(self.name, agent, enrolled, identity.public_key))
        return Credential(agent=agent, enrolled=enrolled, epoch=self.name, proof=proof)

    def is_credential(self, credential: Credential, public_key: bytes) -> bool:
        """Whether this store gave a credential for a key, in any epoch."""
        text = _write_credential(credential.epoch, credential.agent, credential.enrolled, public_key)
        return hmac.compare_digest(credential.proof, self.compute_proof(text))

    def mark_forgotten(self, public_key: bytes) -> bytes:
        """What a store keeps of a forgotten agent's key: its credential must not bring it back."""
        return self.compute_proof(f"forgotten {public_key.hex()}")

    def compute_proof(self, text: str) -> bytes:
        """Authenticate a text with the store's secret: HMAC-SHA256 (RFC 2104), shortened."""
        begun_inner, begun_outer = _begin_proofs(self.secret)
        inner, outer = begun_inner.copy(), begun_outer.copy()
        inner.update(text.encode())
        outer.update(inner.digest())
        return outer.digest()[:PROOF_BYTES]


@lru_cache(4)
def _begin_proofs(secret: bytes) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    """The two hashes of HMAC-SHA256 after the secret, which all proofs of a store share."""
    block = (hashlib.sha256(secret).digest() if len(secret) > BLOCK_BYTES else secret).ljust(BLOCK_BYTES, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
    return inner, outer


def _write_credential(epoch: str, agent: int, enrolled: float, public_key: bytes) -> str:
    return f"credential {epoch} {agent} {enrolled!r} {public_key.hex()}"


NO_EPOCH = Epoch("", b"")


def load_epoch(store: SettingStore) -> Epoch:
    """Load the epoch of a store; a new store begins its first one."""
    text = store.get_setting(EPOCH)
    if text is None:
        return begin_epoch(store)
    name, secret = text.split()
    return Epoch(name, bytes.fromhex(secret))


def begin_epoch(store: SettingStore, *, renew_secret: bool = False) -> Epoch:
    """Begin a new epoch; agents then compare what they sent with what the store holds, and send what is missing.

    With a new secret, receipts and credentials of before are worth nothing; agents get new ones as they compare.
    """
    name, secret = (store.get_setting(EPOCH) or "0- ").split(" ")
    if renew_secret or not secret:
        secret = secrets.token_hex(32)
    number = int(name.partition("-")[0]) + 1
    epoch = Epoch(f"{number}-{secrets.token_hex(8)}", bytes.fromhex(secret))
    store.set_setting(EPOCH, f"{epoch.name} {secret}")
    return epoch
