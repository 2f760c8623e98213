"""The same Trace as the reference loop, compiled."""
