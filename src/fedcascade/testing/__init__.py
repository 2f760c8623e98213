"""Contracts that ship: your own policy or environment can be checked by what checks ours."""
