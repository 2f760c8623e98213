"""What an agent has sent and the server has confirmed, so that both can compare after an accident."""

from dataclasses import dataclass

import msgspec
import numpy as np

from fedcascade.checks import require
from fedcascade.federation.grouping.rows import Rows
from fedcascade.federation.messages import Download, Upload
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.validation import can_exist

LARGEST_ROUNDS, LARGEST_AGENTS = 2**53, 2**32  # so that an extrapolated round fits into 64 bits
LONGEST, NARROWEST = 1e6, 1e-9  # of the mean of a component in any direction, and of its variance
TOLERANCE = 1e-6  # of sums over features that are on no grid


@dataclass(frozen=True)
class Settlement:
    """What follows from a comparison of sums: what to send again, and a line about what happened, if anything did.

    ``lost_reset`` says that ``missing`` is to be sent as a reset, because the server does not know the last one;
    ``is_new_self`` that what the server holds is all that is known of the agent's user.
    """

    note: str | None = None
    missing: Statistics | None = None
    lost_reset: bool = False
    is_new_self: bool = False


class Ledger:
    """The outbox, what the server has confirmed, its last receipt, and how many rounds are known to be lost.

    ``confirmed`` is None where this agent does not know it: its file is from before there was a ledger. It is settled
    while the server holds what it has confirmed. After a reset that is data of who the user is now; ``former`` is what
    was left of it for who the user was. Every change is saved; the caller holds a transaction of the store.
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
        self.last_reset = int(store.get_setting("last_reset") or 0)

    def sum_outbox(self, *, skip: int = 0) -> Statistics:
        """The statistics that wait, without those of the first ``skip`` uploads; from a reset on, what it keeps."""
        total = Statistics.zero(self._dimension)
        for upload in self.outbox[skip:]:
            total = total + upload.statistics if upload.kept is None else upload.kept
        return total

    def has_reset(self, *, skip: int = 0) -> bool:
        """Whether a reset waits, beyond the first ``skip`` uploads."""
        return any(upload.kept is not None for upload in self.outbox[skip:])

    def take_all(self) -> tuple[Statistics, Statistics | None]:
        """Empty the outbox; returns what all of it sends, and what is kept after it if there was a reset.

        The first upload may have been sent, but the server has not counted it; the others never were.
        """
        kept = self.sum_outbox() if self.has_reset() else None
        sent = sum((upload.statistics for upload in self.outbox), Statistics.zero(self._dimension))
        for upload in list(self.outbox):
            self.remove(upload)
        return sent, kept

    def add(self, upload: Upload) -> None:
        """Keep an upload until the server has answered it."""
        self._store.add_to_outbox(upload)
        self.outbox.append(upload)

    def remove(self, upload: Upload) -> None:
        """Take an upload out of the outbox."""
        self._store.delete_from_outbox(upload.sequence)
        self.outbox.remove(upload)

    def count_left(self, upload: Upload) -> int | None:
        """How many observations a reset that is sent now leaves to who the user was; None if that is not known."""
        if upload.kept is None or self.confirmed is None:
            return None
        return self.confirmed.count + upload.statistics.count - upload.kept.count

    def confirm(self, upload: Upload, answer: wire.AnswerMessage | None) -> None:
        """Note that the server has counted an upload; its answer, if it is good, says whether both sums agree."""
        self.remove(upload)
        if upload.kept is not None:
            self._confirm_reset(upload, upload.kept)
        elif self.confirmed is not None:
            self._set_confirmed(self.confirmed + upload.statistics)
        known, self.is_settled = self.receipt, False
        if answer is not None:
            is_same_epoch, sums = known is None or known.epoch == answer.receipt.epoch, self.confirmed
            is_held = sums is not None and (sums.count, sums.rounds) == (answer.held_count, answer.held_rounds)
            self.is_settled = is_same_epoch and is_held
            self.receipt = answer.receipt
            self._store.set_setting("receipt", msgspec.json.encode(answer.receipt))

    def _confirm_reset(self, upload: Upload, kept: Statistics) -> None:
        """Note that the server has counted a reset: it holds what was kept, and the rest is that of a former self."""
        if self.confirmed is None:
            self._store.delete_statistics("former")
        else:
            self._store.save_statistics("former", self.confirmed + upload.statistics - kept)
        self._set_confirmed(kept)
        self._set_last_reset(upload.sequence)

    def settle(self, held: Statistics, last_reset: int) -> Settlement:
        """Go on from what the server holds, and from the number of the last reset that it knows.

        Call this with an empty outbox: then no upload is on its way that one side has counted and the other has not.
        """
        confirmed, self.is_settled, known_reset = self.confirmed, True, self.last_reset
        self._set_confirmed(held)
        self._set_last_reset(last_reset)
        if confirmed is None:
            return Settlement(is_new_self=True)
        if last_reset > known_reset:
            return Settlement("the server knows of a change that this file does not: a copy of it is or was in use",
                              is_new_self=True)  # fmt: skip
        if last_reset < known_reset:
            missing = complete_reset(
                held, confirmed + self._store.load_statistics("former", self._dimension), confirmed
            )
            return Settlement("the server has lost a change of this agent's user: it is sent again", missing, True)
        if _is_same(confirmed, held):
            return Settlement()
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

    def accept_held(self, held: Statistics, last_reset: int) -> None:
        """Note what the server holds, before a reset that fits it is sent."""
        self._set_confirmed(held)
        self._set_last_reset(last_reset)

    def count_lost(self, rounds: int) -> None:
        """Count rounds that the server will never learn from."""
        self.lost += rounds
        self._store.set_setting("lost", str(self.lost).encode())

    def _set_last_reset(self, sequence: int) -> None:
        if sequence != self.last_reset:
            self.last_reset = sequence
            self._store.set_setting("last_reset", str(sequence).encode())

    def _set_confirmed(self, statistics: Statistics) -> None:
        self.confirmed = statistics
        self._store.save_statistics("confirmed", statistics)
        self._store.set_setting("unconfirmed", b"")


def complete_reset(held: Statistics, sent: Statistics, kept: Statistics) -> Statistics:
    """What a reset must carry, so that a server that holds ``held`` has ``sent`` in all, and may keep ``kept`` of it.

    If what it holds is no part of that, the reset carries all that it keeps: nothing of the new self is lost.
    """
    missing = sent - held
    is_part = can_exist(missing) and (_is_same(sent, kept) or can_exist(sent - kept))
    return missing if is_part else kept


def repair_reset(held: Statistics, confirmed: Statistics, sent: Statistics, kept: Statistics) -> Statistics:
    """What a reset must carry that was to carry ``sent``, where the server does not hold what it had confirmed."""
    is_grown = _is_same(held, confirmed) or can_exist(held - confirmed)  # a copy of the agent's file has spoken
    if is_grown and can_exist(held + sent - kept):
        return sent
    return complete_reset(held, confirmed + sent, kept)


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
    if download.components is not None:
        _check_components(download.components)
    Ridge(pooled, lambda_)
    return download


def _check_components(components: Rows) -> None:
    """Refuse groups that nobody can be like."""
    means, variances, shares = components[:, :-2], components[:, -2], components[:, -1]
    is_sound = bool(np.isfinite(components).all() and (np.abs(means) <= LONGEST).all())
    is_sound &= bool(((variances >= NARROWEST) & (variances <= LONGEST) & (shares >= 0.0) & (shares <= 1.0)).all())
    require(is_sound, "components must have finite means, variances > 0 and shares of at most 1")


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
