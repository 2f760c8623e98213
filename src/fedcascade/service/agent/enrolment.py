"""Enrolment of agents. Keys and tokens are saved before they are sent, so a crash cannot make an agent use one twice.

The server's prior is saved for the agent that enrolled, and for agents of the same file that have not enrolled yet.
"""

from dataclasses import dataclass, field

import msgspec
from nacl.signing import SigningKey
from nacl.utils import random as random_bytes

from fedcascade.service.agent.client import AgentClient, enrol_agent, fetch_terms
from fedcascade.service.agent.local_store import ENROLMENT, LocalStore
from fedcascade.service.agent.store_file import SHARED, StoreFile
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused

NO_TOKEN = "the server does not know this agent: ask the operator for an enrolment token"
KEY, NEXT_KEY, TOKEN = "key", "next_key", "token"
LAST_ENROLMENT, TERMS = "last_enrolment", "terms"  # shared entries: the last answer with a prior, and the last terms


@dataclass
class ServerLink:
    """The connection to a server that all agents of a file share.

    ``terms`` are the last that were fetched. After a refusal of too many enrolments, no agent tries for a while.
    """

    transport: Transport
    clock: Clock = SYSTEM_CLOCK
    terms: wire.Terms | None = None
    _enrol_after: float = field(default=0.0, init=False)

    def build_client(self, store: LocalStore, agent: int) -> AgentClient:
        key = SigningKey(store.get_entry(KEY) or random_bytes())
        return AgentClient(self.transport, key, agent, self.clock)

    def fetch_terms(self, terms_id: str | None = None) -> wire.Terms:
        """Return the terms of an id; fetch them unless another agent has."""
        terms = self.terms
        if terms is None or terms_id is None or terms.terms_id != terms_id:
            terms = self.terms = fetch_terms(self.transport)
        return terms

    def introduce(self, file: StoreFile) -> wire.EnrolmentAnswer:
        """Return terms and prior before enrolment; only the first agent of a file needs the server."""
        shared = LocalStore(file, SHARED)
        stored, last = shared.get_entry(TERMS), shared.get_entry(LAST_ENROLMENT)
        if self.terms is None and stored is not None:
            self.terms = msgspec.json.decode(stored, type=wire.Terms)
        terms = self.terms or self.fetch_terms()
        if (content := msgspec.json.encode(terms)) != stored:
            with shared.transaction():
                shared.put_entry(TERMS, content)
        answer = wire.EnrolmentAnswer(protocol=wire.PROTOCOLS[-1], agent=0, terms=terms)
        latest = answer if last is None else msgspec.json.decode(last, type=wire.EnrolmentAnswer)
        is_current = latest.terms.terms_id == terms.terms_id
        return msgspec.structs.replace(answer, prior=latest.prior) if is_current else answer

    def enrol(
        self, store: LocalStore, *, credential: wire.Credential | None = None, new_key: bool = False
    ) -> wire.EnrolmentAnswer:
        """Enrol an agent with its credential or a token, with a new key if the old one was revoked.

        Only an agent that has never enrolled takes a shared token. One that was revoked or forgotten needs a token of
        its own, or it would undo the operator's decision. If the reply is lost, the same key and token get the same
        number. A refused token is dropped.
        """
        wait = self._enrol_after - self.clock.elapsed()
        if wait > 0:
            raise Refused(429, "too-many-requests", f"too many enrolments: retry in {wait:.2f} s", retry_after=wait)
        name = NEXT_KEY if new_key else KEY
        if credential is not None:
            try:
                return self._send(store, name, credential)
            except Refused as refusal:
                if refusal.reason != "enrolment":
                    raise
        return self._send(store, name, None)

    def _send(self, store: LocalStore, key_name: str, credential: wire.Credential | None) -> wire.EnrolmentAnswer:
        key, token = _prepare(store, key_name)
        if token is None and credential is None:
            raise Refused(403, "enrolment", NO_TOKEN)
        try:
            enrolment = enrol_agent(self.transport, token, key, credential=credential, clock=self.clock)
        except Refused as refusal:
            if refusal.reason == "too-many-requests":
                self._enrol_after = self.clock.elapsed() + (refusal.retry_after or 1.0)
            if refusal.reason == "enrolment":
                with store.transaction():
                    store.put_entry(TOKEN, None)
            raise
        with store.transaction():
            store.put_entry(KEY, bytes(key))
            store.put_entry(ENROLMENT, msgspec.json.encode(enrolment))
            if not isinstance(enrolment.prior, msgspec.UnsetType):
                shared = msgspec.structs.replace(enrolment, agent=0, credential=None)
                LocalStore(store.file, SHARED).put_entry(LAST_ENROLMENT, msgspec.json.encode(shared))
            if key_name == NEXT_KEY:
                store.begin_ledger()
            store.put_entry(NEXT_KEY, None)
            if credential is None or credential.agent != enrolment.agent:  # the credential did not do
                store.put_entry(TOKEN, None)
        store.file.sync_to_disk()
        return enrolment


def _prepare(store: LocalStore, key_name: str) -> tuple[SigningKey, str | None]:
    """Save and return the key to enrol, and the agent's own token or, the first time, a shared one."""
    with store.transaction():
        key = SigningKey(store.get_entry(key_name) or random_bytes())
        store.put_entry(key_name, bytes(key))
        own = store.get_entry(TOKEN)
        is_new = store.get_entry(ENROLMENT) is None
        token = own.decode() if own is not None else store.file.take_token() if is_new else None
        if token is not None:
            store.put_entry(TOKEN, token.encode())
    return key, token
