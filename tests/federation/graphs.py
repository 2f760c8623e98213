"""What tests ask of a server's graph."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.graph.complete import GraphPartition
from fedcascade.federation.grouping.phases import PhasePartition
from fedcascade.federation.server import Server


def get_edges(server: Server) -> NDArray[np.bool_]:
    """Return the edges of a server whose policy has a heterogeneity graph."""
    assert isinstance(server.groups, GraphPartition | PhasePartition)
    return server.groups.edges
