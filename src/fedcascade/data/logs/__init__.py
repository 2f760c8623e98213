"""Click logs: reading in batches, writing and describing."""

from fedcascade.data.logs.reader import Log, read_history, read_log
from fedcascade.data.logs.writer import write_log

__all__ = ["Log", "read_history", "read_log", "write_log"]
