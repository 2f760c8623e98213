"""The agent of one user as values: recommend, observe, upload, receive (Algorithm 2). No files, no network.

Each transition is a function from one state to the next, as in ``packages/agent/src/agent.js``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.own_data import OwnData, unpack_row
from fedcascade.federation.own_data_keeper import OwnDataKeeper, make_policy_data
from fedcascade.federation.personal import PersonalEstimate
from fedcascade.federation.policies import Policy
from fedcascade.federation.privacy import LARGEST_SQUARE, NoiseSource, SystemNoise
from fedcascade.federation.triggers import Occasion
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import ItemAttributes, Oracle, check_list, read_attributes
from fedcascade.learning.ridge import LinearEstimate, Ridge, compute_log_det
from fedcascade.learning.statistics import Statistics

OPEN_LISTS = 1024  # drop a list without feedback after 1024 newer ones
STATE_FORMAT = 2
SAVED = ("arrivals", "uploads", "buffer", "unanswered", "change_pending")  # fields saved unchanged
LIST_FIELDS = ("impression", "items", "features", "propensities")  # saved of an open list
Click = int | Examination | None  # the clicked position, counted from 0; an examination; or no click


@dataclass(frozen=True, eq=False)
class ShownList:
    """A list that an agent showed: the items, first position first, and their features, one row each.

    ``propensities`` are the probabilities of the items, each given those above it, if the oracle explores.
    """

    agent: int
    impression: int
    items: NDArray[np.intp]
    features: NDArray[np.float32]
    propensities: NDArray[np.float64] | None = None


class LocalState(NamedTuple):
    """The state of an agent; its arrays never change in place.

    ``unanswered`` sums the uploads without an answer. ``own`` holds own data if the policy keeps them apart, and
    ``personal`` the part of theta that is never uploaded. ``change_pending`` marks a changed user whose ``CHANGE``
    upload has not been sent. ``decision`` is the estimate that scores items. ``pushed`` replaces the download at the
    next list that the agent learns from. ``first`` sums the first items since the last upload, which are all that a
    private upload holds.
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
    pushed: Statistics | None = None
    first: Statistics | None = None

    @property
    def dimension(self) -> int:
        return self.buffer.dimension

    @property
    def own_total(self) -> Statistics:
        """All own data since the last change of the user."""
        assert self.own is not None
        return unpack_row(self.own.total, self.dimension)


Sent = tuple[LocalState, Upload | None]


def begin(policy: Policy, dimension: int, id: int = 0) -> LocalState:  # noqa: A002
    """Return the state of an agent without data."""
    nothing, part = Statistics.zero(dimension), policy.personal
    ridge = Ridge(nothing, policy.lambda_)
    own = make_policy_data(policy, (), dimension) if policy.keeps_own_data else None
    personal = None if part is None else part.begin(dimension, policy.lambda_)
    first = None if policy.privacy is None else nothing
    state = LocalState(id, 0, 0, nothing, nothing, ridge, ridge, own, personal, first=first)
    return decide(policy, _weigh(policy, state))


def decide(policy: Policy, state: LocalState) -> LocalState:
    """Update the estimate from the last download and pending own data."""
    shared = policy.decision.ridge(state.download, sum_pending(state))
    decision = shared if state.personal is None else state.personal.join(shared)
    return state if decision is state.decision else state._replace(decision=decision)


def sum_pending(state: LocalState) -> Statistics:
    """Sum the own data that the last download does not hold."""
    return state.unanswered + state.buffer if state.unanswered.rounds else state.buffer


def compute_beta(policy: Policy, state: LocalState, problem: ProblemSize) -> float:
    """Compute beta; with ``trust``, the policy states it in standard deviations of a click."""
    deviation = 1.0 if state.own is None or policy.trust is None else float(state.own.deviation[0])
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
    measure = getattr(oracle, "propensities", None)  # of an oracle that explores
    chances = None if measure is None else measure(scores, chosen)
    return ShownList(state.id, state.arrivals + 1, chosen, offered[chosen], chances)


