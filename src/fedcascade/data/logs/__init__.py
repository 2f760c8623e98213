"""Click logs: reading in batches, writing and describing."""

from fedcascade.data.logs.reader import Log, read_history, read_log
from fedcascade.data.logs.writer import LogWriter, write_log

__all__ = ["Log", "LogWriter", "read_history", "read_log", "write_log"]
