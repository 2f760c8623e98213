"""What one agent says to the server, step by step: it sends upload after upload, and after an accident both compare."""

import logging
import time

import msgspec

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.agent.client import BadReply, compute_pause
from fedcascade.service.agent.enrolment import ServerLink
from fedcascade.service.agent.ledger import check_answer
from fedcascade.service.agent.saved_agent import SavedAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")
UNREACHABLE = (502, 503, 504)  # what proxies say, and a server whose store is gone


class Exchanger:
    """Speaks for one agent, one request after the other, the oldest upload first.

    ``trouble`` says why it waits or what went wrong last, None if nothing did. ``due`` is when it may speak again by
    its own patience, ``not_before`` by what the server asked for, both in seconds of ``time.monotonic``.
    ``is_offline`` says whether no server could be reached the last time.
    """

    def __init__(self, saved: SavedAgent, link: ServerLink, pauses: tuple[float, float]) -> None:
        self.trouble: str | None = None
        self.due = self.not_before = 0.0
        self.is_offline = False
        self._saved, self._link, self._pauses, self._failures = saved, link, pauses, 0
        self.client = link.build_client(saved.store, saved.id)

    def has_work(self) -> bool:
        ledger = self._saved.ledger
        return not self._saved.has_left and (bool(ledger.outbox) or not ledger.is_settled)

    def step(self) -> None:
        """Do the next thing there is to do; whatever happens, say it in ``trouble`` and when to go on in ``due``."""
        try:
            self.trouble = self._speak()
            self._failures, self.is_offline = 0, False
        except Exception as error:
            self._failures += 1
            self.is_offline = isinstance(error, ConnectionError) or getattr(error, "status", 0) in UNREACHABLE
            self.trouble = self._recover(error)
            retry_after, now = getattr(error, "retry_after", None), time.monotonic()
            self.not_before = now + (retry_after or 0.0)
            self.due = now + compute_pause(self._failures, self._pauses, retry_after)

    def _speak(self) -> str | None:
        """Enrol, send an upload or compare sums; returns what there is to say of it."""
        saved = self._saved
        if not saved.id:
            self._follow(self._link.enrol(saved.store))
        if saved.ledger.outbox:
            return self._send(saved.ledger.outbox[0])
        note = saved.settle(self.client.fetch_standing())
        if note is not None:
            log.warning("agent %d: %s", saved.id, note)
        return note if note is not None or self._failures else self.trouble

    def _send(self, upload: Upload) -> str | None:
        """Send an upload, and learn from its answer; returns what was wrong with that, if anything."""
        saved = self._saved
        saved.store.file.sync_to_disk()
        message = wire.UploadMessage.from_upload(upload, self.client.protocol, saved.ledger.receipt)
        try:
            answer = self.client.exchange(message)
        except BadReply as error:
            if self.client.fetch_standing().last_sequence < upload.sequence:
                raise
            saved.skip_answer(upload, None)
            return f"upload {upload.sequence} was counted, but {error}"
        try:
            download = check_answer(answer, saved.id, saved.dimension, saved.agent.policy.lambda_)
        except ValueError as error:
            saved.skip_answer(upload, answer)
            return f"the answer to upload {upload.sequence} is of no use: {error}"
        saved.receive(upload, download, answer)
        if answer.terms_id != saved.welcome.terms.terms_id:
            self._refresh_terms(answer.terms_id)
        return None

    def _recover(self, error: Exception) -> str:
        """Mend what can be mended after a failure, before the next try; returns what to say of it."""
        agent, said = self._saved.id, str(error) or type(error).__name__
        if isinstance(error, Refused):
            try:
                self._answer_refusal(error)
            except Exception as second:  # whatever it is, the next step comes
                said = f"{said}; {second}"
        if isinstance(error, OSError | ValueError):
            log.info("agent %d waits: %s", agent, said)
        else:
            log.error("agent %d waits", agent, exc_info=error)
        return said

    def _answer_refusal(self, refusal: Refused) -> None:
        """Do what a refusal asks for; most ask for patience alone."""
        saved, outbox = self._saved, self._saved.ledger.outbox
        if refusal.reason == "unrecognised":
            self._enrol_again()
        elif refusal.reason == "revoked":
            self._enrol_anew()
        elif refusal.reason == "conflict":  # a copy of this agent's file has used the number, so it was not counted
            saved.renumber(outbox[0], self.client.fetch_standing())
        elif refusal.reason == "superseded":
            self._resolve_superseded(outbox[0])
        elif refusal.reason == "too-few":
            self._refresh_terms()
            saved.withdraw(outbox[0], is_lost=False)
        elif refusal.reason in ("impossible", "too-heavy"):
            log.warning("agent %d: upload %d is lost: %s", saved.id, outbox[0].sequence, refusal)
            saved.withdraw(outbox[0], is_lost=True)

    def _enrol_again(self) -> None:
        """Enrol with the same key: the server has forgotten this agent, or was restored and has lost it."""
        before, welcome = self._saved.id, self._link.enrol(self._saved.store, credential=self._saved.welcome.credential)
        log.warning("agent %d was lost by its server, and is agent %d from now on", before, welcome.agent)
        self._follow(welcome)

    def _enrol_anew(self) -> None:
        """Enrol as another agent, with a new key: this one was revoked, and what it taught stays with the server."""
        before, welcome = self._saved.id, self._link.enrol(self._saved.store, new_key=True)
        log.warning("agent %d was revoked, and is agent %d from now on", before, welcome.agent)
        self._saved.load_ledger()
        self._follow(welcome)

    def _follow(self, welcome: wire.Welcome) -> None:
        self._saved.follow(welcome)
        self.client = self._link.build_client(self._saved.store, welcome.agent)

    def _resolve_superseded(self, upload: Upload) -> None:
        """Decide by the sums whether a folded upload is this one; it is given up where they leave that open."""
        standing, confirmed = self.client.fetch_standing(), self._saved.ledger.confirmed
        if upload.cause is Cause.CHANGE:
            excess = 0 if standing.last_change >= upload.sequence else -1
        else:
            excess = 1 if confirmed is None else standing.rounds - confirmed.rounds - upload.statistics.rounds
        if excess < 0:
            self._saved.renumber(upload, standing)
        elif excess == 0:
            self._saved.skip_answer(upload, None)
        else:
            self._saved.withdraw(upload, is_lost=True)

    def _refresh_terms(self, terms_id: str | None = None) -> None:
        """Follow the terms that the server has now: another policy or constants, with the agent's own statistics."""
        terms = self._link.fetch_terms(terms_id)
        self._saved.follow(msgspec.structs.replace(self._saved.welcome, terms=terms))
