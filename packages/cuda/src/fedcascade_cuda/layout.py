"""Sizes, arrays and offsets that the host and the kernels of the CUDA engine share."""

from typing import Any, NamedTuple

LANES = 32  # threads of a team that choose its list
NEAR = 40  # largest dimension whose matrices are factorised in shared memory
REGISTERS = 32_768  # per block, so that two blocks fit into a multiprocessor
DOUBT = 1e-9  # the host decides when the growth of ln det is closer to the level than this
SLOT, RUN, BEGIN, END, FRESH, DOWNLOAD = range(6)  # columns of ``inbox``; from DOWNLOAD on, a download if FRESH
LEVEL, BOUND, SLACK, LAMBDA = range(4)  # columns of ``params``
FIRED, CURSOR, OWN = range(3)  # columns of ``outbox``; from OWN on, the agent's own part
WIDTHS, EXAMINED, CLICKS, ROUNDS, BUFFER = range(5)  # indices into the own part; from BUFFER on, moment and gram


class Layout(NamedTuple):
    """Offsets in an agent's row: the download (theta first), its own part since then, and its user's theta."""

    root: int  # the inverse root of the download
    gram: int
    moment: int
    numbers: int  # ln det and beta of the download
    own: int  # the own part: WIDTHS, EXAMINED, CLICKS and ROUNDS, then the buffer
    buffer_moment: int
    buffer_gram: int
    truth: int  # the user's theta
    size: int

    @classmethod
    def of(cls, d: int) -> "Layout":
        """Return the offsets for dimension d."""
        own = 2 * d + 2 * d * d + 2
        buffer = own + BUFFER
        truth = buffer + d + d * d
        return cls(d, d + d * d, d + 2 * d * d, own - 2, own, buffer, buffer + d, truth, truth + d)

    @property
    def own_size(self) -> int:
        return self.truth - self.own


class Shape(NamedTuple):
    """The sizes for which a kernel is compiled; the first argument of device functions."""

    dimension: int
    fewest_items: int
    most_items: int
    length: int
    lifted: bool
    every_round: bool  # agents solve for their decision in each round
    teams: int
    width: int  # threads of a team
    layout: Layout

    @property
    def threads(self) -> int:
        return self.teams * self.width


class DeviceArrays(NamedTuple):
    """The argument of a kernel: the arrays of a batch in the memory of the device."""

    inbox: Any  # (blocks, DOWNLOAD + size of a download): agents, their rounds and new downloads
    rows: Any  # (agents, Layout.size): the state of every agent
    factors: Any  # (agents, 2, d, d): workspace for factors that do not fit into shared memory
    seeds: Any  # (runs,)
    params: Any  # (runs, 4): constants of the policies
    order: Any  # (runs, rounds): rounds of a segment by agent and time, relative to ``firsts``
    firsts: Any  # (runs,): the first round of the segment
    regret: Any  # (runs, rounds)
    outcome: Any  # (runs, rounds): twice the number of examined items, plus 1 after a click
    lists: Any  # (runs, rounds, length), or no rounds if lists are not kept
    outbox: Any  # (blocks, OWN + Layout.own_size): each agent's progress and own part


class Thread(NamedTuple):
    """The number of a thread in its block, and its place in a team."""

    number: int
    team: int
    lane: int


class BlockTask(NamedTuple):
    """The rounds that a block plays."""

    run: int
    seed: Any
    first: int  # the first round of the segment
    end: int  # index in the order of rounds at which the block stops


class TeamRound(NamedTuple):
    """The round that a team plays; without items if no round is left."""

    seed: Any
    t: int
    items: int


class Rules(NamedTuple):
    """Constants of an agent's policy and of its download."""

    level: float
    bound: float
    slack: float
    lambda_: float
    log_det: float
    beta: float


class AgentMemory(NamedTuple):
    """The agent of a block: its row in device memory, the rest in shared memory."""

    row: Any
    theta: Any
    truth: Any
    sums: Any  # d numbers, to pass between threads
    theta32: Any
    truth32: Any
    root32: Any  # the lower triangle of the inverse root, row by row
    upper: Any  # (d, d): a Cholesky factor
    root: Any  # (d, d): its inverse root, if agents solve in each round


class TeamMemory(NamedTuple):
    """The rounds being played, in shared memory; the first axis is the team."""

    score: Any  # (teams, items), single precision
    true_score: Any
    chosen: Any  # (teams, length): the list
    best: Any  # the best list
    values: Any  # scores of the list, later true weights of the best list
    attraction: Any  # true weights of the list
    widths: Any  # squared, in single precision
    attracted: Any
    listed: Any  # (teams, length, d): features of the list
    width_sums: Any  # (teams,): upper bounds of the sums of squared widths of examined items
    examined: Any
    clicks: Any  # the position of the click, or -1


class SelectionMemory(NamedTuple):
    """Memory that the lanes of a team share to choose a list; the first axis is the team."""

    floors: Any  # a score that enough items reach
    counts: Any  # numbers of candidates
    candidates: Any  # (teams, LANES)
    values: Any
    ties: Any
    x: Any  # (d, 1): features of one item, in the thread's own memory


class Ranking(NamedTuple):
    """The criterion of a list, UCB scores or true weights (for the best list), and its destination."""

    by_weight: bool
    score: Any  # (teams, items), single precision
    margin: float  # largest error of a score
    theta: Any  # theta of the scores
    row: Any
    beta: float
    chosen: Any  # (teams, length): the list, best first
    values: Any  # exact values of its items


class AgentProgress(NamedTuple):
    """The position of an agent, and its totals since the download; each thread of the block has a copy."""

    cursor: int
    fired: bool  # a trigger may fire: the host decides
    margin: float
    width_sum: float
    examined: float
    clicks: float
    rounds: float
