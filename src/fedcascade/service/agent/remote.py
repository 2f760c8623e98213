"""The agent as a library: decisions never wait for the network, and nothing is lost if the process dies."""

import logging
import random
import threading
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.federation.agent import OPEN_LISTS, Agent, ShownList
from fedcascade.federation.messages import Upload
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.client import AgentClient, compute_pause
from fedcascade.service.agent.local_store import LocalStore, RoundEstimate
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")


class RemoteAgent:
    """A ``federation.Agent`` with a memory on disk and a server far away. Made by ``connect``.

    A thread in the background sends uploads, one at a time, oldest first. ``trouble`` says why it waits, if it does.
    """

    def __init__(
        self,
        store: LocalStore,
        client: AgentClient,
        *,
        dimension: int,
        policy: Policy,
        floor: int,
        longest_list: int,
        oracle: Oracle | None,
        problem: ProblemSize | None,
        pauses: tuple[float, float],
    ) -> None:
        self.id = client.agent
        self.dimension = dimension
        self.floor = floor
        self.longest_list = longest_list
        self.trouble: str | None = None
        self._store, self._client = store, client
        self._oracle, self._problem, self._pauses = oracle, problem, pauses
        self._changed = threading.Condition()
        self._closed = False
        self._outbox = store.load_outbox(self.id, dimension)
        self._agent, self._round_estimate = self._load_agent(policy)
        self._thread = threading.Thread(target=self._send_uploads, name="fedcascade-agent", daemon=True)
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
            length, longest = self._agent.oracle.length, self.longest_list
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
                    self._store.add_to_outbox(upload)
            if upload is not None:
                self._outbox.append(upload)
                self._changed.notify_all()
            return upload

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every upload has been answered; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._outbox or self._closed, timeout) and not self._outbox

    @property
    def unsent(self) -> int:
        return len(self._outbox)

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
            unanswered=self._sum_statistics(self._outbox),
            download=self._store.load_statistics("download", self.dimension),
            shown=self._store.load_open_lists(self.id, self.dimension),
        )
        return agent, round_estimate

    def _sum_statistics(self, uploads: Iterable[Upload]) -> Statistics:
        return sum((upload.statistics for upload in uploads), Statistics.zero(self.dimension))

    def _estimate_problem_size(self, list_length: int) -> ProblemSize:
        """The sizes of the problem, as far as this agent knows: nobody knows how many rounds there will be."""
        rounds, users = self._round_estimate.estimate_round(self._agent.arrivals), self._round_estimate.agents
        return ProblemSize(users=users, dimension=self.dimension, list_length=list_length, rounds=rounds)

    def _save_counters(self) -> None:
        self._store.save_counters(self._agent.arrivals, self._agent.uploads, self._round_estimate)

    def _send_uploads(self) -> None:
        """Send one upload at a time, oldest first, and try again until the server has answered each."""
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox or self._closed)
                if self._closed:
                    return
                upload = self._outbox[0]
            try:
                with self._changed:
                    self._store.sync_to_disk()
                answer = self._client.exchange(wire.UploadMessage.from_upload(upload, self._client.protocol))
                self._receive(answer)
                failures, self.trouble = 0, None
            except Exception as error:
                failures += 1
                if isinstance(error, OSError | Refused):
                    self.trouble = str(error)
                    log.info("upload %d waits: %s", upload.sequence, error)
                else:  # a reply that cannot be understood must not end the thread
                    log.exception("upload %d waits", upload.sequence)
                pause = compute_pause(failures, self._pauses, getattr(error, "retry_after", None))
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause)

    def _receive(self, answer: wire.AnswerMessage) -> None:
        """Learn from the answer to the oldest upload, and keep it in the place of that upload."""
        download = answer.to_download(self.id, self.dimension)
        with self._changed:
            self._agent.receive(download, unanswered=self._sum_statistics(self._outbox[1:]))
            self._round_estimate = RoundEstimate(download.rounds, download.agents, 0)
            with self._store.transaction():
                self._store.delete_from_outbox(self._outbox[0].sequence)
                self._store.save_statistics("download", download.statistics)
                self._save_counters()
            del self._outbox[0]
            self._changed.notify_all()
