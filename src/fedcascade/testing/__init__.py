"""Contracts for your own environments, oracles, policies and stores. Ours pass the same ones."""

from fedcascade.testing.contracts import check_environment, check_oracle, check_policy

__all__ = ["check_environment", "check_oracle", "check_policy"]
