"""Enrol agents, also many from one address: keys and tokens are saved before they are sent, so none is used twice."""

from dataclasses import dataclass, field

import msgspec
from nacl.signing import SigningKey
from nacl.utils import random as random_bytes

from fedcascade.service.agent.client import AgentClient, enrol_agent, fetch_terms
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused

NO_TOKEN = "the server does not know this agent, which needs an enrolment token: ask the operator for one"
KEY, NEXT_KEY, TOKEN, WELCOME = "key", "next_key", "token", "welcome"


@dataclass
class ServerLink:
    """The way to a server that all agents of a file share, and what they know of it together.

    ``terms`` are those that were fetched last. While the server finds that too many enrol from here, nobody tries.
    """

    transport: Transport
    protocol: int = wire.PROTOCOLS[-1]
    clock: Clock = SYSTEM_CLOCK
    terms: wire.Terms | None = None
    _enrol_after: float = field(default=0.0, init=False)

    def build_client(self, store: LocalStore, agent: int) -> AgentClient:
        key = SigningKey(store.get_setting(KEY) or random_bytes())
        return AgentClient(self.transport, key, agent, self.protocol, self.clock)

    def fetch_terms(self, terms_id: str | None = None) -> wire.Terms:
        """The terms of that id, from the server unless another agent has fetched them already."""
        terms = self.terms
        if terms is None or terms_id is None or terms.terms_id != terms_id:
            terms = self.terms = fetch_terms(self.transport)
        return terms

    def enrol(
        self, store: LocalStore, *, credential: wire.Credential | None = None, new_key: bool = False
    ) -> wire.Welcome:
        """Enrol an agent with its credential, or with a token; with a new key where the old one is revoked.

        Only who has never enrolled takes a token from the stock. An agent that was revoked or forgotten needs one that
        somebody gave to it: a stock would bring back whom the operator has sent away. Key and token are saved first: if
        the reply is lost, the same key and token get the same number. A token that the server does not take is dropped.
        """
        self._require_turn()
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
            welcome = enrol_agent(self.transport, token, key, self.protocol, credential=credential, clock=self.clock)
        except Refused as refusal:
            if refusal.reason == "too-many-requests":
                self._enrol_after = self.clock.elapsed() + (refusal.retry_after or 1.0)
            if refusal.reason == "enrolment":
                with store.transaction():
                    store.delete_setting(TOKEN)
            raise
        with store.transaction():
            store.set_setting(KEY, bytes(key))
            store.set_setting(WELCOME, msgspec.json.encode(welcome))
            if key_name == NEXT_KEY:
                store.begin_ledger()
            store.delete_setting(NEXT_KEY)
            if credential is None or credential.agent != welcome.agent:  # else the token was not needed
                store.delete_setting(TOKEN)
        store.file.sync_to_disk()
        return welcome

    def _require_turn(self) -> None:
        wait = self._enrol_after - self.clock.elapsed()
        if wait > 0:
            raise Refused(429, "too-many-requests", f"too many enrol: try again in {wait:.2f} s", retry_after=wait)


def _prepare(store: LocalStore, key_name: str) -> tuple[SigningKey, str | None]:
    """The key to enrol and a token for it, both saved: a token that this agent was given, else one of the stock."""
    with store.transaction():
        key = SigningKey(store.get_setting(key_name) or random_bytes())
        store.set_setting(key_name, bytes(key))
        own = store.get_setting(TOKEN)
        is_new = store.get_setting(WELCOME) is None
        token = own.decode() if own is not None else store.file.take_token() if is_new else None
        if token is not None:
            store.set_setting(TOKEN, token.encode())
    return key, token
