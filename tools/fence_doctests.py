"""An extension of griffe that renders examples in docstrings as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ ]*)>>> .*\n?(?:^[ ]*\S.*\n?)*", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    """Put every example, which starts with >>> and ends with an empty line, into a fence."""
    return EXAMPLE.sub(lambda hit: f"{hit[1]}```pycon\n{hit[0].rstrip()}\n{hit[1]}```\n", docstring)


class FenceDoctests(griffe.Extension):  # type: ignore[misc]
    """An extension that fences the examples of every docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Put examples into fences."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)
