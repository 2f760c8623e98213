"""Attacks a real server over loopback, and its files, and prints what held: `make attack`."""
