"""Statistics, ridge regression, the cascade and oracles, without I/O, clocks or generators of random numbers."""
