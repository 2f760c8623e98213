"""The epoch of a store: which history of uploads it holds. Whoever restores a backup begins a new epoch.

Names of epochs are compared and nothing else. Each has a number for people, and a random part, because two backups of
the same epoch may be restored. The store keeps a secret beside it, with which the server recognises its own words
after a restore: the secret stays the same from epoch to epoch.
"""

import hmac
import secrets
from dataclasses import dataclass, replace
from functools import lru_cache

from fedcascade.service.protocol.wire import Credential, Receipt
from fedcascade.service.store.contract import Identity, SettingStore

EPOCH = "epoch"
PROOF_BYTES = 16


@dataclass(frozen=True)
class Epoch:
    """The name of an epoch, such as ``2-8f41c0d9a7b35e12``, and the secret of the store."""

    name: str
    secret: bytes
    sessions: int = 0  # how often the operator has ended all sessions of the dashboard

    def give_session(self, expires: int) -> str:
        """A session of the dashboard until a time, which only this store's secret can make: for a cookie."""
        return f"{expires}.{self.compute_proof(f'session {self.sessions} {expires}').hex()}"

    def is_session(self, session: str, now: float) -> bool:
        """Whether this store gave a session, and it has neither expired nor been ended."""
        expires = session.partition(".")[0]
        is_dated = expires.isascii() and expires.isdecimal() and len(expires) < 15
        return (
            is_dated
            and int(expires) > now
            and hmac.compare_digest(session.encode(), self.give_session(int(expires)).encode())
        )

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
        proof = _begin_proof(self.secret).copy()
        proof.update(text.encode())
        return proof.digest()[:PROOF_BYTES]


@lru_cache(4)
def _begin_proof(secret: bytes) -> hmac.HMAC:
    """Begin what all proofs of a store share."""
    return hmac.new(secret, digestmod="sha256")


def _write_credential(epoch: str, agent: int, enrolled: float, public_key: bytes) -> str:
    return f"credential {epoch} {agent} {enrolled!r} {public_key.hex()}"


NO_EPOCH = Epoch("", b"")


def load_epoch(store: SettingStore) -> Epoch:
    """Load the epoch of a store; a new store begins its first one."""
    text = store.get_setting(EPOCH)
    if text is None:
        return begin_epoch(store)
    name, secret, sessions = text.split()
    return Epoch(name, bytes.fromhex(secret), int(sessions))


def begin_epoch(store: SettingStore, *, renew_secret: bool = False) -> Epoch:
    """Begin a new epoch; agents then compare what they sent with what the store holds, and send what is missing.

    With a new secret, receipts and credentials of before are worth nothing; agents get new ones as they compare.
    """
    earlier = load_epoch(store) if store.get_setting(EPOCH) else NO_EPOCH
    secret = secrets.token_bytes(32) if renew_secret or not earlier.secret else earlier.secret
    number = int(earlier.name.partition("-")[0] or 0) + 1
    return _save_epoch(store, Epoch(f"{number}-{secrets.token_hex(8)}", secret, earlier.sessions))


def end_sessions(store: SettingStore) -> Epoch:
    """End all sessions of the dashboard, at every server of the store."""
    epoch = load_epoch(store)
    return _save_epoch(store, replace(epoch, sessions=epoch.sessions + 1))


def _save_epoch(store: SettingStore, epoch: Epoch) -> Epoch:
    store.set_setting(EPOCH, f"{epoch.name} {epoch.secret.hex()} {epoch.sessions}")
    return epoch