def observe(policy: Policy, state: LocalState, shown: ShownList, click: Click, *, round_: int, draw: float) -> Sent:
    """Algorithm 2, lines 4 to 19: learn from a click, and upload if the trigger fires.

    Each list may be observed once. ``round_`` is t, and ``draw`` a uniform number for triggers that upload at random.
    """
    if state.pushed is not None:
        state = state._replace(download=Ridge(state.pushed, policy.lambda_), pushed=None)
    seen = click if isinstance(click, Examination) else follow_cascade(len(shown.items), click)
    learned = _follow_user(policy, _add_list(policy, state, shown, seen), shown, seen)
    if learned.change_pending:
        sent, upload = _send_if_due(policy, learned)
    else:
        occasion = Occasion(
            round=round_, draw=draw, arrivals=shown.impression, download=learned.download, buffer=learned.buffer
        )
        cause = policy.trigger.cause(occasion)
        sent, upload = (learned, None) if cause is None else send_buffer(policy, learned, cause)
    return decide(policy, sent), upload


def correct(policy: Policy, state: LocalState, difference: Statistics, round_: int) -> LocalState:
    """Add the difference of a late reward to the buffer and to own data; the next upload carries it.

    ``round_`` numbers the list among the rounds of own data.
    """
    require(state.personal is None, f"{policy.name} splits each reward once, and learns no late ones")
    after = state._replace(buffer=state.buffer + difference)
    if state.own is not None:
        keeper = _keep_own_data(policy, state, "total", "blocks")
        keeper.correct(difference, round_)
        after = _weigh(policy, after._replace(own=keeper.data))
    return decide(policy, after)


def _add_list(policy: Policy, state: LocalState, shown: ShownList, seen: Examination) -> LocalState:
    if state.first is not None:
        state = state._replace(first=state.first.observe(shown.features[:1], _keep_first(seen)))
    if state.personal is None:
        return state._replace(buffer=state.buffer.observe(shown.features, seen))
    plain = follow_cascade(len(shown.items), seen.clicks[0] if seen.clicks else None)
    is_plain = (seen.examined, seen.clicks) == (plain.examined, plain.clicks)
    require(is_plain, f"{policy.name} learns from the first click of a list only")
    known = state.download.statistics
    buffer, personal = state.personal.observe(known, state.buffer, shown.features, seen)
    return state._replace(buffer=buffer, personal=personal)


def _keep_first(seen: Examination) -> Examination:
    """Return the part of the feedback that is about the first item."""
    return Examination(1, (0,), seen.values[:1] * (seen.rewards != ())) if 0 in seen.clicks else Examination(1)


def _follow_user(policy: Policy, state: LocalState, shown: ShownList, seen: Examination) -> LocalState:
    """Detect a changed user in own data, and weigh others' data."""
    if state.own is None:
        return state
    keeper = _keep_own_data(policy, state, *(("total",) if policy.changes is None else ()))
    has_changed = keeper.follow(shown.features, seen, state.decision)
    followed = state._replace(own=keeper.data)
    if has_changed:
        return restart(policy, followed, keeper.total)
    return _weigh(policy, followed) if keeper.is_weighing_due() else followed


def _keep_own_data(policy: Policy, state: LocalState, *changed: str) -> OwnDataKeeper:
    """Return a keeper of own data that may change the named arrays, which are copied; all arrays if none is named."""
    if state.own is None:
        return OwnDataKeeper(policy, state.dimension)
    copies = {name: getattr(state.own, name).copy() for name in changed or OwnData._fields}
    return OwnDataKeeper(policy, state.dimension, state.own._replace(**copies))


def _weigh(policy: Policy, state: LocalState) -> LocalState:
    """Weigh others' data if the policy has ``trust``."""
    if policy.trust is None:
        return state
    keeper = _keep_own_data(policy, state, "weight", "deviation")
    return state._replace(download=Ridge(keeper.weigh(sum_pending(state)), policy.lambda_), own=keeper.data)


