"""Contracts that ship: your own policy or environment can be checked by what checks ours."""

from fedcascade.testing.contracts import check_environment, check_oracle, check_policy

__all__ = ["check_environment", "check_oracle", "check_policy"]
