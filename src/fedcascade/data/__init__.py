"""Files of ratings: read them, fetch public ones, describe them."""

from fedcascade.data.readers import Columns, ratings_from_file, read_ratings

__all__ = ["Columns", "ratings_from_file", "read_ratings"]
