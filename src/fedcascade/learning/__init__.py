"""The mathematics. No I/O, no clock, no randomness of its own."""
