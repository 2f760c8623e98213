"""Groups as connected components of a graph of agents: the paper's heterogeneity graph and one for services."""
