"""The heterogeneity graph (Algorithm 3): agents share within connected components, and data refute edges."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from fedcascade.checks import POSITIVE, require
from fedcascade.constants import Part, constant, enum_values
from fedcascade.federation.grouping.graph.search import connect_to_all, delete_refuted_edges, find_components
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.platforms import measure_memory


def describe_alpha_d(default: float) -> Any:
    """Describe the field alpha_d of a grouping that deletes edges (Algorithm 3, line 9)."""
    meaning = "an edge is deleted beyond this many confidence widths"
    return constant(default, meaning=meaning, symbol="alpha_d", range=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class HeterogeneityGraph(Part):
    """Connected components of a graph that starts complete and loses refuted edges. It takes n^2 bytes."""

    alpha_d: float = describe_alpha_d(7.0)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return GraphPartition(holdings, self.alpha_d)


class Width(StrEnum):
    """F(T) of CLUB-cascade: sqrt(1 + ln(1 + T)) over sqrt(1 + T) in its paper, over 1 + T in its authors' code."""

    CODE = "code"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class ClubGraph(HeterogeneityGraph):
    """The graph of CLUB-cascade: a ``HeterogeneityGraph`` with the F(T) of its authors' code, or of their paper."""

    width: Width = constant(
        Width.CODE, meaning="F(T) of the authors' code or of their paper, which is sqrt(1 + T) times as wide",
        symbol="F", range=enum_values(Width),
    )  # fmt: skip

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return GraphPartition(holdings, self.alpha_d, is_narrow=self.width == Width.CODE)


def require_memory(agents: int) -> None:
    """Reject a complete graph that takes more than half of the machine's memory."""
    memory = measure_memory()
    if memory is None:
        return
    need = f"a complete graph of {agents} agents needs {agents**2 / 1e9:.3g} GB, this machine has {memory / 1e9:.3g}"
    require(agents**2 <= memory // 2, f"{need}: use a policy without a graph, such as population")


class GraphPartition(Partition):
    """The state of a heterogeneity graph: edges, and the partition into connected components."""

    state_names = (*Partition.state_names, "edges")

    def __init__(self, holdings: Holdings, alpha_d: float, *, is_narrow: bool = False) -> None:
        require_memory(len(holdings))
        super().__init__(holdings, np.zeros(len(holdings), np.int64))
        self.alpha_d, self.is_narrow = alpha_d, is_narrow
        self.edges = ~np.eye(len(holdings), dtype=np.bool_)

    def revise(self, agent: int) -> None:
        """Delete the refuted edges of ``agent``, and split its group if any was (Algorithm 3, lines 5 to 13)."""
        held = self.holdings
        width = held.width / np.sqrt(1.0 + held.count) if self.is_narrow else held.width
        if delete_refuted_edges(self.edges, held, width, agent, self.alpha_d):
            self.split_group(int(self.labels[agent]))

    def join(self) -> None:
        """Connect a new agent to all others. Its edges join all groups into one."""
        self.append_edges()
        if len(self) > 1:
            self.pools = {0: sum(self.pools.values(), Statistics.zero(self.holdings.dimension))}
            self.labels[:] = 0
        self.append_agent(next(iter(self.pools), 0))

    def append_edges(self) -> None:
        """Connect a new agent to all others."""
        newcomer = len(self.labels)
        require_memory(newcomer + 1)
        self.edges = append_zeros(self.edges, axes=2)
        connect_to_all(self.edges, newcomer)

    def restart(self, agent: int) -> None:
        """Connect the agent to all others again."""
        connect_to_all(self.edges, agent)
        self.regroup([np.arange(self.labels.size)])

    def forget(self, agent: int) -> None:
        """Remove an agent, and split its group where it was the only connection."""
        label = int(self.labels[agent])
        self.edges = drop_row(self.edges, agent, axes=2)
        super().forget(agent)
        self.split_group(label)

    def split_group(self, label: int) -> None:
        """Replace a group by its connected components."""
        components = find_components(self.edges, np.flatnonzero(self.labels == label))
        if len(components) > 1:
            self.split(label, components)
