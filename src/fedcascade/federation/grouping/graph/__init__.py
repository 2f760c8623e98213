"""Groups as connected components of a graph of agents: the paper's graph, and a guarded one for servers."""
