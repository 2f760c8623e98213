"""The protocol: who tells what to whom, and when."""
