"""What is timed is what the README tells a newcomer to do."""

import pytest
from time_first_minute import ROOT, read_readme


def test_the_first_block_and_the_first_command_of_the_readme_are_timed() -> None:
    block, arguments = read_readme((ROOT / "README.md").read_text("utf-8"))
    assert block.startswith("from fedcascade import ")
    assert arguments == ["run"]


def test_a_readme_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a Python block and name the command"):
        read_readme("```python\nprint(1)\n```\n")
