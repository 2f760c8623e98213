"""The ledger of an agent's uploads and the server's confirmations, which both compare after an accident.

Each change is a function from one state to the next, as in ``packages/agent/src/ledger.js``.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from fedcascade.checks import require
from fedcascade.federation import agent as transitions
from fedcascade.federation.agent import LocalState, ShownList
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.privacy import SystemNoise
from fedcascade.learning.cascade import Examination, round_reward
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.validation import corrects

LARGEST_ROUNDS, LARGEST_AGENTS = 2**53, 2**32  # an extrapolated round fits into 64 bits
PRIOR_REWARD = 0.5  # of a click, before its user has any
TOLERANCE = 1e-6  # of sums over features that are not on the grid
FROM_COPY = "that this file does not have: a copy of it is or was in use"


class SavedState(NamedTuple):
    """The saved state of an agent.

    ``confirmed`` sums the uploads that the server has counted, ``is_settled`` is true if the server agrees, ``lost``
    counts rounds that the server will never get, ``last_change`` numbers the last confirmed ``CHANGE`` upload.
    ``rounds`` and ``agents`` are the server's counts at the last download, ``since`` counts arrivals after it.
    """

    local: LocalState
    enrolment: wire.EnrolmentAnswer
    confirmed: Statistics
    outbox: tuple[Upload, ...] = ()
    rounds: int = 0
    agents: int = 1
    since: int = 0
    is_settled: bool = True
    last_change: int = 0
    receipt: wire.Receipt | None = None
    lost: int = 0

    @property
    def is_replacing(self) -> bool:
        """True if a waiting upload, or the next one, replaces the server's data."""
        return self.local.change_pending or any(upload.cause is Cause.CHANGE for upload in self.outbox)

    @property
    def held(self) -> Statistics:
        """The server's data of the agent's current user."""
        return Statistics.zero(self.local.dimension) if self.is_replacing else self.confirmed


def estimate_round(state: SavedState) -> int:
    """Extrapolate t, assuming that all users arrive equally often."""
    return max(1, state.local.arrivals, state.rounds + state.agents * state.since)


def sum_outbox(state: SavedState) -> Statistics:
    """Sum the unanswered uploads, from the last ``CHANGE`` upload on; nothing if they are private: they have noise."""
    total = Statistics.zero(state.local.dimension)
    if state.local.first is not None:
        return total
    for upload in state.outbox:
        total = upload.statistics if upload.cause is Cause.CHANGE else total + upload.statistics
    return total


def learn_list(
    policy: Policy,
    state: SavedState,
    shown: ShownList,
    seen: Examination,
    *,
    round_: int | None = None,
    draw: float | None = None,
) -> tuple[SavedState, Upload | None]:
    """Learn from a list, and put the upload that it triggers, if any, into the outbox.

    ``round_`` is extrapolated and ``draw`` is drawn if they are None. A private upload gets its noise here, once: the
    outbox holds it with noise.
    """
    later = state._replace(since=state.since + 1)
    t = estimate_round(later) if round_ is None else round_
    number = random.random() if draw is None else draw
    local, upload = transitions.observe(policy, state.local, shown, seen, round_=t, draw=number)
    if upload is not None and policy.privacy is not None:
        upload = policy.privacy.release(upload, SystemNoise())
    return later._replace(local=local, outbox=later.outbox if upload is None else (*later.outbox, upload)), upload


def expect_reward(state: SavedState) -> float:
    """Return the mean reward of the user's clicks so far, and of one more with the prior mean.

    With private uploads it is the prior mean, because the upload of a list must not depend on other lists.
    """
    if state.local.first is not None:
        return PRIOR_REWARD
    own = state.held + transitions.sum_pending(state.local)
    mean = (PRIOR_REWARD + own.reward) / (1 + own.clicks)
    return round_reward(min(1.0, max(0.0, mean)))  # corrections may belong to data that are no longer the user's


def correct(
    policy: Policy, state: SavedState, shown: ShownList, seen: Examination, rewards: Sequence[float], round_: int
) -> SavedState:
    """Replace the expected rewards of the clicks of a list, the one of a round of own data, by late ones."""
    difference = Statistics.correct(shown.features, seen, rewards)
    return state._replace(local=transitions.correct(policy, state.local, difference, round_))


def take_back(policy: Policy, state: SavedState, statistics: Statistics) -> tuple[SavedState, Upload | None]:
    """Put statistics back into the buffer; put it into the outbox if it is large enough."""
    local, upload = transitions.take_back(policy, state.local, statistics, policy.trigger.least)
    return state._replace(local=local, outbox=state.outbox if upload is None else (*state.outbox, upload)), upload


