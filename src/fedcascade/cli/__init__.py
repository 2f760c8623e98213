"""What people type and see."""

from fedcascade.cli.commands import main

__all__ = ["main"]
