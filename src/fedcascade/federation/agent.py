"""The agent of one user as values: recommend, observe, perhaps upload, receive (Algorithm 2). No files, no network.

Each transition is a function from one state to the next. ``packages/agent/src/agent.js`` has the same ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.own_data import DEVIATION, OwnData
from fedcascade.federation.own_data_keeper import OwnDataKeeper, make_policy_data
from fedcascade.federation.personal import PersonalEstimate
from fedcascade.federation.policies import Policy
from fedcascade.federation.rows import unpack_row
from fedcascade.federation.triggers import Occasion
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import ItemAttributes, Oracle, check_list, read_attributes
from fedcascade.learning.ridge import LinearEstimate, Ridge, compute_log_det
from fedcascade.learning.statistics import Statistics

# Float32 features of norm 1 may be longer by rounding; what is beyond this was never normalised.
LARGEST_SQUARE = 1.0 + 1e-5
# A list without feedback is forgotten once so many others have been shown.
OPEN_LISTS = 1024
STATE_FORMAT = 1
Click = int | Examination | None  # the position that was clicked, counted from 0; all that a user did; or nothing


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


class LocalState(NamedTuple):
    """What an agent knows; a value, whose arrays are never changed in place.

    ``unanswered`` is the sum of what was sent and not answered. ``own`` are its own data, where the policy keeps them
    apart, and ``personal`` the part of theta that it keeps to itself. ``change_pending`` says that the user has
    changed, and that no upload has said so yet. ``decision`` is the estimate that it decides with.
    """

    id: int
    arrivals: int
    uploads: int
    buffer: Statistics
    unanswered: Statistics
    download: Ridge
    decision: LinearEstimate
    own: OwnData | None
    personal: PersonalEstimate | None
    change_pending: bool = False

    @property
    def dimension(self) -> int:
        return self.buffer.dimension

    @property
    def own_total(self) -> Statistics:
        """All own data since the last change of the user, where the policy keeps them apart."""
        assert self.own is not None
        return unpack_row(self.own.total, self.dimension)


Sent = tuple[LocalState, Upload | None]


def begin(policy: Policy, dimension: int, id: int = 0) -> LocalState:  # noqa: A002
    """Return the state of an agent that knows nothing."""
    nothing, part = Statistics.zero(dimension), policy.personal
    ridge = Ridge(nothing, policy.lambda_)
    own = make_policy_data(policy, (), dimension) if policy.keeps_own_data else None
    personal = None if part is None else part.begin(dimension, policy.lambda_)
    return decide(policy, _weigh(policy, LocalState(id, 0, 0, nothing, nothing, ridge, ridge, own, personal)))


def decide(policy: Policy, state: LocalState) -> LocalState:
    """Update the estimate; what was sent but not yet answered still counts as the agent's own."""
    shared = policy.decision.ridge(state.download, sum_pending(state))
    return state._replace(decision=shared if state.personal is None else state.personal.join(shared))


def sum_pending(state: LocalState) -> Statistics:
    """Sum the own data that are not in the last download."""
    return state.unanswered + state.buffer if state.unanswered.rounds else state.buffer


def compute_beta(policy: Policy, state: LocalState, problem: ProblemSize) -> float:
    """Compute beta; where scales are learned, the policy's is in standard deviations of a click."""
    has_scale = state.own is not None and policy.trust is not None
    deviation = float(state.own.numbers[DEVIATION]) if has_scale else 1.0  # type: ignore[union-attr]
    return deviation * policy.confidence.radius(state.decision, problem)


def choose_list(
    policy: Policy,
    state: LocalState,
    offered: NDArray[np.float32],
    ties: NDArray[np.uint32],
    attributes: ItemAttributes,
    *,
    oracle: Oracle,
    problem: ProblemSize,
) -> ShownList:
    """Algorithm 2, lines 1 to 3: score the items on offer and give the scores to the oracle."""
    require(len(ties) == len(offered), f"ties must hold a word for each of {len(offered)} items, got {len(ties)}")
    scores = state.decision.scores(offered, compute_beta(policy, state, problem))
    chosen = oracle.choose(scores, ties, attributes)
    check_list(chosen, len(offered), oracle.length)
    measure = getattr(oracle, "propensities", None)  # an ``Explorer`` has it; to ask for the class takes 20 us
    chances = None if measure is None else measure(scores, chosen)
    return ShownList(state.id, state.arrivals + 1, chosen, offered[chosen], chances)


