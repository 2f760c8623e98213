"""Environments: arriving users, items on offer and clicks."""
