"""The thread that speaks to the server: it sends upload after upload, and after an accident both sides compare."""

import logging
import threading

import msgspec

from fedcascade.federation.messages import Upload
from fedcascade.service.agent.client import AgentClient, BadReply, compute_pause, enrol_agent, fetch_terms
from fedcascade.service.agent.ledger import check_answer
from fedcascade.service.agent.saved_agent import SavedAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")


class ExchangeLoop:
    """Sends the uploads of an agent, one at a time, oldest first, in a thread of its own. Whatever happens, it goes on.

    ``trouble`` says why it waits or what went wrong last, None if nothing did.
    """

    def __init__(self, saved: SavedAgent, client: AgentClient, token: str | None, pauses: tuple[float, float]) -> None:
        self.trouble: str | None = None
        self._is_idle = False
        self._saved, self._client, self._token, self._pauses = saved, client, token, pauses
        self._thread = threading.Thread(target=self._run, name="fedcascade-agent", daemon=True)
        self._thread.start()

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is left to send or to compare; False after ``timeout`` seconds."""
        with self._saved.changed:
            self._saved.changed.wait_for(lambda: self._is_done() or self._saved.is_closed, timeout)
            return self._is_done()

    def stop(self) -> None:
        """End the thread, after the request that is under way."""
        with self._saved.changed:
            self._saved.is_closed = True
            self._saved.changed.notify_all()
        self._thread.join()

    def _has_work(self) -> bool:
        return bool(self._saved.ledger.outbox) or not self._saved.ledger.is_settled

    def _is_done(self) -> bool:
        return self._is_idle and not self._has_work()

    def _run(self) -> None:
        failures = 0
        while self._wait_for_work():
            try:
                if self._saved.ledger.outbox:
                    self.trouble = self._send(self._saved.ledger.outbox[0])
                else:
                    note = self._saved.settle(self._client.fetch_standing())
                    if note is not None:
                        log.warning("agent %d: %s", self._client.agent, note)
                    self.trouble = note if note is not None or failures else self.trouble
                failures = 0
            except Exception as error:
                failures += 1
                self.trouble = self._recover(error)
                pause = compute_pause(failures, self._pauses, getattr(error, "retry_after", None))
                with self._saved.changed:
                    self._saved.changed.wait_for(lambda: self._saved.is_closed, pause)

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; False if the thread is to end instead."""
        changed = self._saved.changed
        with changed:
            self._is_idle = not self._has_work()
            changed.notify_all()
            changed.wait_for(lambda: self._has_work() or self._saved.is_closed)
            self._is_idle = False
            return not self._saved.is_closed

    def _send(self, upload: Upload) -> str | None:
        """Send an upload, and learn from its answer; returns what was wrong with that, if anything."""
        saved = self._saved
        with saved.changed:
            saved.store.sync_to_disk()
        message = wire.UploadMessage.from_upload(upload, self._client.protocol, saved.ledger.receipt)
        try:
            answer = self._client.exchange(message)
        except BadReply as error:
            if self._client.fetch_standing().last_sequence < upload.sequence:
                raise
            saved.skip_answer(upload, None)
            return f"upload {upload.sequence} was counted, but {error}"
        try:
            download = check_answer(answer, self._client.agent, saved.dimension, saved.agent.policy.lambda_)
        except ValueError as error:
            saved.skip_answer(upload, answer)
            return f"the answer to upload {upload.sequence} is of no use: {error}"
        saved.receive(upload, download, answer)
        if answer.terms_id != saved.welcome.terms.terms_id:
            self._refresh_terms()
        return None

    def _recover(self, error: Exception) -> str:
        """Mend what can be mended after a failure, before the next try; returns what to say of it."""
        agent, said = self._client.agent, str(error) or type(error).__name__
        if isinstance(error, Refused):
            try:
                self._answer_refusal(error)
            except Exception as second:  # whatever it is, the thread goes on
                said = f"{said}; {second}"
        if isinstance(error, OSError | ValueError):
            log.info("agent %d waits: %s", agent, said)
        else:
            log.error("agent %d waits", agent, exc_info=error)
        return said

    def _answer_refusal(self, refusal: Refused) -> None:
        """Do what a refusal asks for; most ask for patience alone."""
        outbox = self._saved.ledger.outbox
        if refusal.reason == "unrecognised":
            self._enrol_again()
        elif refusal.reason == "conflict":  # a copy of this agent's file has used the number, so it was not counted
            self._saved.renumber(outbox[0], self._client.fetch_standing())
        elif refusal.reason == "superseded":
            self._resolve_superseded(outbox[0])
        elif refusal.reason == "too-few":
            self._refresh_terms()
            self._saved.withdraw(outbox[0], is_lost=False)
        elif refusal.reason in ("impossible", "too-heavy"):
            log.warning("agent %d: upload %d is lost: %s", self._client.agent, outbox[0].sequence, refusal)
            self._saved.withdraw(outbox[0], is_lost=True)

    def _enrol_again(self) -> None:
        """Enrol with the same key: the server was restored from a backup and has lost this agent."""
        client, credential = self._client, self._saved.welcome.credential
        welcome = enrol_agent(
            client.transport, self._token, client.key, client.protocol, credential=credential, clock=client.clock
        )
        log.warning("agent %d was lost by its server, and is agent %d from now on", client.agent, welcome.agent)
        self._saved.follow(welcome)
        client.agent = welcome.agent

    def _resolve_superseded(self, upload: Upload) -> None:
        """Decide by the sums whether a folded upload is this one; it is given up where they leave that open."""
        standing, confirmed = self._client.fetch_standing(), self._saved.ledger.confirmed
        excess = 1 if confirmed is None else standing.rounds - confirmed.rounds - upload.statistics.rounds
        if excess < 0:
            self._saved.renumber(upload, standing)
        elif excess == 0:
            self._saved.skip_answer(upload, None)
        else:
            self._saved.withdraw(upload, is_lost=True)

    def _refresh_terms(self) -> None:
        """Follow the terms that the server has now: another policy or constants, with the agent's own statistics."""
        terms = fetch_terms(self._client.transport)
        self._saved.follow(msgspec.structs.replace(self._saved.welcome, terms=terms))
