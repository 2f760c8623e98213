"""The epoch of a store, which names its history of uploads. Restoring a backup begins a new epoch.

The name of an epoch has a number for people and a random part, because a backup may be restored twice. The store's
secret authenticates receipts, credentials and sessions, and stays the same from epoch to epoch.
"""

import hmac
import secrets
from dataclasses import dataclass, replace
from functools import lru_cache

from fedcascade.service.protocol.wire import Credential, Receipt
from fedcascade.service.store.contract import Identity, Store

EPOCH = "epoch"
PROOF_BYTES = 16


@dataclass(frozen=True)
class Epoch:
    """The name of an epoch, such as ``2-8f41c0d9a7b35e12``, and the secret of the store."""

    name: str
    secret: bytes
    sessions: int = 0  # how often the operator has ended all sessions of the dashboard

    def give_session(self, expires: int) -> str:
        """Create a session of the dashboard, for a cookie, authenticated by the store's secret."""
        return f"{expires}.{self.compute_proof(f'session {self.sessions} {expires}').hex()}"

    def is_session(self, session: str, now: float) -> bool:
        """Return whether a session is authentic and has neither expired nor been ended."""
        expires = session.partition(".")[0]
        is_dated = expires.isascii() and expires.isdecimal() and len(expires) < 15
        if not is_dated or int(expires) <= now:
            return False
        return hmac.compare_digest(session.encode(), self.give_session(int(expires)).encode())

    def give_receipt(self, position: int) -> Receipt:
        """Create a receipt for a position of the log, authenticated by the store's secret."""
        return Receipt(epoch=self.name, position=position, proof=self.compute_proof(f"receipt {self.name} {position}"))

    def is_genuine(self, receipt: Receipt) -> bool:
        """Return whether a receipt is authentic and of this epoch."""
        expected = self.give_receipt(receipt.position)
        return receipt.epoch == self.name and hmac.compare_digest(receipt.proof, expected.proof)

    def give_credential(self, identity: Identity) -> Credential:
        """Create a recovery credential, with which an agent can enrol again if the store loses it."""
        agent, enrolled = identity.agent, identity.enrolled
        proof = self.compute_proof(f"credential {self.name} {agent} {enrolled!r} {identity.public_key.hex()}")
        return Credential(agent=agent, enrolled=enrolled, epoch=self.name, proof=proof)

    def is_credential(self, credential: Credential, public_key: bytes) -> bool:
        """Return whether a credential for a key is authentic, of any epoch."""
        identity = Identity(credential.agent, public_key, credential.enrolled)
        expected = replace(self, name=credential.epoch).give_credential(identity)
        return hmac.compare_digest(credential.proof, expected.proof)

    def mark_forgotten(self, public_key: bytes) -> bytes:
        """Compute the mark of a forgotten agent's key, so that its credential is no longer valid."""
        return self.compute_proof(f"forgotten {public_key.hex()}")

    def compute_proof(self, text: str) -> bytes:
        """Authenticate a text with the store's secret: HMAC-SHA256 (RFC 2104), shortened."""
        proof = _begin_proof(self.secret).copy()
        proof.update(text.encode())
        return proof.digest()[:PROOF_BYTES]


@lru_cache(4)
def _begin_proof(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod="sha256")


NO_EPOCH = Epoch("", b"")


def load_epoch(store: Store) -> Epoch:
    """Load the epoch of a store; a new store begins its first one."""
    text = store.get_setting(EPOCH)
    if text is None:
        return begin_epoch(store)
    name, secret, sessions = text.split()
    return Epoch(name, bytes.fromhex(secret), int(sessions))


def begin_epoch(store: Store, *, renew_secret: bool = False) -> Epoch:
    """Begin a new epoch: agents then compare their uploads with the store and send missing ones.

    A new secret invalidates earlier receipts and credentials; agents get new ones when they compare.
    """
    earlier = load_epoch(store) if store.get_setting(EPOCH) else NO_EPOCH
    secret = secrets.token_bytes(32) if renew_secret or not earlier.secret else earlier.secret
    number = int(earlier.name.partition("-")[0] or 0) + 1
    return _save_epoch(store, Epoch(f"{number}-{secrets.token_hex(8)}", secret, earlier.sessions))


def end_sessions(store: Store) -> Epoch:
    """End all sessions of the dashboard, at every server of the store."""
    epoch = load_epoch(store)
    return _save_epoch(store, replace(epoch, sessions=epoch.sessions + 1))


def _save_epoch(store: Store, epoch: Epoch) -> Epoch:
    store.set_setting(EPOCH, f"{epoch.name} {epoch.secret.hex()} {epoch.sessions}")
    return epoch
