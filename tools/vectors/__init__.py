"""Conformance vectors: what the Python agent does, case by case, for agents in other languages to agree with."""
