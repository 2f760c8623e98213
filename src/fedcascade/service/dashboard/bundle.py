"""A bundler of ES modules: one file without comments, indentation and needless spaces, and its source map.

It handles the syntax of this project's own modules: imports and exports on one line each, and no cycles of imports.
Every module becomes a function, so that private names cannot collide. Lines stay lines, so the map has one entry for
each.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from fedcascade.checks import require

IMPORT = re.compile(r'(import|export) ?\{([^}]*)\} ?from ?"\./([\w-]+)\.js";?')
EXPORT = re.compile(r"export ((?:async )?function\*?|class|const) ?(\w+)")
# Text to copy as it is, comments, and signs around which spaces are not needed. A slash after a sign starts a regex.
TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"""|(?<=[(,=:!&|?{;\s])/(?![*/\s])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[a-z]*)|(?P<mark>`)"""
    r"""|(?P<space>[ \t]*\n\s*|[ \t]*(?P<sign>[(){}\[\],;:=<>?&|*!])[ \t]*"""
    r"""|[ \t]+(?P<operator>[-+/%])[ \t]+(?![-+])|[ \t]+)""",
    re.DOTALL,
)
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@dataclass
class Bundle:
    """The lines of a bundle, the file and line that each comes from, and the source of each file."""

    lines: list[str] = field(default_factory=list)
    origins: list[tuple[str, int]] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    def add(self, line: str, file: str, number: int) -> None:
        self.lines.append(line)
        self.origins.append((file, number))

    @property
    def text(self) -> str:
        """The text of the bundle, without a reference to its map."""
        return "\n".join(self.lines) + "\n"

    def build_map(self, name: str) -> str:
        """Build the source map, version 3, of a bundle that is served under ``name``."""
        files, last, mappings = list(self.sources), (0, 0), []
        for file, number in self.origins:
            place = files.index(file), number
            mappings.append("".join(map(encode_vlq, (0, place[0] - last[0], place[1] - last[1], 0))))
            last = place
        sources = {"sources": [f"src/{file}" for file in files], "sourcesContent": list(self.sources.values())}
        return json.dumps({"version": 3, "file": name, **sources, "names": [], "mappings": ";".join(mappings)})


def encode_vlq(number: int) -> str:
    """Encode a number of a source map.

    >>> encode_vlq(0), encode_vlq(-1), encode_vlq(16)
    ('A', 'D', 'gB')
    """
    left, digits = (abs(number) << 1) | (number < 0), ""
    while True:
        digit, left = left & 31, left >> 5
        digits += DIGITS[digit | (32 if left else 0)]
        if not left:
            return digits


def strip(source: str) -> list[tuple[str, int]]:
    """Return the lines without comments and needless spaces, each with its number in the source, counted from 0."""
    lines, number, at, depth = [("", 0)], 0, 0, list[int]()  # depth: open braces in each open ${ }

    def put(text: str, mark: str = "") -> None:
        nonlocal number
        for part in re.split(r"(\n)", text):
            number += part == "\n"
            if part == "\n" and not mark:
                lines.append(("", number))
            else:
                lines[-1] = lines[-1][0] + part, lines[-1][1]

    while at < len(source):
        if depth and depth[-1] < 0:  # inside the text of a template
            found = re.compile(r"(?:\\.|[^`$\\]|\$(?!\{))*(`|\$\{)", re.DOTALL).match(source, at)
            require(found is not None, "a template of a script has no end")
            assert found is not None
            put(found[0], "template")
            at = found.end()
            depth.pop() if found[1] == "`" else depth.__setitem__(-1, 0)
            continue
        found = TOKEN.search(source, at)
        put(source[at : found.start() if found else len(source)])
        if found is None:
            break
        at = found.end()
        if found["comment"]:
            number += found[0].count("\n")
        elif found["space"]:
            put("\n" * found[0].count("\n") if "\n" in found[0] else found["sign"] or found["operator"] or " ")
            if depth:
                depth[-1] += {"{": 1, "}": -1}.get(found["sign"], 0)
            if depth and depth[-1] < 0:  # the code in a template ends; spaces after it are text
                at = found.end("sign")
        else:
            put(found[0])
            depth += [-1] * (found["mark"] == "`")
    return [(line.strip(), number) for line, number in lines if line.strip()]


def bundle(entry: str, read: Callable[[str], str]) -> Bundle:
    """Bundle a module with all that it imports; ``read`` returns the source of a file."""
    made, waiting = Bundle(), list[str]()

    def add_module(name: str) -> None:
        require(name not in waiting, f"modules import each other in a cycle: {' -> '.join([*waiting, name])}")
        file = f"{name}.js"
        if file in made.sources:
            return
        waiting.append(name)
        source, exported, body = read(file), list[str](), list[tuple[str, int]]()
        for line, number in strip(source):
            if found := IMPORT.fullmatch(line):
                add_module(found[3])
                body.append((_bind(*found.groups()), number))
            else:
                is_external = name == entry and re.search(r'from ?"/', line) is not None
                require(is_external or not re.match(r"import\b[^(]", line), f"{file}: cannot bundle '{line}'")
                exported += [] if name == entry else [found[2] for found in EXPORT.finditer(line)]
                body.append((line if name == entry else EXPORT.sub(r"\1 \2", line), number))
        waiting.pop()
        made.sources[file] = source
        if name != entry:
            body = [(f"const {_name(name)}=(()=>{{", 0), *body, (f"return{{{','.join(exported)}}}}})();", 0)]
        for line, number in body:
            made.add(line, file, number)

    add_module(entry)
    return made


def _name(module: str) -> str:
    """Return the variable that holds a module's exports."""
    return f"${module.replace('-', '_')}"


def _bind(kind: str, names: str, module: str) -> str:
    """Return the line that replaces an import, or an export of another module's names."""
    pairs = [name.strip().partition(" as ") for name in names.split(",")]
    if kind == "import":
        return f"const{{{','.join(f'{name}:{other}' if other else name for name, _, other in pairs)}}}={_name(module)};"
    bound = ",".join(f"${name}={_name(module)}.{name}" for name, _, _ in pairs)
    return f"const {bound};export{{{','.join(f'${name} as {other or name}' for name, _, other in pairs)}}};"
