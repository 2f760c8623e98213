"""The same protocol over a network: a server that loses nothing, agents that work offline."""
