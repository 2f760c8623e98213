"""The name under which the command line finds ``shares_report``."""

from fedcascade.experiments.reports.shares_report import HEADER, write_report

__all__ = ["HEADER", "write_report"]
