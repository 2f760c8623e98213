"""A bundler of ES modules: one file without comments and indentation, otherwise as written.

It handles the syntax of this project's own modules: imports and exports on one line each, no cycles of imports, and no
template of several lines. Every module becomes a function, so that private names cannot collide.
"""

import re
from collections.abc import Callable

from fedcascade.checks import require

# A comment on lines of its own, one of JSDoc inside a line, and one at the end of a line. One of the last kind with a
# quote stays: its slashes may be inside a text.
COMMENT = re.compile(
    r"""^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t]*)\n|/\*\* @[^\n]*?\*/ ?| // [^'"`\n]*$""", re.DOTALL | re.MULTILINE
)
IMPORT = re.compile(r'(import|export) \{([^}]*)\} from "\./([\w-]+)\.js";')
EXPORT = re.compile(r"export (?=(?:(?:async )?function\*?|class|const) (\w+))")
EXTERNAL = re.compile(r'import .* from "/.*";')


def bundle(entry: str, read: Callable[[str], str]) -> str:
    """Bundle a module with all that it imports; ``read`` returns the source of a file."""
    bundled: dict[str, list[str]] = {}  # lines by module
    waiting: list[str] = []

    def add_module(name: str) -> None:
        require(name not in waiting, f"modules import each other in a cycle: {' -> '.join([*waiting, name])}")
        if name in bundled:
            return
        waiting.append(name)
        body, exported = list[str](), list[str]()
        for line in map(str.strip, COMMENT.sub("", read(f"{name}.js")).splitlines()):
            require(line.count("`") % 2 == 0, f"{name}.js: cannot bundle a template of several lines: '{line}'")
            if found := IMPORT.fullmatch(line):
                add_module(found[3])
                body.append(_bind(*found.groups()))
            elif name == entry:
                is_external = EXTERNAL.fullmatch(line) is not None
                require(is_external or not line.startswith("import "), f"{name}.js: cannot bundle '{line}'")
                body.append(line)
            else:
                body.append(EXPORT.sub("", line))
                exported += EXPORT.findall(line)
                require(not body[-1].startswith(("import ", "export ")), f"{name}.js: cannot bundle '{line}'")
        if name != entry:
            body = [f"const {_name(name)} = (() => {{", *body, f"return {{ {', '.join(exported)} }};", "})();"]
        bundled[name] = [*body, ""]
        waiting.pop()

    add_module(entry)
    return "\n".join(line for body in bundled.values() for line in body)


def _name(module: str) -> str:
    """Return the variable that holds a module's exports."""
    return f"${module.replace('-', '_')}"


def _bind(kind: str, names: str, module: str) -> str:
    """Return the line that replaces an import, or an export of another module's names."""
    pairs = [name.strip().partition(" as ") for name in names.split(",")]
    if kind == "import":
        bound = ", ".join(f"{name}: {other}" if other else name for name, _, other in pairs)
        return f"const {{ {bound} }} = {_name(module)};"
    bound = ", ".join(f"${name} = {_name(module)}.{name}" for name, _, _ in pairs)
    exported = ", ".join(f"${name} as {other or name}" for name, _, other in pairs)
    return f"const {bound}; export {{ {exported} }};"
