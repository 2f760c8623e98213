"""Files of ratings and logs of lists: read them, fetch public ones, describe them."""

from fedcascade.checks import require_extra

require_extra("logs", "reading ratings and logs")