def restart(policy: Policy, state: LocalState, kept: Statistics) -> LocalState:
    """Start over for a changed user, with ``kept`` as the buffer; a ``CHANGE`` upload becomes pending."""
    nothing, own = Statistics.zero(state.dimension), None
    if policy.keeps_own_data:
        keeper = _keep_own_data(policy, state)
        keeper.restart(kept)
        own = keeper.data
    first = None if state.first is None else nothing
    fresh = state._replace(buffer=kept, unanswered=nothing, own=own, change_pending=True, first=first)
    return decide(policy, _weigh(policy, fresh._replace(download=Ridge(nothing, policy.lambda_))))


def restart_own_data(policy: Policy, state: LocalState, held: Statistics) -> LocalState:
    """Rebuild own data from ``held`` at the server and pending data; others' data come with the next download.

    A download before the first upload holds others' data only.
    """
    if not policy.keeps_own_data:
        return decide(policy, state._replace(own=None))
    pending, known = sum_pending(state), state.download.statistics
    if policy.privacy is not None:  # the server's copy has noise
        held = Statistics.zero(state.dimension) if state.own is None else state.own_total - pending
    keeper = _keep_own_data(policy, state)
    keeper.restart(held + pending)
    if policy.trust is None:
        return decide(policy, state._replace(own=keeper.data))
    is_newcomer = held.count == known.count == 0
    weighed = keeper.receive(known, pending) if is_newcomer else keeper.weigh(pending)
    return decide(policy, state._replace(own=keeper.data, download=Ridge(weighed, policy.lambda_)))


def fits_policy(policy: Policy, own: OwnData | None) -> bool:
    """Return whether own data have the policy's layout, and their prior is valid under its lambda."""
    if own is None or not policy.keeps_own_data:
        return own is None and not policy.keeps_own_data
    is_alike = own.blocks.shape == make_policy_data(policy, (), own.others_moment.size).blocks.shape
    return is_alike and (policy.trust is None or is_prior(own.others_gram, policy.lambda_))


def is_prior(gram: NDArray[np.float64], lambda_: float) -> bool:
    """Return whether lambda I + gram has a Cholesky factor."""
    return math.isfinite(compute_log_det(gram, lambda_))


def send_buffer(policy: Policy, state: LocalState, cause: Cause) -> tuple[LocalState, Upload]:
    """Algorithm 1, line 8: send the buffer, and start an empty one.

    With ``privacy``, the upload holds the first items, and ``PrivateUploads.release`` has to add noise to it. Answers
    then hold others' data only, so the agent's own data join the download at once.
    """
    sent, nothing = state.buffer, Statistics.zero(state.dimension)
    uploaded, first = (sent, None) if state.first is None else (state.first, nothing)
    upload = Upload(agent=state.id, sequence=state.uploads + 1, cause=cause, statistics=uploaded)
    known = policy.reply_rule.keep_unanswered(state.download.statistics, sent)
    if policy.privacy is not None:
        known = state.download.statistics + sent
    after = state._replace(uploads=upload.sequence, buffer=nothing, change_pending=False, first=first)
    if known is None:
        return after._replace(unanswered=state.unanswered + sent), upload
    return after._replace(download=Ridge(known, policy.lambda_)), upload


def _send_if_due(policy: Policy, state: LocalState, least: int = 1) -> Sent:
    """Send the buffer if it has ``least`` observations; a ``CHANGE`` upload also needs the trigger's minimum."""
    floor = max(1, least, policy.trigger.least if state.change_pending else 0)
    if state.buffer.count < floor:
        return state, None
    return send_buffer(policy, state, Cause.CHANGE if state.change_pending else Cause.FORCED)


