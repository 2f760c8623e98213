"""Conformance vectors: the results of the Python agent, for agents in other languages."""
