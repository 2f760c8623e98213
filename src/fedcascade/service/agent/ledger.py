"""What an agent has sent and the server has confirmed, so that both can compare after an accident."""

import msgspec
import numpy as np

from fedcascade.checks import require
from fedcascade.federation.messages import Download, Upload
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.validation import can_exist

LARGEST_ROUNDS, LARGEST_AGENTS = 2**53, 2**32  # so that an extrapolated round fits into 64 bits
TOLERANCE = 1e-6  # of sums over features that are on no grid


class Ledger:
    """The outbox, what the server has confirmed, its last receipt, and how many rounds are known to be lost.

    ``confirmed`` is None where this agent does not know it: its file is from before there was a ledger. It is settled
    while the server holds what it has confirmed. Every change is saved; the caller holds a transaction of the store.
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

    def sum_outbox(self, *, skip: int = 0) -> Statistics:
        """The statistics that wait, without those of the first ``skip`` uploads."""
        return sum((upload.statistics for upload in self.outbox[skip:]), Statistics.zero(self._dimension))

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
        if self.confirmed is not None:
            self._set_confirmed(self.confirmed + upload.statistics)
        known, self.is_settled = self.receipt, False
        if answer is not None:
            is_same_epoch, sums = known is None or known.epoch == answer.receipt.epoch, self.confirmed
            is_held = sums is not None and (sums.count, sums.rounds) == (answer.held_count, answer.held_rounds)
            self.is_settled = is_same_epoch and is_held
            self.receipt = answer.receipt
            self._store.set_setting("receipt", msgspec.json.encode(answer.receipt))

    def settle(self, held: Statistics) -> tuple[Statistics | None, str | None]:
        """Go on from what the server holds; what it has lost, to be sent again, and a line about what happened.

        Call this with an empty outbox: then no upload is on its way that one side has counted and the other has not.
        """
        confirmed, self.is_settled = self.confirmed, True
        self._set_confirmed(held)
        if confirmed is None or _is_same(confirmed, held):
            return None, None
        missing = confirmed - held
        if can_exist(missing):
            return missing, f"the server has lost {missing.rounds} rounds that it had confirmed: they are sent again"
        if can_exist(held - confirmed):
            rounds = held.rounds - confirmed.rounds
            return None, f"the server holds {rounds} rounds that this file does not know: a copy of it is or was in use"
        lost = max(0, missing.rounds)
        self.count_lost(lost)
        return None, f"the server holds other rounds than this agent has sent: {lost} are lost, or more"

    def count_lost(self, rounds: int) -> None:
        """Count rounds that the server will never learn from."""
        self.lost += rounds
        self._store.set_setting("lost", str(self.lost).encode())

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
