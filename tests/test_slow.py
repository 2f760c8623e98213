"""The list of slow tests names tests that exist."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", [line for line in LINES if line and not line.startswith("#")])
def test_every_line_names_tests(line: str) -> None:
    path, _, name = line.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
