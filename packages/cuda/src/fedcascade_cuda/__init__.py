"""The CUDA engine: the Trace of the reference, from an NVIDIA GPU."""
