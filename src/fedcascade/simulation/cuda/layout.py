"""Where things are in the arrays that the host and the kernels of the CUDA engine share."""

from typing import NamedTuple

LANES = 32  # of a team, so many choose the list among what all have scored
NEAR = 40  # matrices of up to so many dimensions are factorised in shared memory
REGISTERS = 32_768  # of a block, so that two fit into a multiprocessor
DOUBT = 1e-9  # logarithms differ in their last bits: what is closer to the level is for the processor to decide
SLOT, RUN, BEGIN, END, FRESH, DOWNLOAD = range(6)  # columns of ``inbox``; from DOWNLOAD on, a download if fresh
LEVEL, BOUND, SLACK, LAMBDA = range(4)  # columns of ``params``
FIRED, CURSOR, OWN = range(3)  # columns of ``outbox``; from OWN on, the agent's own part
TAUGHT, EXAMINED, CLICKS, ROUNDS, BUFFER = range(5)  # places in an agent's own part; from BUFFER on moment and gram


class Layout(NamedTuple):
    """Where an agent's numbers are in its row: the download, then what it learned since, then its user's theta."""

    dimension: int

    @property
    def root(self) -> int:
        """Where the inverse root begins; theta is at 0."""
        return self.dimension

    @property
    def gram(self) -> int:
        """Where the gram of the download begins."""
        return self.root + self.dimension**2

    @property
    def moment(self) -> int:
        """Where the moment of the download begins."""
        return self.gram + self.dimension**2

    @property
    def numbers(self) -> int:
        """Where ln det and beta of the download are."""
        return self.moment + self.dimension

    @property
    def own(self) -> int:
        """Where the agent's own part begins."""
        return self.numbers + 2

    @property
    def truth(self) -> int:
        """Where the user's theta begins."""
        return self.own + self.own_size

    @property
    def own_size(self) -> int:
        """Numbers of the own part: four, moment and gram of the buffer."""
        return BUFFER + self.dimension + self.dimension**2

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return self.truth + self.dimension


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    dimension: int
    fewest_items: int
    most_items: int
    length: int
    lifted: bool
    every_round: bool
    teams: int
    width: int  # threads of a team
