"""Enrol agents, also many from one address: keys and tokens are saved before they are sent, so none is used twice.

The server's prior for newcomers is kept twice: for the agent that enrolled, and for those of the same file that have
not enrolled yet. An agent goes on with it until its first upload is answered.
"""

from dataclasses import dataclass, field

import msgspec
from nacl.signing import SigningKey
from nacl.utils import random as random_bytes

from fedcascade.service.agent.client import AgentClient, enrol_agent, fetch_terms
from fedcascade.service.agent.local_store import WELCOME, LocalStore
from fedcascade.service.agent.store_file import SHARED, StoreFile
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused

NO_TOKEN = "the server does not know this agent, which needs an enrolment token: ask the operator for one"
KEY, NEXT_KEY, TOKEN = "key", "next_key", "token"
LAST_WELCOME, TERMS = "last_welcome", "terms"  # shared entries: the last words with a prior, and the last terms


@dataclass
class ServerLink:
    """The way to a server that all agents of a file share, and what they know of it together.

    ``terms`` are those that were fetched last. While the server finds that too many enrol from here, none tries.
    """

    transport: Transport
    clock: Clock = SYSTEM_CLOCK
    terms: wire.Terms | None = None
    _enrol_after: float = field(default=0.0, init=False)

    def build_client(self, store: LocalStore, agent: int) -> AgentClient:
        key = SigningKey(store.get_entry(KEY) or random_bytes())
        return AgentClient(self.transport, key, agent, self.clock)

    def fetch_terms(self, terms_id: str | None = None) -> wire.Terms:
        """The terms of that id, from the server unless another agent has fetched them already."""
        terms = self.terms
        if terms is None or terms_id is None or terms.terms_id != terms_id:
            terms = self.terms = fetch_terms(self.transport)
        return terms

    def introduce(self, file: StoreFile) -> wire.Welcome:
        """Return the words for an agent that has not enrolled: terms, and the prior that another one got on them.

        Only the first agent of a file waits for the server.
        """
        shared = LocalStore(file, SHARED)
        stored, last = shared.get_entry(TERMS), shared.get_entry(LAST_WELCOME)
        if self.terms is None and stored is not None:
            self.terms = msgspec.json.decode(stored, type=wire.Terms)
        terms = self.terms or self.fetch_terms()
        if (content := msgspec.json.encode(terms)) != stored:
            with shared.transaction():
                shared.put_entry(TERMS, content)
        welcome = wire.Welcome(protocol=wire.PROTOCOLS[-1], agent=0, terms=terms)
        told = None if last is None else msgspec.json.decode(last, type=wire.Welcome)
        if told is None or told.terms.terms_id != terms.terms_id:
            return welcome
        return msgspec.structs.replace(welcome, download=told.download)

    def enrol(
        self, store: LocalStore, *, credential: wire.Credential | None = None, new_key: bool = False
    ) -> wire.Welcome:
        """Enrol an agent with its credential, or with a token; with a new key where the old one is revoked.

        Only an agent that has never enrolled takes a token from the stock. One that was revoked or forgotten needs a
        token of its own: a stock would bring back agents that the operator has sent away. Key and token are saved
        first: if the reply is lost, the same key and token get the same number. A refused token is dropped.
        """
        wait = self._enrol_after - self.clock.elapsed()
        if wait > 0:
            raise Refused(429, "too-many-requests", f"too many enrol: try again in {wait:.2f} s", retry_after=wait)
        name = NEXT_KEY if new_key else KEY
        if credential is not None:
            try:
                return self._send(store, name, credential)
            except Refused as refusal:
                if refusal.reason != "enrolment":
                    raise
        return self._send(store, name, None)

    def _send(self, store: LocalStore, key_name: str, credential: wire.Credential | None) -> wire.Welcome:
        key, token = _prepare(store, key_name)
        if token is None and credential is None:
            raise Refused(403, "enrolment", NO_TOKEN)
        try:
            welcome = enrol_agent(self.transport, token, key, credential=credential, clock=self.clock)
        except Refused as refusal:
            if refusal.reason == "too-many-requests":
                self._enrol_after = self.clock.elapsed() + (refusal.retry_after or 1.0)
            if refusal.reason == "enrolment":
                with store.transaction():
                    store.put_entry(TOKEN, None)
            raise
        with store.transaction():
            store.put_entry(KEY, bytes(key))
            store.put_entry(WELCOME, msgspec.json.encode(welcome))
            if not isinstance(welcome.download, msgspec.UnsetType):
                shared = msgspec.structs.replace(welcome, agent=0, credential=None)
                LocalStore(store.file, SHARED).put_entry(LAST_WELCOME, msgspec.json.encode(shared))
            if key_name == NEXT_KEY:
                store.begin_ledger()
            store.put_entry(NEXT_KEY, None)
            if credential is None or credential.agent != welcome.agent:  # else the token was not needed
                store.put_entry(TOKEN, None)
        store.file.sync_to_disk()
        return welcome


def _prepare(store: LocalStore, key_name: str) -> tuple[SigningKey, str | None]:
    """The key to enrol and a token for it, both saved: a token that this agent was given, else one of the stock."""
    with store.transaction():
        key = SigningKey(store.get_entry(key_name) or random_bytes())
        store.put_entry(key_name, bytes(key))
        own = store.get_entry(TOKEN)
        is_new = store.get_entry(WELCOME) is None
        token = own.decode() if own is not None else store.file.take_token() if is_new else None
        if token is not None:
            store.put_entry(TOKEN, token.encode())
    return key, token
