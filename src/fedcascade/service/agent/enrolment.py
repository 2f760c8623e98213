"""Enrol agents, also many from one address: keys and tokens are saved before they are sent, so none is used twice.

What the server tells a newcomer of anybody is kept twice: for the agent that enrolled, and for those of the same file
that have not enrolled yet. An agent goes on with it until its first upload is answered.
"""

import logging
from dataclasses import dataclass, field

import msgspec
from nacl.signing import SigningKey
from nacl.utils import random as random_bytes

from fedcascade.service.agent.client import AgentClient, enrol_agent, fetch_terms
from fedcascade.service.agent.ledger import check_answer
from fedcascade.service.agent.local_store import LocalStore, RoundEstimate
from fedcascade.service.agent.store_file import EVERYBODY
from fedcascade.service.agent.terms import build_policy
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused

NO_TOKEN = "the server does not know this agent, which needs an enrolment token: ask the operator for one"
KEY, NEXT_KEY, TOKEN, WELCOME = "key", "next_key", "token", "welcome"
LAST_WELCOME = "last_welcome"  # a setting of everybody: the last welcome with a download, for those who have none yet
log = logging.getLogger("fedcascade.agent")


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
            keep_download(store, welcome)
            welcome = _share_download(store, welcome)
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


def begin_with_shared_download(store: LocalStore, terms: wire.Terms) -> None:
    """Let an agent that has not enrolled begin with what the server told another one of its file, on the same terms."""
    shared = LocalStore(store.file, EVERYBODY).get_setting(LAST_WELCOME)
    if shared is not None:
        welcome = msgspec.json.decode(shared, type=wire.Welcome)
        if welcome.terms.terms_id == terms.terms_id:
            with store.transaction():
                keep_download(store, welcome)


def keep_download(store: LocalStore, welcome: wire.Welcome) -> None:
    """Let an agent go on with what the server knows of anybody, unless an upload of it was answered before.

    The caller holds a transaction. What nobody can decide with is left out: an agent can do without.
    """
    message, dimension = welcome.download, welcome.terms.dimension
    if isinstance(message, msgspec.UnsetType):
        return
    try:
        download = check_answer(message, welcome.agent, dimension, build_policy(welcome.terms).lambda_)
        is_answered = store.load_statistics("download", dimension).count > 0
    except ValueError as error:
        log.info("agent %d: what the server told a newcomer is of no use: %s", welcome.agent, error)
        return
    if not is_answered:
        arrivals, uploads, _ = store.load_counters()
        store.save_statistics("download", download.statistics)
        store.save_counters(arrivals, uploads, RoundEstimate(download.rounds, download.agents))


def _share_download(store: LocalStore, welcome: wire.Welcome) -> wire.Welcome:
    """Keep a welcome that has a download for others of the file; the same without it, which older versions can read."""
    if isinstance(welcome.download, msgspec.UnsetType):
        return welcome
    shared = msgspec.structs.replace(welcome, agent=0, credential=None)
    LocalStore(store.file, EVERYBODY).set_setting(LAST_WELCOME, msgspec.json.encode(shared))
    return msgspec.structs.replace(welcome, download=msgspec.UNSET)


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
