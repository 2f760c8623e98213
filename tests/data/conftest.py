"""Real ratings, where they are: their terms do not allow a copy in this project."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("FEDCASCADE_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture(scope="session")
def movielens() -> Path:
    path = SHARED / "data" / "ml-latest-small" / "ratings.csv"
    if not path.is_file():
        pytest.skip(f"MovieLens's ratings.csv is not at {path}; FEDCASCADE_SHARED names the folder above data/")
    return path
