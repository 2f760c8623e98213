"""The same Trace as the reference loop, on an NVIDIA GPU."""