def take_back(policy: Policy, state: LocalState, statistics: Statistics, least: int = 1) -> Sent:
    """Put statistics back into the buffer, and send it if it has ``least`` observations.

    With ``privacy`` nothing is sent, because no list may be in two uploads; own data hold the statistics already.
    """
    if policy.privacy is not None:
        return decide(policy, _weigh(policy, state)), None
    fuller = state._replace(buffer=state.buffer + statistics)
    sent, upload = _send_if_due(policy, fuller if fuller.change_pending else _weigh(policy, fuller), least)
    return decide(policy, sent), upload


def receive(
    policy: Policy, state: LocalState, download: Statistics, unanswered: Statistics | None = None
) -> LocalState:
    """Algorithm 1, line 11: replace the download; ``unanswered`` sums the uploads after the answered one."""
    nothing = Statistics.zero(state.dimension) if unanswered is None else unanswered
    after = state._replace(unanswered=nothing)
    if policy.trust is not None:
        keeper = _keep_own_data(policy, state)
        download, after = keeper.receive(download, sum_pending(after)), after._replace(own=keeper.data)
    return decide(policy, after._replace(download=Ridge(download, policy.lambda_)))


def trim_download(policy: Policy, state: LocalState, download: Statistics, unanswered: Statistics) -> Statistics:
    """Return the usable part of a download: all of it, or own data if the rest is no valid prior.

    The rest is invalid if the server holds other data of this agent than the agent has sent. Both compare sums later.
    ``receive`` rejects a download that is invalid as a whole.
    """
    if policy.trust is None:
        return download
    own = state.own_total - (unanswered + state.buffer)
    if policy.privacy is not None:  # an answer holds others' data only
        own = Statistics.zero(state.dimension)
    if is_prior(download.gram - own.gram, policy.lambda_):
        return download
    require(is_prior(download.gram, policy.lambda_), "gram must be positive semi-definite")
    return own if own.count >= 0 else Statistics.zero(state.dimension)


def skip_answer(policy: Policy, state: LocalState, upload: Statistics, unanswered: Statistics) -> LocalState:
    """Count an upload whose answer cannot be used; others' data stay those of the last download."""
    after = state._replace(unanswered=unanswered)
    if policy.trust is not None:
        return decide(policy, _weigh(policy, after))
    return decide(policy, after._replace(download=Ridge(state.download.statistics + upload, policy.lambda_)))


def learn_before(policy: Policy, state: LocalState, statistics: Statistics) -> LocalState:
    """Add the user's history to own data; ``take_back`` sends it."""
    if not policy.keeps_own_data:
        return state
    keeper = _keep_own_data(policy, state)
    keeper.restart(keeper.total + statistics)
    return state._replace(own=keeper.data)


