"""The exact engine: the Trace of the reference, from compiled code."""