def observe(policy: Policy, state: LocalState, shown: ShownList, click: Click, *, round_: int, draw: float) -> Sent:
    """Algorithm 2, lines 4 to 19: learn from what was clicked, and upload if the trigger says so.

    The caller knows that the list has not been learned from before.

    Args:
        policy: the agent's.
        state: before the feedback.
        shown: what ``choose_list`` returned.
        click: what was clicked.
        round_: t.
        draw: the round's uniform number, for triggers that upload by chance.
    """
    learned = _follow_user(policy, _add_list(policy, state, shown, click), shown, click)
    if learned.change_pending:
        sent, upload = _send_if_due(policy, learned)
    else:
        occasion = Occasion(
            round=round_, draw=draw, arrivals=shown.impression, download=learned.download, buffer=learned.buffer
        )
        cause = policy.trigger.cause(occasion)
        sent, upload = (learned, None) if cause is None else send_buffer(policy, learned, cause)
    return decide(policy, sent), upload


def _add_list(policy: Policy, state: LocalState, shown: ShownList, click: Click) -> LocalState:
    """Add a list to the buffer."""
    if state.personal is None:
        gammas = None if policy.positions is None else policy.positions.compute_gammas(len(shown.items))
        return state._replace(buffer=state.buffer.observe(shown.features, click, gammas))
    place = _find_only_click(policy.name, len(shown.items), click)
    known = state.download.statistics
    buffer, personal = state.personal.observe(known, state.buffer, shown.features, place)
    return state._replace(buffer=buffer, personal=personal)


def _follow_user(policy: Policy, state: LocalState, shown: ShownList, click: Click) -> LocalState:
    """Look for a changed user in the agent's own data, and weigh others' data."""
    if state.own is None:
        return state
    keeper = _keep_own_data(policy, state, *(("total",) if policy.changes is None else ()))
    seen = click if isinstance(click, Examination) else follow_cascade(len(shown.items), click)
    has_changed = keeper.follow(shown.features, seen, state.decision)
    followed = state._replace(own=keeper.data)
    if has_changed:
        return _start_over(policy, followed, keeper.total)
    return _weigh(policy, followed) if keeper.is_weighing_due() else followed


def _keep_own_data(policy: Policy, state: LocalState, *changed: str) -> OwnDataKeeper:
    """Return a keeper of the agent's own data, of which the named arrays are copies that it may change; all if none."""
    if state.own is None:
        return OwnDataKeeper(policy, state.dimension)
    copies = {name: getattr(state.own, name).copy() for name in changed or OwnData._fields}
    return OwnDataKeeper(policy, state.dimension, state.own._replace(**copies))


def _weigh(policy: Policy, state: LocalState) -> LocalState:
    """Weigh others' data, where the policy does."""
    if policy.trust is None:
        return state
    keeper = _keep_own_data(policy, state, "numbers")
    return state._replace(download=Ridge(keeper.weigh(sum_pending(state)), policy.lambda_), own=keeper.data)


def restart(policy: Policy, state: LocalState, kept: Statistics) -> LocalState:
    """Start over for a changed user, keeping ``kept``; a ``CHANGE`` upload becomes pending.

    The buffer then holds all data of the changed user, and nothing was downloaded for it.
    """
    return decide(policy, _start_over(policy, state, kept))


def _start_over(policy: Policy, state: LocalState, kept: Statistics) -> LocalState:
    nothing, own = Statistics.zero(state.dimension), None
    if policy.keeps_own_data:
        keeper = _keep_own_data(policy, state)
        keeper.restart(kept)
        own = keeper.data
    fresh = state._replace(buffer=kept, unanswered=nothing, own=own, change_pending=True)
    return _weigh(policy, fresh._replace(download=Ridge(nothing, policy.lambda_)))


def restart_own_data(policy: Policy, state: LocalState, held: Statistics) -> LocalState:
    """Take what the server holds and what is pending for all own data; others' are known at the next download.

    A download before the first upload holds others' data alone.
    """
    if not policy.keeps_own_data:
        return decide(policy, state._replace(own=None))
    pending, known, keeper = sum_pending(state), state.download.statistics, _keep_own_data(policy, state)
    keeper.restart(held + pending)
    if policy.trust is None:
        return decide(policy, state._replace(own=keeper.data))
    is_newcomer = held.count == known.count == 0
    weighed = keeper.receive(known, pending) if is_newcomer else keeper.weigh(pending)
    return decide(policy, state._replace(own=keeper.data, download=Ridge(weighed, policy.lambda_)))


def fits_policy(policy: Policy, own: OwnData | None) -> bool:
    """Return whether own data are such as the policy keeps; their prior may be none with a smaller lambda."""
    if own is None or not policy.keeps_own_data:
        return own is None and not policy.keeps_own_data
    is_alike = own.blocks.shape == make_policy_data(policy, (), own.others_moment.size).blocks.shape
    return is_alike and (policy.trust is None or is_prior(own.others_gram, policy.lambda_))


def is_prior(gram: NDArray[np.float64], lambda_: float) -> bool:
    """Return whether lambda I + gram has a Cholesky factor."""
    return math.isfinite(compute_log_det(gram, lambda_))


