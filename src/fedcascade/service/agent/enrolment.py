"""Enrolment of agents. Keys and tokens are saved before they are sent, so a crash cannot make an agent use one twice.

The server's prior is saved for the agent that enrolled, and for agents of the same store that have not enrolled yet.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from nacl.signing import SigningKey
from nacl.utils import random as random_bytes

from fedcascade.checks import require
from fedcascade.service.agent.client import AgentClient, OperatorClient, enrol_agent, fetch_terms
from fedcascade.service.agent.database import AgentDatabase
from fedcascade.service.agent.entries import ENROLMENT, KEY, NEW_LEDGER, NEXT_KEY, TOKEN
from fedcascade.service.agent.ledger import SavedState
from fedcascade.service.agent.memory import LocalMemory
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused

NO_TOKEN = "it has no enrolment token: ask the operator for an enrolment token of its own"
EMPTY_STOCK = (
    "the stock of enrolment tokens is empty: add_tokens(...), or open the pool with an enrolment key as tokens"
)
TERMS_SECONDS = 60.0  # fetched terms are checked again after this time
MINTED = 20  # tokens that an enrolment key creates at once
LAST_ENROLMENT, TERMS = "last_enrolment", "terms"  # shared entries: the last answer with a prior, and the last terms
TokenSource = str | Iterable[str] | Callable[[], str | Iterable[str]]  # an enrolment key, tokens, or what makes them


@dataclass
class ServerLink:
    """The connection to a server that all agents of a store share.

    ``terms`` are the last that were fetched. ``features`` names the features of the caller's items, if it does.
    ``mint`` makes tokens when the stock is empty. ``check`` raises ValueError for terms that agents cannot follow: they
    are never saved. After a refusal of too many enrolments, no agent tries for a while.
    """

    transport: Transport
    clock: Clock = SYSTEM_CLOCK
    features: str | None = None
    mint: Callable[[], str | Iterable[str]] | None = None
    check: Callable[[wire.Terms], object] = lambda _: None
    terms: wire.Terms | None = None
    _fetched: float = field(default=-TERMS_SECONDS, init=False)
    _enrol_after: float = field(default=0.0, init=False)
    _minting: threading.Lock = field(default_factory=threading.Lock, init=False)

    def use_tokens(self, source: TokenSource, database: AgentDatabase) -> None:
        """Add tokens to the stock, or keep what makes them: a function, or the text of an enrolment key."""
        if callable(source):
            self.mint = source
        elif isinstance(source, str):
            self.mint = lambda: OperatorClient(self.transport, source).create_tokens(MINTED)
        else:
            database.add_tokens(source)

    def build_client(self, memory: LocalMemory) -> AgentClient:
        key = SigningKey(memory.get(KEY) or random_bytes())
        return AgentClient(self.transport, key, memory.state.enrolment.agent, self.clock)

    def fetch_terms(self, terms_id: str | None = None) -> wire.Terms:
        """Return the terms of an id; fetch them unless another agent has."""
        terms = self.terms
        if terms is None or terms_id is None or terms.terms_id != terms_id:
            terms = fetch_terms(self.transport)
            self.check(terms)
            self.terms, self._fetched = terms, self.clock.elapsed()
        return terms

    def check_terms(self, known: wire.EnrolmentAnswer) -> wire.Terms:
        """Return the server's terms; refuse other features than the caller's, or than an agent has enrolled under."""
        is_fresh = self.clock.elapsed() < self._fetched + TERMS_SECONDS
        terms = self.terms if is_fresh and self.terms is not None else self.fetch_terms()
        require_features(terms, self.features, known.terms if known.agent else None)
        return terms

    def introduce(self, database: AgentDatabase) -> wire.EnrolmentAnswer:
        """Return terms and prior before enrolment; only the first agent of a store needs the server."""
        stored, last = database.get_shared(TERMS), database.get_shared(LAST_ENROLMENT)
        if self.terms is None and stored is not None:
            self.terms = msgspec.json.decode(stored, type=wire.Terms)
        try:
            terms = self.terms or self.fetch_terms()
        except ConnectionError as error:
            raise ConnectionError(f"the first agent of a new store needs the server's terms: {error}") from None
        require_features(terms, self.features)
        if (content := msgspec.json.encode(terms)) != stored:
            database.put_shared(TERMS, content)
        answer = wire.EnrolmentAnswer(protocol=wire.PROTOCOLS[-1], agent=0, terms=terms)
        latest = answer if last is None else msgspec.json.decode(last, type=wire.EnrolmentAnswer)
        is_current = latest.terms.terms_id == terms.terms_id
        return msgspec.structs.replace(answer, prior=latest.prior) if is_current else answer

    def enrol(
        self, memory: LocalMemory, *, credential: wire.Credential | None = None, new_key: bool = False
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
                return self._send(memory, name, credential)
            except Refused as refusal:
                if refusal.reason != "enrolment":
                    raise
        return self._send(memory, name, None)

    def _send(self, memory: LocalMemory, key_name: str, credential: wire.Credential | None) -> wire.EnrolmentAnswer:
        memory.accept(self.check_terms(memory.state.enrolment))
        key, token = self._prepare(memory, key_name, can_mint=credential is None)

        def drop(state: SavedState) -> tuple[SavedState, None]:
            if memory.get(TOKEN) == (token or "").encode():  # else the caller has given another one meanwhile
                memory.puts[TOKEN] = None
            return state, None

        try:
            enrolment = enrol_agent(self.transport, token, key, credential=credential, clock=self.clock)
        except Refused as refusal:
            if refusal.reason == "too-many-requests":
                self._enrol_after = self.clock.elapsed() + (refusal.retry_after or 1.0)
            if refusal.reason == "enrolment" and token is not None:
                memory.update(drop)
            raise
        memory.accept(enrolment.terms)

        entries: dict[str, bytes | None] = {KEY: bytes(key), NEXT_KEY: None, ENROLMENT: msgspec.json.encode(enrolment)}
        if key_name == NEXT_KEY:
            entries |= NEW_LEDGER
        if credential is None or credential.agent != enrolment.agent:  # the credential did not do
            entries[TOKEN] = None
        memory.put(entries)
        if not isinstance(enrolment.prior, msgspec.UnsetType):
            shared = msgspec.structs.replace(enrolment, agent=0, credential=None)
            memory.database.put_shared(LAST_ENROLMENT, msgspec.json.encode(shared))
        memory.database.sync_to_disk()
        return enrolment

    def _prepare(self, memory: LocalMemory, key_name: str, *, can_mint: bool) -> tuple[SigningKey, str | None]:
        """Save and return the key to enrol, and the agent's own token or, the first time, a shared or a new one."""

        def prepare(state: SavedState) -> tuple[SavedState, tuple[SigningKey, str | None]]:
            key = SigningKey(memory.get(key_name) or random_bytes())
            memory.puts[key_name] = bytes(key)
            own = memory.get(TOKEN)
            token = own.decode() if own is not None else None if state.enrolment.agent else take_token(memory)
            if token is not None:
                memory.puts[TOKEN] = token.encode()
            return state, (key, token)

        key, token = memory.update(prepare)
        if token is None and can_mint:
            is_new = not memory.state.enrolment.agent
            if is_new and self.mint is not None:
                with self._minting:  # one thread makes tokens for those that wait
                    key, token = memory.update(prepare)
                    if token is None:
                        self._fill_stock(memory.database)
                        key, token = memory.update(prepare)
            if token is None:
                raise Refused(403, "enrolment", EMPTY_STOCK if is_new and memory.name else NO_TOKEN)
        return key, token

    def _fill_stock(self, database: AgentDatabase) -> None:
        """Make tokens; name the failure of the function or of the enrolment key."""
        assert self.mint is not None
        try:
            made = self.mint()
        except Exception as error:  # of the caller's function, or a refused key
            error.args = (f"no enrolment token could be made: {str(error) or type(error).__name__}",)
            raise
        database.add_tokens([made] if isinstance(made, str) else made)


def take_token(memory: LocalMemory) -> str | None:
    """Take a token from the stock, in the transaction under way; its row stays, so that it is not added again."""
    free = f"SELECT value FROM pool_token WHERE is_used = 0 ORDER BY value LIMIT 1{memory.database.skip_locked}"
    rows = memory.run(f"UPDATE pool_token SET is_used = 1 WHERE value = ({free}) RETURNING value")
    return str(rows[0][0]) if rows else None


def require_features(terms: wire.Terms, wanted: str | None, known: wire.Terms | None = None) -> None:
    """Refuse a server of other features than the caller's, or than those that an agent has learned from."""
    d, served = terms.dimension, terms.features or ""
    is_same = wanted in (None, served, served.partition(":")[0])
    require(is_same, f"the server has features '{served}', the caller '{wanted}': connect to a server of the caller's")
    if known is not None:
        learned, advice = known.features or "", "use the server that it enrolled at, or another store"
        require(d == known.dimension, f"the server has dimension {d}, this agent {known.dimension}: {advice}")
        require(served == learned, f"the server has features '{served}', this agent '{learned}': {advice}")
