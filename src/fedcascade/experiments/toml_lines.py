"""Where in a TOML text a key stands, so that a refusal can name its line."""

import re

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([\w\"'.\- ]+?)\s*=")


def line_of(text: str, path: Path) -> int:
    r"""The line of the key at ``path``, or of the nearest thing around it; lines count from 1.

    >>> line_of("a = 1\n[[b]]\nc = 1\n[[b]]\nc = { d = 2 }", ("b", 1, "c", "d"))
    5
    """
    lines = text.splitlines()
    known = _lines(lines)
    depth = next(depth for depth in range(len(path), -1, -1) if path[:depth] in known)
    line = known[path[:depth]]
    for part in path[depth:]:
        line = _further(lines, line, part)
    return line


def _further(lines: list[str], line: int, part: str | int) -> int:
    """The first line from ``line`` on where ``part`` is a key of an inline table."""
    inside = re.compile(rf"[{{,\s]\"?{re.escape(str(part))}\"?\s*=")
    return next((number for number in range(line, len(lines) + 1) if inside.search(" " + lines[number - 1])), line)


def _lines(lines: list[str]) -> dict[Path, int]:
    """The line of every header and of every key that starts a line."""
    found: dict[Path, int] = {(): 1}
    counts: dict[Path, int] = {}
    prefix: Path = ()
    for number, line in enumerate(lines, start=1):
        if header := _HEADER.match(line):
            prefix = _resolved(_split(header[2]), counts, new=header[1] == "[[")
            found.setdefault(prefix, number)
            found.setdefault(prefix[:-1], number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault(prefix + _split(assignment[1]), number)
    return found


def _resolved(parts: Path, counts: dict[Path, int], *, new: bool) -> Path:
    """The path of a header with the number of each array's latest table in it."""
    path: Path = ()
    for depth, part in enumerate(parts, start=1):
        path += (part,)
        if new and depth == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path += (counts[path],)
    return path


def _split(dotted: str) -> Path:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