def send_buffer(policy: Policy, state: LocalState, cause: Cause) -> tuple[LocalState, Upload]:
    """Algorithm 1, line 8: send the buffer, and start an empty one.

    With the cause ``CHANGE`` it replaces all earlier uploads.
    """
    sent = state.buffer
    upload = Upload(agent=state.id, sequence=state.uploads + 1, cause=cause, statistics=sent)
    known = policy.reply_rule.keep_unanswered(state.download.statistics, sent)
    after = state._replace(uploads=upload.sequence, buffer=Statistics.zero(state.dimension), change_pending=False)
    if known is None:
        return after._replace(unanswered=state.unanswered + sent), upload
    return after._replace(download=Ridge(known, policy.lambda_)), upload


def _send_if_due(policy: Policy, state: LocalState, least: int = 1) -> Sent:
    """Send the buffer if it has ``least`` observations; a ``CHANGE`` upload waits until it hides single ones, too."""
    floor = max(1, least, policy.trigger.least if state.change_pending else 0)
    if state.buffer.count < floor:
        return state, None
    return send_buffer(policy, state, Cause.CHANGE if state.change_pending else Cause.FORCED)


def take_back(policy: Policy, state: LocalState, statistics: Statistics, least: int = 1) -> Sent:
    """Put what the server has lost back into the buffer, and send that at once if it has ``least`` observations."""
    fuller = state._replace(buffer=state.buffer + statistics)
    sent, upload = _send_if_due(policy, fuller if fuller.change_pending else _weigh(policy, fuller), least)
    return decide(policy, sent), upload


def receive(
    policy: Policy, state: LocalState, download: Statistics, unanswered: Statistics | None = None
) -> LocalState:
    """Algorithm 1, line 11: decide with what the server sent from now on.

    ``unanswered`` is what was sent after the upload that this answers; nothing if None.
    """
    nothing = Statistics.zero(state.dimension) if unanswered is None else unanswered
    after = state._replace(unanswered=nothing)
    if policy.trust is not None:
        keeper = _keep_own_data(policy, state)
        download, after = keeper.receive(download, sum_pending(after)), after._replace(own=keeper.data)
    return decide(policy, after._replace(download=Ridge(download, policy.lambda_)))


def trim_download(policy: Policy, state: LocalState, download: Statistics, unanswered: Statistics) -> Statistics:
    """Return the part of a download that an agent can use that weighs others' data.

    It is the agent's own data alone, where the rest cannot be others' data: the server holds other data of this agent
    than it has sent, and both will compare.
    """
    if policy.trust is None:
        return download
    own = state.own_total - (unanswered + state.buffer)
    if is_prior(download.gram - own.gram, policy.lambda_):
        return download
    return own if own.count >= 0 else Statistics.zero(state.dimension)


def skip_answer(policy: Policy, state: LocalState, upload: Statistics, unanswered: Statistics) -> LocalState:
    """Go on with what was known and with an upload that the server has counted: its answer is of no use.

    Others' data stay as they are, in the unit of noise of the download that they came with.
    """
    after = state._replace(unanswered=unanswered)
    if policy.trust is not None:
        return decide(policy, _weigh(policy, after))
    return decide(policy, after._replace(download=Ridge(state.download.statistics + upload, policy.lambda_)))


def learn_before(policy: Policy, state: LocalState, statistics: Statistics) -> LocalState:
    """Let what the user did before there was an agent be the agent's own data; ``take_back`` sends it."""
    if not policy.keeps_own_data:
        return state
    keeper = _keep_own_data(policy, state)
    keeper.restart(keeper.total + statistics)
    return state._replace(own=keeper.data)


