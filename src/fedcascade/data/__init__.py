"""Ratings and click logs: reading, fetching and describing."""

from fedcascade.checks import require_extra

require_extra("logs", "reading ratings and logs")
