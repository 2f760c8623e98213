"""What an agent has sent and the server has confirmed, so that both can compare after an accident."""

from dataclasses import dataclass

import msgspec
import numpy as np

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.validation import can_exist

LARGEST_ROUNDS, LARGEST_AGENTS = 2**53, 2**32  # so that an extrapolated round fits into 64 bits
TOLERANCE = 1e-6  # of sums over features that are on no grid


@dataclass(frozen=True)
class Settlement:
    """What follows from a comparison of sums: what to send again, and a line about what happened, if anything did.

    ``lost_change`` says that ``missing`` must replace what the server holds, because it has lost a ``CHANGE`` upload;
    ``is_foreign`` that what the server holds is all that is known of the agent's user.
    """

    note: str | None = None
    missing: Statistics | None = None
    lost_change: bool = False
    is_foreign: bool = False


class Ledger:
    """The outbox, what the server has confirmed, its last receipt, and how many rounds are known to be lost.

    ``confirmed`` is None where this agent does not know it: its file is from before there was a ledger. It is settled
    while the server holds what it has confirmed. ``last_change`` is the number of the last ``CHANGE`` upload that was
    confirmed. Every change is saved; the caller holds a transaction of the store.
    """

    def __init__(self, store: LocalStore, agent: int, dimension: int) -> None:
        self._store, self._dimension = store, dimension
        self.outbox = store.load_outbox(agent, dimension)
        is_known = not store.get_setting("unconfirmed")
        self.confirmed = store.load_statistics("confirmed", dimension) if is_known else None
        self.is_settled = is_known
        receipt = store.get_setting("receipt")
        self.receipt = None if receipt is None else msgspec.json.decode(receipt, type=wire.Receipt)
        self.lost = int(store.get_setting("lost") or 0)
        self.last_change = int(store.get_setting("last_change") or 0)

    def sum_outbox(self, *, skip: int = 0) -> Statistics:
        """The statistics that wait, beyond the first ``skip`` uploads, from the last ``CHANGE`` upload on."""
        total = Statistics.zero(self._dimension)
        for upload in self.outbox[skip:]:
            total = upload.statistics if upload.cause is Cause.CHANGE else total + upload.statistics
        return total

    def has_change(self, *, skip: int = 0) -> bool:
        """Whether a ``CHANGE`` upload waits, beyond the first ``skip`` uploads."""
        return any(upload.cause is Cause.CHANGE for upload in self.outbox[skip:])

    def clear(self) -> Statistics:
        """Empty the outbox; returns what ``sum_outbox`` did before."""
        total = self.sum_outbox()
        for upload in list(self.outbox):
            self.remove(upload)
        return total

    def add(self, upload: Upload) -> None:
        """Keep an upload until the server has answered it."""
        self._store.add_to_outbox(upload)
        self.outbox.append(upload)

    def remove(self, upload: Upload) -> None:
        """Take an upload out of the outbox."""
        self._store.delete_from_outbox(upload.sequence)
        self.outbox.remove(upload)

    def confirm(self, upload: Upload, answer: wire.AnswerMessage | None) -> None:
        """Note that the server has counted an upload; its answer, if it is good, says whether both sums agree."""
        self.remove(upload)
        if upload.cause is Cause.CHANGE:
            self._set_confirmed(upload.statistics)
            self._set_last_change(upload.sequence)
        elif self.confirmed is not None:
            self._set_confirmed(self.confirmed + upload.statistics)
        known, self.is_settled = self.receipt, False
        if answer is not None:
            is_same_epoch, sums = known is None or known.epoch == answer.receipt.epoch, self.confirmed
            is_held = sums is not None and (sums.count, sums.rounds) == (answer.held_count, answer.held_rounds)
            self.is_settled = is_same_epoch and is_held
            self.receipt = answer.receipt
            self._store.set_setting("receipt", msgspec.json.encode(answer.receipt))

    def settle(self, held: Statistics, last_change: int) -> Settlement:
        """Go on from what the server holds, and from the number of the last ``CHANGE`` upload that it knows.

        Call this with an empty outbox: then no upload is on its way that one side has counted and the other has not.
        """
        confirmed, self.is_settled, known_change = self.confirmed, True, self.last_change
        self._set_confirmed(held)
        self._set_last_change(last_change)
        if confirmed is None:
            return Settlement(is_foreign=True)
        if _is_same(confirmed, held):
            return Settlement()
        if last_change > known_change:
            return Settlement("the server knows of a change that this file does not: a copy of it is or was in use",
                              is_foreign=True)  # fmt: skip
        if last_change < known_change:
            return Settlement("the server has lost a change of this agent's user: it is sent again", confirmed, True)
        missing = confirmed - held
        if can_exist(missing):
            note = f"the server has lost {missing.rounds} rounds that it had confirmed: they are sent again"
            return Settlement(note, missing)
        if can_exist(held - confirmed):
            rounds = held.rounds - confirmed.rounds
            return Settlement(
                f"the server holds {rounds} rounds that this file does not know: a copy of it is or was in use"
            )
        lost = max(0, missing.rounds)
        self.count_lost(lost)
        return Settlement(f"the server holds other rounds than this agent has sent: {lost} are lost, or more")

    def count_lost(self, rounds: int) -> None:
        """Count rounds that the server will never learn from."""
        self.lost += rounds
        self._store.set_setting("lost", str(self.lost).encode())

    def _set_last_change(self, sequence: int) -> None:
        if sequence != self.last_change:
            self.last_change = sequence
            self._store.set_setting("last_change", str(sequence).encode())

    def _set_confirmed(self, statistics: Statistics) -> None:
        self.confirmed = statistics
        self._store.save_statistics("confirmed", statistics)
        self._store.set_setting("unconfirmed", b"")


def check_answer(
    answer: wire.AnswerMessage | wire.DownloadMessage, agent: int, dimension: int, lambda_: float
) -> Download:
    """The download of an answer; ValueError if no agent can decide with it."""
    download = answer.to_download(agent, dimension)
    pooled, rounds, agents = download.statistics, download.rounds, download.agents
    pooled.check(dimension)
    is_small = rounds <= LARGEST_ROUNDS and agents <= LARGEST_AGENTS
    require(is_small, f"there can be {LARGEST_ROUNDS} rounds of {LARGEST_AGENTS} agents, got {rounds} of {agents}")
    _check_counts(pooled)
    Ridge(pooled, lambda_)
    return download


def check_standing(standing: wire.Standing, dimension: int) -> Statistics:
    """What the server holds of an agent; ValueError if nobody can hold that."""
    held = standing.unpack_held(dimension)
    held.check(dimension)
    _check_counts(held)
    return held


def _check_counts(statistics: Statistics) -> None:
    largest = max(statistics.count, statistics.rounds)
    require(largest <= LARGEST_ROUNDS, f"counts must be at most {LARGEST_ROUNDS}, got {largest}")


def _is_same(first: Statistics, second: Statistics) -> bool:
    counts = [(each.count, each.clicks, each.rounds) for each in (first, second)]
    pairs = (first.gram, second.gram), (first.moment, second.moment)
    return counts[0] == counts[1] and all(np.allclose(one, other, rtol=0, atol=TOLERANCE) for one, other in pairs)