class Agent:
    """Serves one user and learns next to it: a state, and the transitions above. It has no network."""

    def __init__(self, *, id: int, policy: Policy, problem: ProblemSize, oracle: Oracle) -> None:  # noqa: A002
        self.policy = policy
        self.problem = problem
        self.oracle = oracle
        self.state = begin(policy, problem.dimension, id)
        self._open: dict[int, ShownList] = {}

    @property
    def id(self) -> int:
        return self.state.id

    @property
    def beta(self) -> float:
        """The width of confidence intervals now."""
        return compute_beta(self.policy, self.state, self.problem)

    def recommend(
        self,
        features: ArrayLike,
        ties: NDArray[np.uint32],
        *,
        categories: ArrayLike | None = None,
        costs: ArrayLike | None = None,
    ) -> ShownList:
        """Choose a list, and keep it open for ``observe``.

        Args:
            features: one row per item, each of length at most 1.
            ties: one random word per item; equal scores go by the larger one.
            categories: a whole number per item, for an oracle that limits how many of a category a list holds.
            costs: a number per item, for an oracle that keeps lists within a budget.
        """
        offered = read_features(features, self.problem.dimension)
        attributes = read_attributes(len(offered), categories, costs)
        shown = choose_list(
            self.policy, self.state, offered, ties, attributes, oracle=self.oracle, problem=self.problem
        )
        self.state = self.state._replace(arrivals=shown.impression)
        self._open[shown.impression] = shown
        self._open.pop(shown.impression - OPEN_LISTS, None)
        return shown

    def observe(self, shown: ShownList, click: Click, *, round_: int, draw: float) -> Upload | None:
        """Learn from a list that ``recommend`` returned, once; return the upload to send, if there is one."""
        refusal = "feedback must be for a list that was shown and not yet answered"
        is_open = self._open.get(shown.impression) is shown
        require(is_open, f"agent {self.id} has no open list like this one: {refusal}")
        self.state, upload = observe(self.policy, self.state, shown, click, round_=round_, draw=draw)
        del self._open[shown.impression]
        return upload

    def receive(self, download: Download) -> None:
        """Decide with what the server sent from now on."""
        require(download.agent == self.id, f"this is agent {self.id}, the download is for {download.agent}")
        download.statistics.check(self.problem.dimension)
        self.state = receive(self.policy, self.state, download.statistics)

    def restart(self, kept: Statistics) -> None:
        """Start over for a changed user, keeping ``kept``; a ``CHANGE`` upload becomes pending."""
        self.state = restart(self.policy, self.state, kept)

    def send_buffer(self, cause: Cause) -> Upload:
        """Send the buffer, because the server collects or because the user has changed."""
        self.state, upload = send_buffer(self.policy, self.state, cause)
        return upload

    def take_back(self, statistics: Statistics, least: int) -> Upload | None:
        """Put statistics into the buffer, and send it at once if it has ``least`` observations."""
        self.state, upload = take_back(self.policy, self.state, statistics, least)
        return upload

    def learn_before(self, statistics: Statistics) -> None:
        """Let what the user did before there was an agent be the agent's own data; ``take_back`` sends it."""
        self.state = learn_before(self.policy, self.state, statistics)

    def get_open_list(self, impression: int) -> ShownList:
        """Return the list of that number, which was shown and has no feedback yet."""
        require(impression in self._open, f"agent {self.id} has no open list {impression}")
        return self._open[impression]

    def to_state(self) -> dict[str, Any]:
        """Return what outlives a process, as values and arrays.

        Its number, the policy, the sizes of the problem and the oracle are not part of it.
        """
        state = self.state
        return {
            "format": STATE_FORMAT,
            "arrivals": state.arrivals,
            "uploads": state.uploads,
            "buffer": state.buffer,
            "unanswered": state.unanswered,
            "download": state.download.statistics,
            "personal": None if state.personal is None else state.personal.statistics,
            "own_data": None if state.own is None else state.own._asdict(),
            "change_pending": state.change_pending,
            "shown": [
                {"impression": shown.impression, "items": shown.items, "features": shown.features,
                 "propensities": shown.propensities}
                for shown in self._open.values()
            ],
        }  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` of an agent with the same policy gave."""
        written, lambda_ = state["format"], self.policy.lambda_
        require(written == STATE_FORMAT, f"the state of an agent must have format {STATE_FORMAT}, got {written}")
        known = {name: state[name] for name in ("arrivals", "uploads", "buffer", "unanswered", "change_pending")}
        own = None if self.state.own is None else OwnData(**state["own_data"])
        personal = None if self.state.personal is None else PersonalEstimate(state["personal"], lambda_)
        loaded = self.state._replace(**known, download=Ridge(state["download"], lambda_), own=own, personal=personal)
        self.state = decide(self.policy, loaded)
        self._open = {shown["impression"]: ShownList(self.id, **shown) for shown in state["shown"]}


def read_features(features: ArrayLike, dimension: int) -> NDArray[np.float32]:
    """Return the features of items on offer; refuse other shapes, and items longer than 1."""
    with np.errstate(over="ignore"):  # what overflows is refused below
        offered = np.asarray(features, np.float32)
    good = offered.ndim == 2 and offered.shape[0] > 0 and offered.shape[1] == dimension
    require(good, f"features must have shape (items, {dimension}) with at least one item, got {offered.shape}")
    largest = float(np.einsum("ij,ij->i", offered, offered).max())
    require(np.isfinite(largest), "features must be finite numbers")
    require(largest <= LARGEST_SQUARE, f"features must have norm <= 1, got {largest**0.5:.6g}")
    return offered


def _find_only_click(policy: str, length: int, click: Click) -> int | None:
    """The click of a cascade; refuse more than that where a policy splits each reward between two parts of theta."""
    if not isinstance(click, Examination):
        return click
    first = click.clicks[0] if click.clicks else None
    require(click == follow_cascade(length, first), f"{policy} learns from one click, and from what is above it, alone")
    return first
