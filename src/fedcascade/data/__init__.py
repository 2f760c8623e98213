"""Files of ratings: read them, fetch public ones, describe them."""

from fedcascade.data.readers import Columns, build_ratings_environment, read_ratings

__all__ = ["Columns", "build_ratings_environment", "read_ratings"]
