"""Find the line of a key in a TOML text, for error messages."""

import re

KeyPath = tuple[str | int, ...]  # names of tables and keys, and numbers of tables in an array

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([\w\"'.\- ]+?)\s*=")


def find_line(text: str, path: KeyPath) -> int:
    r"""Return the line of the key at ``path``, or of the innermost table around it; lines count from 1.

    >>> find_line("a = 1\n[[b]]\nc = 1\n[[b]]\nc = { d = 2 }", ("b", 1, "c", "d"))
    5
    """
    lines = text.splitlines()
    line_of_path = _index_lines(lines)
    depth = next(depth for depth in range(len(path), -1, -1) if path[:depth] in line_of_path)
    line = line_of_path[path[:depth]]
    for part in path[depth:]:
        line = _find_inline_key(lines, line, part)
    return line


def _find_inline_key(lines: list[str], line: int, part: str | int) -> int:
    """Return the first line from ``line`` on where ``part`` is a key of an inline table."""
    key = re.compile(rf"[{{,\s]\"?{re.escape(str(part))}\"?\s*=")
    return next((number for number in range(line, len(lines) + 1) if key.search(" " + lines[number - 1])), line)


def _index_lines(lines: list[str]) -> dict[KeyPath, int]:
    """Return the line of every header and of every key that starts a line."""
    line_of_path: dict[KeyPath, int] = {(): 1}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    for number, line in enumerate(lines, start=1):
        if header := _HEADER.match(line):
            prefix = _resolve_header(_split_key(header[2]), counts, new=header[1] == "[[")
            line_of_path.setdefault(prefix, number)
            line_of_path.setdefault(prefix[:-1], number)
        elif assignment := _ASSIGNMENT.match(line):
            line_of_path.setdefault(prefix + _split_key(assignment[1]), number)
    return line_of_path


def _resolve_header(parts: KeyPath, counts: dict[KeyPath, int], *, new: bool) -> KeyPath:
    """Insert the number of each array's latest table into the path of a header."""
    path: KeyPath = ()
    for depth, part in enumerate(parts, start=1):
        path += (part,)
        if new and depth == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path += (counts[path],)
    return path


def _split_key(dotted: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
