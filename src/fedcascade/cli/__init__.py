"""The command line."""

from fedcascade.cli.commands import main

__all__ = ["main"]
