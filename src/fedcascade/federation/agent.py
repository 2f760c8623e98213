"""The agent of one user: recommend, observe, perhaps upload, receive (Algorithm 2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.own_data import OwnData
from fedcascade.federation.own_data_keeper import OwnDataKeeper
from fedcascade.federation.policies import Policy
from fedcascade.federation.triggers import Occasion
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, check_list, read_attributes
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

# Float32 features of norm 1 may be longer by rounding; what is beyond this was never normalised.
LARGEST_SQUARE = 1.0 + 1e-5
# A list without feedback is forgotten once so many others have been shown.
OPEN_LISTS = 1024
STATE_FORMAT = 1


@dataclass(frozen=True, eq=False)
class ShownList:
    """A list that an agent showed: the items, first position first, and their features, one row each.

    ``propensities`` are the chances of its items, each given those above it, where the oracle chooses by chance.
    """

    agent: int
    impression: int
    items: NDArray[np.intp]
    features: NDArray[np.float32]
    propensities: NDArray[np.float64] | None = None


class Agent:
    """Serves one user and learns next to it; it never knows how its messages travel."""

    def __init__(self, *, id: int, policy: Policy, problem: ProblemSize, oracle: Oracle) -> None:  # noqa: A002
        self.id = id
        self.policy = policy
        self.problem = problem
        self.oracle = oracle
        self.arrivals = self.uploads = 0
        self.buffer = self.unanswered = Statistics.zero(problem.dimension)
        personal = policy.personal
        self.personal = None if personal is None else personal.begin(problem.dimension, policy.lambda_)
        self.own_data = OwnDataKeeper(policy, problem.dimension) if policy.keeps_own_data else None
        self.download = self._forget_download()
        self.change_pending = False  # whether the user has changed, and no upload has said so yet
        self._open: dict[int, ShownList] = {}
        self._decide()

    def recommend(
        self,
        features: ArrayLike,
        ties: NDArray[np.uint32],
        *,
        categories: ArrayLike | None = None,
        costs: ArrayLike | None = None,
    ) -> ShownList:
        """Choose a list, and keep it open for ``observe``. The arguments are those of ``choose``."""
        shown = self.choose(features, ties, categories=categories, costs=costs)
        self._open[shown.impression] = shown
        self._open.pop(shown.impression - OPEN_LISTS, None)
        return shown

    def choose(
        self,
        features: ArrayLike,
        ties: NDArray[np.uint32],
        *,
        categories: ArrayLike | None = None,
        costs: ArrayLike | None = None,
    ) -> ShownList:
        """Algorithm 2, lines 1 to 3: score the items on offer and give the scores to the oracle.

        Args:
            features: one row per item, each of length at most 1.
            ties: one random word per item; equal scores go by the larger one.
            categories: a whole number per item, for an oracle that limits how many of a category a list holds.
            costs: a number per item, for an oracle that keeps lists within a budget.
        """
        offered = self._validate_features(features)
        require(len(ties) == len(offered), f"ties must hold a word for each of {len(offered)} items, got {len(ties)}")
        attributes = read_attributes(len(offered), categories, costs)
        scores = self.decision.scores(offered, self.beta)
        chosen = self.oracle.choose(scores, ties, attributes)
        check_list(chosen, len(offered), self.oracle.length)
        self.arrivals += 1
        measure = getattr(self.oracle, "propensities", None)  # an ``Explorer`` has it; to ask for the class takes 20 us
        chances = None if measure is None else measure(scores, chosen)
        return ShownList(self.id, self.arrivals, chosen, offered[chosen], chances)

    def observe(self, shown: ShownList, click: int | Examination | None, *, round_: int, draw: float) -> Upload | None:
        """Learn from a list that ``recommend`` returned, once. The arguments are those of ``learn``."""
        refusal = "feedback must be for a list that was shown and not yet answered"
        is_open = self._open.get(shown.impression) is shown
        require(is_open, f"agent {self.id} has no open list like this one: {refusal}")
        upload = self.learn(shown, click, round_=round_, draw=draw)
        del self._open[shown.impression]
        return upload

    def learn(self, shown: ShownList, click: int | Examination | None, *, round_: int, draw: float) -> Upload | None:
        """Algorithm 2, lines 4 to 19: learn from what was clicked, and speak if the trigger says so.

        The caller knows that the list has not been learned from before.

        Args:
            shown: what ``choose`` returned.
            click: the position that was clicked, counted from 0, or None; or what a user did who clicked several.
            round_: t.
            draw: the round's uniform number, for triggers that speak by chance.
        """
        if self.own_data is not None and isinstance(click, Examination):
            self.own_data.require_clicks(click)  # before anything has changed
        if self.personal is None:
            positions = self.policy.positions
            gammas = None if positions is None else positions.compute_gammas(len(shown.items))
            self.buffer = self.buffer.observe(shown.features, click, gammas)
        else:
            known, place = self.download.statistics, _find_only_click(self.policy.name, len(shown.items), click)
            self.buffer = self.personal.observe(known, self.buffer, shown.features, place)
        self._follow_user(shown, click)
        if self.change_pending:
            upload = self.send_change_if_due()
        else:
            occasion = Occasion(
                round=round_, draw=draw, arrivals=shown.impression, download=self.download, buffer=self.buffer
            )
            cause = self.policy.trigger.cause(occasion)
            upload = None if cause is None else self.send_buffer(cause)
        self._decide()
        return upload

    def _follow_user(self, shown: ShownList, click: int | Examination | None) -> None:
        """Look in the agent's own data for a new user, and weigh others'."""
        keeper = self.own_data
        if keeper is None:
            return
        seen = click if isinstance(click, Examination) else follow_cascade(len(shown.items), click)
        if keeper.follow(shown.features, seen, self.decision):
            self.restart(keeper.total)
        elif keeper.is_weighing_due():
            self.download = Ridge(keeper.weigh(self._sum_pending()), self.policy.lambda_)

    def _sum_pending(self) -> Statistics:
        """What of the agent's own data is not in the last download."""
        return self.unanswered + self.buffer if self.unanswered.rounds else self.buffer

    def restart(self, kept: Statistics) -> None:
        """Start over for a changed user, keeping ``kept``; a ``CHANGE`` upload becomes pending.

        The buffer then holds all data of the changed user, and nothing was downloaded for it.
        """
        nothing = Statistics.zero(self.problem.dimension)
        self.buffer, self.unanswered, self.change_pending = kept, nothing, True
        if self.own_data is not None:
            self.own_data.restart(kept)
        self.download = self._forget_download()
        self._decide()

    def send_change_if_due(self, least: int = 1) -> Upload | None:
        """Send the pending ``CHANGE`` upload once it has enough observations to hide single ones."""
        is_due = self.buffer.count >= max(1, least, self.policy.trigger.least)
        return self.send_buffer(Cause.CHANGE) if is_due else None

    def receive(self, download: Download, *, unanswered: Statistics | None = None) -> None:
        """Algorithm 1, line 11: decide with what the server sent from now on.

        ``unanswered`` is what was sent after the upload that this answers; nothing if None.
        """
        require(download.agent == self.id, f"this is agent {self.id}, the download is for {download.agent}")
        download.statistics.check(self.problem.dimension)
        self.unanswered = Statistics.zero(self.problem.dimension) if unanswered is None else unanswered
        received = download.statistics
        if self.own_data is not None:
            received = self.own_data.receive(received, self._sum_pending())
        self.download = Ridge(received, self.policy.lambda_)
        self._decide()

    def resume(
        self,
        *,
        arrivals: int,
        uploads: int,
        buffer: Statistics,
        unanswered: Statistics,
        download: Statistics,
        shown: Iterable[ShownList],
        own_data: OwnData | None = None,
        change_pending: bool = False,
    ) -> None:
        """Take over the state of an earlier agent of the same user; ``shown`` are the lists without feedback.

        ``own_data`` is what the policy keeps apart, if it does.
        """
        self.arrivals, self.uploads, self.change_pending = arrivals, uploads, change_pending
        self.buffer, self.unanswered = buffer, unanswered
        if self.own_data is not None and own_data is not None:
            self.own_data.load_state(own_data._asdict())
        self.download = Ridge(download, self.policy.lambda_)
        self._open = {open_list.impression: open_list for open_list in shown}
        self._decide()

    def to_state(self) -> dict[str, Any]:
        """What outlives a process, as values and arrays that this agent may go on changing: encode or copy them.

        Its number, the policy, the sizes of the problem and the oracle are not part of it.
        """
        return {
            "format": STATE_FORMAT,
            "arrivals": self.arrivals,
            "uploads": self.uploads,
            "buffer": self.buffer,
            "unanswered": self.unanswered,
            "download": self.download.statistics,
            "personal": None if self.personal is None else self.personal.statistics,
            "own_data": None if self.own_data is None else self.own_data.to_state(),
            "change_pending": self.change_pending,
            "shown": [
                {"impression": shown.impression, "items": shown.items, "features": shown.features,
                 "propensities": shown.propensities}
                for shown in self._open.values()
            ],
        }  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` of an agent with the same policy gave."""
        written = state["format"]
        require(written == STATE_FORMAT, f"the state of an agent must have format {STATE_FORMAT}, got {written}")
        if self.personal is not None:
            self.personal.statistics = state["personal"]
        if self.own_data is not None:
            self.own_data.load_state(state["own_data"])
        shown = [ShownList(self.id, **open_list) for open_list in state["shown"]]
        names = ("arrivals", "uploads", "buffer", "unanswered", "download", "change_pending")
        self.resume(**{name: state[name] for name in names}, shown=shown)

    def set_unanswered(self, statistics: Statistics) -> None:
        """Take over what was sent and waits for an answer, after an upload was withdrawn."""
        self.unanswered = statistics
        self._decide()

    def set_problem_size(self, problem: ProblemSize) -> None:
        """Take over other sizes of the problem, which a beta by formula depends on."""
        self.problem = problem
        self._set_beta()

    def get_open_list(self, impression: int) -> ShownList:
        """The list of that number, which was shown and has no feedback yet."""
        shown = self._open.get(impression)
        require(shown is not None, f"agent {self.id} has no open list {impression}")
        assert shown is not None
        return shown

    def send_buffer(self, cause: Cause) -> Upload:
        """Algorithm 1, line 8: send the buffer, unasked or because the server collects, and start an empty one.

        With the cause ``CHANGE`` it replaces all earlier uploads.
        """
        self.uploads += 1
        upload = Upload(agent=self.id, sequence=self.uploads, cause=cause, statistics=self.buffer)
        known = self.policy.reply_rule.keep_unanswered(self.download.statistics, upload.statistics)
        if known is None:
            self.unanswered += upload.statistics
        else:
            self.download = Ridge(known, self.policy.lambda_)
        self.buffer, self.change_pending = Statistics.zero(self.problem.dimension), False
        return upload

    def take_back(self, statistics: Statistics, least: int) -> Upload | None:
        """Put what the server has lost back into the buffer, and send that at once if it has ``least`` observations."""
        self.buffer = self.buffer + statistics
        if self.change_pending:
            upload = self.send_change_if_due(least)
        else:
            if self.own_data is not None and self.policy.trust is not None:
                self.download = Ridge(self.own_data.weigh(self._sum_pending()), self.policy.lambda_)
            upload = self.send_buffer(Cause.FORCED) if self.buffer.count >= max(1, least) else None
        self._decide()
        return upload

    def restart_own_data(self, held: Statistics) -> None:
        """Take what the server holds and what is on its way for all own data; others' are known at the next download.

        A download before the first upload holds others' data alone.
        """
        if self.own_data is None:
            return
        pending, known = self._sum_pending(), self.download.statistics
        self.own_data.restart(held + pending)
        if self.policy.trust is not None:
            is_newcomer = held.count == known.count == 0
            weighed = self.own_data.receive(known, pending) if is_newcomer else self.own_data.weigh(pending)
            self.download = Ridge(weighed, self.policy.lambda_)
        self._decide()

    def learn_before(self, statistics: Statistics) -> None:
        """Let what the user did before there was an agent be the agent's own data; ``take_back`` sends it."""
        if self.own_data is not None:
            self.own_data.restart(self.own_data.total + statistics)

    def _forget_download(self) -> Ridge:
        """Return the ridge of an agent that has downloaded nothing."""
        if self.own_data is None or self.policy.trust is None:
            return Ridge(Statistics.zero(self.problem.dimension), self.policy.lambda_)
        return Ridge(self.own_data.weigh(self._sum_pending()), self.policy.lambda_)

    def _decide(self) -> None:
        """Update the estimate and beta; what was sent but not yet answered still counts as the agent's own."""
        shared = self.policy.decision.ridge(self.download, self._sum_pending())
        self.decision = shared if self.personal is None else self.personal.join(shared)
        self._set_beta()

    def _set_beta(self) -> None:
        """Update beta; where scales are learned, the policy's is in standard deviations of a click."""
        deviation = 1.0 if self.own_data is None else self.own_data.deviation
        self.beta = deviation * self.policy.confidence.radius(self.decision, self.problem)

    def _validate_features(self, features: ArrayLike) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):  # what overflows is refused below
            offered = np.asarray(features, np.float32)
        d = self.problem.dimension
        good = offered.ndim == 2 and offered.shape[0] > 0 and offered.shape[1] == d
        require(good, f"features must have shape (items, {d}) with at least one item, got {offered.shape}")
        largest = float(np.einsum("ij,ij->i", offered, offered).max())
        require(np.isfinite(largest), "features must be finite numbers")
        require(largest <= LARGEST_SQUARE, f"features must have norm <= 1, got {largest**0.5:.6g}")
        return offered


def _find_only_click(policy: str, length: int, click: int | Examination | None) -> int | None:
    """The click of a cascade; refuse more than that where a policy splits each reward between two parts of theta."""
    if not isinstance(click, Examination):
        return click
    first = click.clicks[0] if click.clicks else None
    require(click == follow_cascade(length, first), f"{policy} learns from one click, and from what is above it, alone")
    return first