def follow(policy: Policy, state: SavedState, enrolment: wire.EnrolmentAnswer, download: Statistics) -> SavedState:
    """Continue under another enrolment and policy; ``download`` is the last one.

    A download that is invalid under the policy's lambda is replaced by the confirmed uploads. Own data of another
    layout are rebuilt.
    """
    d, known = enrolment.terms.dimension, state.local.dimension
    require(d == known, f"the server has dimension {d}, this agent {known}: enrol a new agent")
    is_private, was_private = policy.privacy is not None, state.local.first is not None
    nothing = Statistics.zero(d)
    try:
        ridge = Ridge(download, policy.lambda_)
    except ValueError:
        ridge = Ridge(nothing if is_private else state.confirmed, policy.lambda_)
    local = state.local._replace(id=enrolment.agent, download=ridge)
    if is_private != was_private:  # data that were not sent yet stay with the agent
        local = local._replace(first=nothing if is_private else None, buffer=nothing, unanswered=nothing)
        lost = sum(upload.statistics.rounds for upload in state.outbox)
        state = state._replace(outbox=(), lost=state.lost + lost)
    is_valid = not is_private or (was_private and ridge.statistics is download)
    is_same = is_valid and transitions.fits_policy(policy, local.own)
    own = local._replace(own=local.own if is_same else None)
    followed = transitions.decide(policy, own) if is_same else transitions.restart_own_data(policy, own, state.held)
    return state._replace(local=followed, enrolment=enrolment)


def take_prior(policy: Policy, state: SavedState, message: wire.PriorMessage) -> SavedState:
    """Decide with the server's prior, unless an upload was answered before; raise ValueError if it is invalid."""
    download = Ridge(unpack_answer(message, state.local.dimension), policy.lambda_)
    if state.local.download.statistics.count:
        return state
    local = transitions.restart_own_data(policy, state.local._replace(download=download), state.held)
    return state._replace(local=local, rounds=message.system_rounds, agents=message.agents, since=0)


def confirm(
    policy: Policy, state: SavedState, upload: Upload, answer: wire.AnswerMessage | None
) -> tuple[SavedState, str | None]:
    """Replace an upload that the server has counted by its answer, or count it without one; return a problem, if any.

    The answer tells whether both sums agree. An answer for the user before a change is not used.
    """
    confirmed, last_change = state.confirmed + upload.statistics, state.last_change
    if upload.cause is Cause.CHANGE:
        confirmed, last_change = upload.statistics, upload.sequence
    outbox = tuple(each for each in state.outbox if each.sequence != upload.sequence)
    after = state._replace(outbox=outbox, confirmed=confirmed, last_change=last_change, is_settled=False)
    local, unanswered, trouble = after.local, sum_outbox(after), None
    if answer is not None:
        is_same_epoch = state.receipt is None or state.receipt.epoch == answer.receipt.epoch
        is_held = (confirmed.count, confirmed.rounds) == (answer.held_count, answer.held_rounds)
        after = after._replace(is_settled=is_same_epoch and is_held, receipt=answer.receipt)
        try:
            download = unpack_answer(answer, local.dimension)
            if not after.is_replacing:
                usable = transitions.trim_download(policy, local, download, unanswered)
                local = transitions.receive(policy, local, usable, unanswered)
            return after._replace(local=local, rounds=answer.system_rounds, agents=answer.agents, since=0), None
        except ValueError as error:
            trouble = f"the answer to upload {upload.sequence} is invalid: {error}"
    if not after.is_replacing:
        local = transitions.skip_answer(policy, local, upload.statistics, unanswered)
    return after._replace(local=local), trouble


def settle(policy: Policy, state: SavedState, standing: wire.Standing) -> tuple[SavedState, str | None]:
    """Go on from what the server holds, and send again what it has lost; return a line about what happened.

    Nothing happens while uploads wait: they come first, so that both sides count the same.
    """
    held = standing.unpack_held(state.local.dimension)
    _check_held(held, state.local.dimension)
    check_sequence(state, standing.last_sequence)
    if state.outbox:
        return state, None
    compare = _compare_sums if policy.privacy is None else _compare_counts
    lost, note, proceed = compare(state, held, standing.last_change)
    settled = state._replace(
        local=state.local._replace(uploads=max(state.local.uploads, standing.last_sequence)),
        enrolment=msgspec.structs.replace(state.enrolment, credential=standing.credential),
        confirmed=held, last_change=standing.last_change, is_settled=True, lost=state.lost + lost,
    )  # fmt: skip
    if state.local.change_pending:  # the next upload replaces what the server holds
        return settled, None
    return settled if proceed is None else proceed(policy, settled), note


Comparison = tuple[int, str | None, Callable[[Policy, SavedState], SavedState] | None]


def _compare_sums(state: SavedState, held: Statistics, last_change: int) -> Comparison:
    """Compare sums with the server: return lost rounds, a note, and the step that continues from the server's sums."""
    confirmed = state.confirmed
    if _is_same(confirmed, held):
        return 0, None, None
    if last_change > state.last_change:
        return 0, f"the server holds a change {FROM_COPY}", _restart_held
    if last_change < state.last_change:
        note = "the server has lost a change of this agent's user: it is sent again"
        return 0, note, lambda policy, settled: _replace_held(policy, settled, confirmed)
    missing = confirmed - held
    if corrects(missing, held):
        note = f"the server has lost {missing.rounds} confirmed rounds: they are sent again"
        return 0, note, lambda policy, settled: take_back(policy, settled, missing)[0]
    if corrects(held - confirmed, confirmed):
        return 0, f"the server holds {-missing.rounds} rounds {FROM_COPY}", None
    lost = max(0, missing.rounds)
    return lost, f"the server holds other rounds than this agent has sent: at least {lost} are lost", None


