"""Simulation of a policy in an environment."""