class Agent:
    """The agent of one user: a state, and the transitions above. ``noise`` is that of private uploads."""

    def __init__(
        self,
        *,
        id: int,  # noqa: A002
        policy: Policy,
        problem: ProblemSize,
        oracle: Oracle,
        noise: NoiseSource | None = None,
    ) -> None:
        self.noise = noise or SystemNoise()
        self.policy, self.open_lists = policy, OPEN_LISTS
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
            features: one row per item, of norm at most 1.
            ties: one random word per item; the larger one breaks ties.
            categories: an integer per item, for the oracle ``PerCategory``.
            costs: a number per item, for the oracle ``Budget``.
        """
        offered = read_features(features, self.problem.dimension)
        attributes = read_attributes(len(offered), categories, costs)
        shown = choose_list(
            self.policy, self.state, offered, ties, attributes, oracle=self.oracle, problem=self.problem
        )
        self.state = self.state._replace(arrivals=shown.impression)
        self._open[shown.impression] = shown
        self._open.pop(shown.impression - self.open_lists, None)
        return shown

    def observe(self, shown: ShownList, click: Click, *, round_: int, draw: float) -> Upload | None:
        """Learn once from a list that ``recommend`` returned; return the upload to send, if any."""
        if self._open.get(shown.impression) is not shown:
            expected = "give feedback once, for a list that this agent has shown"
            raise ValueError(f"agent {self.id} has no open list {shown.impression}: {expected}")
        self.state, upload = observe(self.policy, self.state, shown, click, round_=round_, draw=draw)
        del self._open[shown.impression]
        if upload is None or self.policy.privacy is None:
            return upload
        return self.policy.privacy.release(upload, self.noise)

    def receive(self, download: Statistics) -> None:
        """Replace the last download."""
        download.check(self.problem.dimension)
        self.state = receive(self.policy, self.state, download)

    def push(self, download: Statistics) -> None:
        """Replace the last download at the next list that the agent learns from."""
        download.check(self.problem.dimension)
        self.state = self.state._replace(pushed=download)

    def restart(self, kept: Statistics) -> None:
        """Start over for a changed user, keeping ``kept``; a ``CHANGE`` upload becomes pending."""
        self.state = restart(self.policy, self.state, kept)

    def send_buffer(self, cause: Cause) -> Upload:
        """Send the buffer, whatever the trigger says; refuse to send that of a private agent, which has no noise."""
        require(self.policy.privacy is None, "a private agent uploads on its schedule only")
        self.state, upload = send_buffer(self.policy, self.state, cause)
        return upload

    def take_back(self, statistics: Statistics, least: int) -> Upload | None:
        """Put statistics back into the buffer, and send it if it has ``least`` observations."""
        self.state, upload = take_back(self.policy, self.state, statistics, least)
        return upload

    def learn_before(self, statistics: Statistics) -> None:
        """Add the user's history to own data; ``take_back`` sends it."""
        self.state = learn_before(self.policy, self.state, statistics)

    def get_open_list(self, impression: int) -> ShownList:
        """Return a list without feedback by its number."""
        require(impression in self._open, f"agent {self.id} has no open list {impression}")
        return self._open[impression]

    def to_state(self) -> dict[str, Any]:
        """Return the state as values and arrays, without id, policy, problem size and oracle."""
        state = self.state
        return {
            "format": STATE_FORMAT,
            **{name: getattr(state, name) for name in SAVED},
            "pushed": state.pushed,
            "download": state.download.statistics,
            "personal": None if state.personal is None else state.personal.statistics,
            "own_data": None if state.own is None else state.own._asdict(),
            "shown": [{name: getattr(shown, name) for name in LIST_FIELDS} for shown in self._open.values()],
        } | ({} if state.first is None else {"first": state.first})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of ``to_state`` of an agent with the same policy."""
        written, lambda_ = state["format"], self.policy.lambda_
        require(written == STATE_FORMAT, f"the state of an agent must have format {STATE_FORMAT}, got {written}")
        known = {name: state[name] for name in SAVED}
        known |= {name: state.get(name) for name in ("pushed", "first")}  # states of 0.3 lack them
        own = None if self.state.own is None else OwnData(**state["own_data"])
        personal = None if self.state.personal is None else PersonalEstimate(state["personal"], lambda_)
        loaded = self.state._replace(**known, download=Ridge(state["download"], lambda_), own=own, personal=personal)
        self.state = decide(self.policy, loaded)
        self._open = {shown["impression"]: ShownList(self.id, **shown) for shown in state["shown"]}


def read_features(features: ArrayLike, dimension: int) -> NDArray[np.float32]:
    """Return the features of items as an array; reject other shapes and norms above 1."""
    offered = np.asarray(features)
    if offered.dtype != np.float32:
        with np.errstate(over="ignore"):  # overflow is rejected below
            offered = offered.astype(np.float32)
    if offered.ndim != 2 or offered.shape[0] == 0 or offered.shape[1] != dimension:
        raise ValueError(f"features must have shape (items, {dimension}) with at least one item, got {offered.shape}")
    largest = float(np.einsum("ij,ij->i", offered, offered).max())
    require(math.isfinite(largest), "features must be finite numbers")
    if largest > LARGEST_SQUARE:
        raise ValueError(f"features must have norm <= 1, got {largest**0.5:.6g}")
    return offered