def _compare_counts(state: SavedState, held: Statistics, last_change: int) -> Comparison:
    """Compare the counts of private uploads, whose sums the server keeps in another form; nothing is sent again."""
    missing = state.confirmed.rounds - held.rounds
    if missing == 0 and last_change == state.last_change:
        return 0, None, None
    if missing > 0:
        return missing, f"the server has lost {missing} rounds: private uploads are sent once", None
    return 0, f"the server holds {-missing} rounds {FROM_COPY}", None


def renumber(state: SavedState, upload: Upload, last_sequence: int) -> SavedState:
    """Give an upload that was not counted an unused number.

    If a ``CHANGE`` upload waits, all uploads that wait become one, because their order matters. Private uploads stay
    as they are: the noise of a sum is not that of an upload.
    """
    check_sequence(state, last_sequence)
    sequence = max(last_sequence, state.local.uploads) + 1
    rest = tuple(each for each in state.outbox if each.sequence != upload.sequence)
    if state.local.first is None and any(waiting.cause is Cause.CHANGE for waiting in state.outbox):
        upload, rest = replace(upload, cause=Cause.CHANGE, statistics=sum_outbox(state)), ()
    outbox = rest if state.local.change_pending else (*rest, replace(upload, sequence=sequence))
    return state._replace(local=state.local._replace(uploads=sequence), outbox=outbox)


def withdraw(policy: Policy, state: SavedState, upload: Upload, *, is_lost: bool) -> SavedState:
    """Remove an upload that the server will never accept. Unless it is lost, its data go back into the buffer.

    A private upload is lost: its data must not be in another one.
    """
    is_lost = is_lost or policy.privacy is not None
    lost = state.lost + upload.statistics.rounds if is_lost else state.lost
    rest = state._replace(outbox=tuple(each for each in state.outbox if each.sequence != upload.sequence), lost=lost)
    if rest.is_replacing or policy.privacy is not None:
        return rest
    if upload.cause is Cause.CHANGE:
        left = sum_outbox(rest)
        kept = left if is_lost else upload.statistics + left
        return _replace_held(policy, rest._replace(outbox=()), kept)
    rest = rest._replace(local=rest.local._replace(unanswered=sum_outbox(rest)))
    return _restart_held(policy, rest) if is_lost else take_back(policy, rest, upload.statistics)[0]


def _restart_held(policy: Policy, state: SavedState) -> SavedState:
    return state._replace(local=transitions.restart_own_data(policy, state.local, state.held))


def _replace_held(policy: Policy, state: SavedState, statistics: Statistics) -> SavedState:
    """Replace the server's data by statistics and the buffer, once these are enough for an upload."""
    local = transitions.restart(policy, state.local, statistics + state.local.buffer)
    return take_back(policy, state._replace(local=local), Statistics.zero(local.dimension))[0]


def unpack_answer(answer: wire.AnswerMessage | wire.PriorMessage, dimension: int) -> Statistics:
    """Return the download of an answer; raise ValueError if its counts are invalid, or numbers not finite."""
    download = wire.unpack_statistics(answer.numbers, (answer.count, answer.clicks, answer.rounds), dimension)
    rounds, agents = answer.system_rounds, answer.agents
    _check_held(download, dimension)
    require(rounds <= LARGEST_ROUNDS, f"rounds must be <= {LARGEST_ROUNDS}, got {rounds}")
    require(1 <= agents <= LARGEST_AGENTS, f"agents must be in 1..{LARGEST_AGENTS}, got {agents}")
    return download


def check_sequence(state: SavedState, last_sequence: int) -> None:
    """Reject a last sequence number far beyond the agent's own, which would use up all numbers."""
    largest = state.local.uploads + LARGEST_AGENTS
    require(last_sequence <= largest, f"the last sequence number must be <= {largest}, got {last_sequence}")


def _check_held(statistics: Statistics, dimension: int) -> None:
    statistics.check(dimension)
    largest = max(statistics.count, statistics.rounds)
    require(largest <= LARGEST_ROUNDS, f"counts must be at most {LARGEST_ROUNDS}, got {largest}")


def _is_same(first: Statistics, second: Statistics) -> bool:
    counts = [(each.count, each.clicks, each.rounds, each.shortfall) for each in (first, second)]
    pairs = (first.gram, second.gram), (first.moment, second.moment)
    return counts[0] == counts[1] and all(np.allclose(one, other, rtol=0, atol=TOLERANCE) for one, other in pairs)
