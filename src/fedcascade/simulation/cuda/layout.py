"""What the host and the kernels of the CUDA engine share: sizes, arrays, and offsets into them."""

from typing import Any, NamedTuple

LANES = 32  # threads of a team that choose its list among the items that all of them scored
NEAR = 40  # largest dimension whose matrices are factorised in shared memory
REGISTERS = 32_768  # of a block, so that two fit into a multiprocessor
DOUBT = 1e-9  # logarithms differ in their last bits: the processor decides what is closer to the level than this
SLOT, RUN, BEGIN, END, FRESH, DOWNLOAD = range(6)  # columns of ``inbox``; from DOWNLOAD on, a download if FRESH
LEVEL, BOUND, SLACK, LAMBDA = range(4)  # columns of ``params``
FIRED, CURSOR, OWN = range(3)  # columns of ``outbox``; from OWN on, the agent's own part
TAUGHT, EXAMINED, CLICKS, ROUNDS, BUFFER = range(5)  # places in an agent's own part; from BUFFER on moment and gram


class Layout(NamedTuple):
    """Offsets in an agent's row: the download (theta first), what it learned since, and its user's theta."""

    root: int  # the inverse root of the download
    gram: int
    moment: int
    numbers: int  # ln det and beta of the download
    own: int  # the agent's own part: TAUGHT, EXAMINED, CLICKS and ROUNDS, then its buffer
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
    """What a kernel is compiled for; device functions take it as their first argument."""

    dimension: int
    fewest_items: int
    most_items: int
    length: int
    lifted: bool
    every_round: bool  # agents decide anew in every round
    teams: int
    width: int  # threads of a team
    layout: Layout

    @property
    def threads(self) -> int:
        return self.teams * self.width


class DeviceArrays(NamedTuple):
    """The argument of a kernel: the arrays of a batch in the memory of the device."""

    inbox: Any  # (blocks, DOWNLOAD + size of a download): who plays which rounds, and new downloads
    rows: Any  # (agents, Layout.size): the state of every agent
    factors: Any  # (agents, 2, d, d): room to factorise where shared memory is too small
    seeds: Any  # (runs,)
    params: Any  # (runs, 4): constants of the policies
    order: Any  # (runs, rounds): the rounds of a segment by agent and time, counted from ``firsts``
    firsts: Any  # (runs,): the first round of the segment
    regret: Any  # (runs, rounds)
    outcome: Any  # (runs, rounds): twice the number of examined items, plus 1 after a click
    lists: Any  # (runs, rounds, length), or no rounds where nobody wants lists
    outbox: Any  # (blocks, OWN + Layout.own_size): how far each agent came, and its own part


class Thread(NamedTuple):
    """Which thread of its block runs, and its place in a team."""

    number: int
    team: int
    lane: int


class BlockTask(NamedTuple):
    """Which rounds a block plays."""

    run: int
    seed: Any
    first: int  # the first round of the segment
    end: int  # where in the order of rounds the block stops


class TeamRound(NamedTuple):
    """The round that a team plays; without items if there is none left for it."""

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
    """What a block knows about its agent: its row in device memory, the rest in shared memory."""

    row: Any
    theta: Any
    truth: Any
    sums: Any  # d numbers that threads hand each other
    theta32: Any
    truth32: Any
    root32: Any  # the lower triangle of the inverse root, row by row
    upper: Any  # (d, d): a Cholesky factor
    root: Any  # (d, d): its inverse root, where agents decide anew


class TeamMemory(NamedTuple):
    """Rounds that are being played, in shared memory; the first axis is the team."""

    score: Any  # (teams, items), single precision
    true_score: Any
    chosen: Any  # (teams, length): the list
    best: Any  # the best list
    values: Any  # scores of the list, later true weights of the best list
    attraction: Any  # true weights of the list
    widths: Any  # squared, in single precision
    attracted: Any
    listed: Any  # (teams, length, d): features of the list
    taught: Any  # (teams,): at least the sum of squared widths of the examined items
    examined: Any
    clicks: Any  # the position of the click, or -1


class SelectionMemory(NamedTuple):
    """What the lanes of a team tell each other to choose a list, in shared memory; the first axis is the team."""

    floors: Any  # a score that enough items reach
    counts: Any  # how many candidates there are
    candidates: Any  # (teams, LANES)
    values: Any
    ties: Any
    x: Any  # (d, 1): the features of one item, in memory of the thread


class Ranking(NamedTuple):
    """By what a list is chosen, by UCB scores or by true weights (the best list), and where it goes."""

    by_weight: bool
    score: Any  # (teams, items), single precision
    margin: float  # how far a score may be off
    theta: Any  # the theta of the scores
    row: Any
    beta: float
    chosen: Any  # (teams, length): the list, best first
    values: Any  # exact values of its items


class AgentProgress(NamedTuple):
    """How far an agent is, and the totals since its download; every thread of its block has a copy."""

    cursor: int
    fired: bool  # a trigger may fire: the host decides
    margin: float
    taught: float
    examined: float
    clicks: float
    rounds: float
