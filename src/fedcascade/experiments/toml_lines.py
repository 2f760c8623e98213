"""Find the line of a key in a TOML text, for error messages."""

import re

KeyPath = tuple[str | int, ...]  # names of tables and keys, and numbers of tables in an array


def find_line(text: str, path: KeyPath) -> int:
    r"""Return the line of the key at ``path``, or of the innermost table around it; lines count from 1.

    >>> find_line("a = 1\n[[b]]\nc = 1\n[[b]]\nc = { d = 2 }", ("b", 1, "c", "d"))
    5
    """
    lines, line, heads = text.splitlines(), 0, list[int]()
    for part in path:
        if isinstance(part, int):
            line, heads = heads[part] if part < len(heads) else line, []
            continue
        # A key is searched up to the next table of an array, at the top level up to the first table of any kind.
        mark = "[[" if line else "["
        end = next((n for n in range(line + 1, len(lines)) if lines[n].lstrip().startswith(mark)), len(lines))
        name = rf"[\"']?{re.escape(part)}[\"']?"
        keys = [n for n in range(line, end) if re.search(rf"(^|[{{,\s]){name}\s*=", lines[n])]
        heads = [n for n in range(line, len(lines)) if re.match(rf"\s*\[+\s*([\w-]+\.)*{name}\s*\]", lines[n])]
        line = [*keys, *heads, line][0]
    return line + 1
