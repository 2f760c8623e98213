"""The agent as a library: decisions never wait for the network, and nothing is lost if the process dies."""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.federation.agent import OPEN_LISTS, Agent, ShownList
from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.client import AgentClient, BadReply, compute_pause, enrol_agent, fetch_terms
from fedcascade.service.agent.ledger import Ledger, check_answer, check_standing
from fedcascade.service.agent.local_store import LocalStore, RoundEstimate
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")


FollowTerms = Callable[[wire.Terms], tuple[Policy, int]]


class RemoteAgent:
    """A ``federation.Agent`` with a memory on disk and a server far away. Made by ``connect``.

    A thread in the background sends uploads, one at a time, oldest first. ``trouble`` says why it waits or what went
    wrong last, None if nothing did. ``lost`` is how many rounds the server will never learn from.
    """

    def __init__(
        self,
        store: LocalStore,
        client: AgentClient,
        welcome: wire.Welcome,
        *,
        follow_terms: FollowTerms,
        token: str | None,
        oracle: Oracle | None,
        problem: ProblemSize | None,
        pauses: tuple[float, float],
    ) -> None:
        self.id = client.agent
        self.dimension = welcome.terms.dimension
        self.trouble: str | None = None
        self._store, self._client, self._welcome, self._token = store, client, welcome, token
        self._follow_terms, self._oracle, self._problem, self._pauses = follow_terms, oracle, problem, pauses
        self._changed = threading.Condition()
        self._closed = self._is_idle = False
        self._ledger = Ledger(store, self.id, self.dimension)
        policy, self.floor = follow_terms(welcome.terms)
        self._agent, self._round_estimate = self._load_agent(policy)
        self._thread = threading.Thread(target=self._run_exchanges, name="fedcascade-agent", daemon=True)
        self._thread.start()

    def recommend(
        self,
        items: ArrayLike,
        k: int = 4,
        *,
        categories: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        ties: NDArray[np.uint32] | None = None,
    ) -> ShownList:
        """Choose a list. Its ``impression`` is the number to give feedback for, and stays valid for long.

        Args:
            items: one row of features per item, each of length at most 1. They are rounded to the grid.
            k: how many items to show, unless ``connect`` was given an oracle, which knows.
            categories: a whole number per item, for the oracle ``PerCategory``.
            costs: a number per item, for the oracle ``Budget``.
            ties: a random word per item, by which equal scores are ordered; drawn if None.
        """
        offered = round_to_grid(items)
        words = np.frombuffer(random.randbytes(4 * len(offered)), np.uint32) if ties is None else ties
        with self._changed:
            self._require_open()
            self._agent.oracle = self._oracle or TopK(length=k)
            length, longest = self._agent.oracle.length, self._welcome.terms.longest_list
            require(length <= longest, f"a list of this server has at most {longest} items, got k = {length}")
            self._agent.set_problem_size(self._problem or self._estimate_problem_size(self._agent.oracle.length))
            shown = self._agent.recommend(offered, words, categories=categories, costs=costs)
            with self._store.transaction():
                self._store.add_open_list(shown, shown.impression - OPEN_LISTS)
                self._save_counters()
            return shown

    def feedback(
        self, impression: ShownList | int, clicked: int | None, *, round_: int | None = None, draw: float | None = None
    ) -> Upload | None:
        """Learn from a list. Returns the upload that will be sent, if this round triggers one.

        Args:
            impression: the list, or its number.
            clicked: the position that was clicked, counted from 0; None if nothing was.
            round_: t, where the caller knows it; extrapolated from the last download if None.
            draw: the round's uniform number; drawn if None.
        """
        with self._changed:
            self._require_open()
            number = impression.impression if isinstance(impression, ShownList) else impression
            estimate = replace(self._round_estimate, arrivals_since=self._round_estimate.arrivals_since + 1)
            upload = self._agent.observe(
                self._agent.get_open_list(number),
                clicked,
                round_=estimate.estimate_round(self._agent.arrivals) if round_ is None else round_,
                draw=random.random() if draw is None else draw,
            )
            self._round_estimate = estimate
            with self._store.transaction():
                self._store.delete_open_list(number)
                self._store.save_statistics("buffer", self._agent.buffer)
                self._save_counters()
                if upload is not None:
                    self._ledger.add(upload)
            if upload is not None:
                self._changed.notify_all()
            return upload

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every upload has been answered and counted; False after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_done() or self._closed, timeout)
            return self._is_done()

    @property
    def unsent(self) -> int:
        return len(self._ledger.outbox)

    @property
    def lost(self) -> int:
        return self._ledger.lost

    @property
    def buffered(self) -> int:
        """How many observations wait for an upload."""
        return self._agent.buffer.count

    @property
    def estimate(self) -> NDArray[np.float64]:
        """Theta, as this agent estimates it now."""
        return self._agent.decision.theta.copy()

    def leave(self) -> None:
        """Be forgotten: the server subtracts and erases what this agent sent, and the local store is emptied."""
        self._stop()
        self._client.leave()
        self._store.erase()
        self.close()

    def close(self) -> None:
        """Stop the background thread and close the local store; everything is on disk already."""
        self._stop()
        self._store.close()
        self._client.transport.close()

    def __enter__(self) -> "RemoteAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _require_open(self) -> None:
        require(not self._closed, "this agent is closed: connect again")

    def _load_agent(self, policy: Policy) -> tuple[Agent, RoundEstimate]:
        """Load the agent as it was when the last process ended, and what it then knew of the system's rounds."""
        oracle = self._oracle or TopK()
        problem = self._problem or ProblemSize(users=1, dimension=self.dimension, list_length=oracle.length, rounds=1)
        agent = Agent(id=self.id, policy=policy, problem=problem, oracle=oracle)
        arrivals, uploads, round_estimate = self._store.load_counters()
        agent.resume(
            arrivals=arrivals,
            uploads=uploads,
            buffer=self._store.load_statistics("buffer", self.dimension),
            unanswered=self._ledger.sum_outbox(),
            download=self._store.load_statistics("download", self.dimension),
            shown=self._store.load_open_lists(self.id, self.dimension),
        )
        return agent, round_estimate

    def _estimate_problem_size(self, list_length: int) -> ProblemSize:
        """The sizes of the problem, as far as this agent knows: nobody knows how many rounds there will be."""
        rounds, users = self._round_estimate.estimate_round(self._agent.arrivals), self._round_estimate.agents
        return ProblemSize(users=users, dimension=self.dimension, list_length=list_length, rounds=rounds)

    def _save_counters(self) -> None:
        self._store.save_counters(self._agent.arrivals, self._agent.uploads, self._round_estimate)

    def _run_exchanges(self) -> None:
        """Send upload after upload, and compare with the server where both disagree; whatever happens, go on."""
        failures = 0
        while True:
            with self._changed:
                self._is_idle = not self._has_work()
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_work() or self._closed)
                if self._closed:
                    return
                self._is_idle = False
            try:
                if self._ledger.outbox:
                    self.trouble = self._send_next()
                else:
                    note = self._settle()
                    self.trouble = note if note is not None or failures else self.trouble
                failures = 0
            except Exception as error:
                failures += 1
                self.trouble = self._recover(error)
                pause = compute_pause(failures, self._pauses, getattr(error, "retry_after", None))
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause)

    def _has_work(self) -> bool:
        return bool(self._ledger.outbox) or not self._ledger.is_settled

    def _is_done(self) -> bool:
        return self._is_idle and not self._has_work()

    def _send_next(self) -> str | None:
        """Send the oldest upload, and learn from its answer; returns what was wrong with that, if anything."""
        upload = self._ledger.outbox[0]
        with self._changed:
            self._store.sync_to_disk()
        message = wire.UploadMessage.from_upload(upload, self._client.protocol, self._ledger.receipt)
        try:
            answer = self._client.exchange(message)
        except BadReply as error:
            if self._client.fetch_standing().last_sequence < upload.sequence:
                raise
            self._skip_answer(upload, None)
            return f"upload {upload.sequence} was counted, but {error}"
        try:
            download = check_answer(answer, self.id, self.dimension, self._agent.policy.lambda_)
        except ValueError as error:
            self._skip_answer(upload, answer)
            return f"the answer to upload {upload.sequence} is of no use: {error}"
        self._receive(upload, download, answer)
        if answer.terms_id != self._welcome.terms.terms_id:
            self._refresh_terms()
        return None

    def _skip_answer(self, upload: Upload, answer: wire.AnswerMessage | None) -> None:
        """Go on with what was known before and with the upload itself: the server has it, and its answer is broken."""
        known, estimate = self._agent.download.statistics + upload.statistics, self._round_estimate
        download = Download(agent=self.id, statistics=known, rounds=estimate.rounds, agents=estimate.agents)
        self._receive(upload, download, answer)

    def _receive(self, upload: Upload, download: Download, answer: wire.AnswerMessage | None) -> None:
        """Decide with a download from now on, and keep it in the place of the upload."""
        with self._changed:
            self._agent.receive(download, unanswered=self._ledger.sum_outbox(skip=1))
            self._round_estimate = RoundEstimate(download.rounds, download.agents, 0)
            with self._store.transaction():
                self._ledger.confirm(upload, answer)
                self._store.save_statistics("download", download.statistics)
                self._save_counters()
            self._changed.notify_all()

    def _settle(self) -> str | None:
        """Ask what the server holds of this agent, and send again what it has lost; returns what happened."""
        standing = self._client.fetch_standing()
        held = check_standing(standing, self.dimension)
        with self._changed:
            if self._ledger.outbox:  # the user was faster: uploads first, so that both sides count the same
                return None
            with self._store.transaction():
                missing, note = self._ledger.settle(held)
                self._agent.uploads = max(self._agent.uploads, standing.last_sequence)
                self._welcome = msgspec.structs.replace(self._welcome, credential=standing.credential)
                self._store.set_setting("welcome", msgspec.json.encode(self._welcome))
                if missing is not None:
                    self._take_back(missing)
                self._save_counters()
            self._changed.notify_all()
        if note is not None:
            log.warning("agent %d: %s", self.id, note)
        return note

    def _recover(self, error: Exception) -> str:
        """Mend what can be mended after a failure, before the next try; returns what to say of it."""
        if isinstance(error, Refused):
            try:
                self._answer_refusal(error)
            except Exception as second:  # whatever it is, the thread goes on
                log.info("agent %d waits: %s; %s", self.id, error, second)
                return f"{error}; {second}"
        if isinstance(error, OSError | ValueError):
            log.info("agent %d waits: %s", self.id, error)
        else:
            log.error("agent %d waits", self.id, exc_info=error)
        return str(error) or type(error).__name__

    def _answer_refusal(self, refusal: Refused) -> None:
        """Do what a refusal asks for; most ask for patience alone."""
        if refusal.reason == "unrecognised":
            self._enrol_again()
        elif refusal.reason in ("conflict", "superseded"):
            self._renumber(self._ledger.outbox[0], was_counted=refusal.reason == "superseded")
        elif refusal.reason == "too-few":
            self._refresh_terms()
            self._withdraw(self._ledger.outbox[0], is_lost=False)
        elif refusal.reason in ("impossible", "too-heavy"):
            self._withdraw(self._ledger.outbox[0], is_lost=True)

    def _enrol_again(self) -> None:
        """Enrol with the same key: the server was restored from a backup and has lost this agent."""
        credential, client = self._welcome.credential, self._client
        welcome = enrol_agent(
            client.transport, self._token, client.key, client.protocol, credential=credential, clock=client.clock
        )
        log.warning("agent %d was lost by its server, and is agent %d from now on", self.id, welcome.agent)
        with self._changed:
            self.id = client.agent = welcome.agent
            self._follow(welcome)

    def _renumber(self, upload: Upload, *, was_counted: bool) -> None:
        """Give an upload a number that the server does not know: a copy of this file has used its own.

        The server refused it, so it was not counted; unless it may have been counted long ago, and the sums say so.
        """
        standing, confirmed = self._client.fetch_standing(), self._ledger.confirmed
        if was_counted and (confirmed is None or standing.rounds >= confirmed.rounds + upload.statistics.rounds):
            self._skip_answer(upload, None)
            return
        with self._changed, self._store.transaction():
            taken = max(standing.last_sequence, self._agent.uploads)
            self._agent.uploads = taken + 1
            self._ledger.remove(upload)
            self._ledger.add(replace(upload, sequence=taken + 1))
            self._save_counters()

    def _withdraw(self, upload: Upload, *, is_lost: bool) -> None:
        """Send an upload no more: the server will never take it. What is not lost goes back into the buffer."""
        with self._changed, self._store.transaction():
            self._ledger.remove(upload)
            self._agent.unanswered = self._ledger.sum_outbox()
            if is_lost:
                self._ledger.count_lost(upload.statistics.rounds)
                log.warning("agent %d: upload %d was refused, and is lost", self.id, upload.sequence)
            else:
                self._take_back(upload.statistics)
            self._save_counters()
            self._changed.notify_all()

    def _take_back(self, statistics: Statistics) -> None:
        """Put statistics back into the buffer, and send it if it is large enough; the caller holds a transaction."""
        upload = self._agent.take_back(statistics, self.floor)
        self._store.save_statistics("buffer", self._agent.buffer)
        if upload is not None:
            self._ledger.add(upload)

    def _refresh_terms(self) -> None:
        """Follow the terms that the server has now: another policy or constants, with the agent's own statistics."""
        terms = fetch_terms(self._client.transport)
        same = terms.dimension == self.dimension
        require(same, f"the server has dimension {terms.dimension} now, this agent {self.dimension}: enrol a new one")
        with self._changed:
            self._follow(msgspec.structs.replace(self._welcome, terms=terms))

    def _follow(self, welcome: wire.Welcome) -> None:
        """Keep the server's words, and go on as the agent that they describe, from what is on the disk."""
        policy, floor = self._follow_terms(welcome.terms)
        with self._store.transaction():
            self._store.set_setting("welcome", msgspec.json.encode(welcome))
        self._welcome, self.floor = welcome, floor
        self._agent, self._round_estimate = self._load_agent(policy)
