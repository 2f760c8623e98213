"""The name under which the command line finds ``shares``."""

from fedcascade.experiments.shares import has_shares as is_living

__all__ = ["is_living"]
