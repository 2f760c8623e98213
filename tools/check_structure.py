"""Check the shape of the sources: private names, functions, class names, import cycles, size; tests; secrets.

Prints one line for each finding, and exits with 1 if there is any: `make structure`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from source_tree import Module, build_graph, list_imports, read_modules, resolve_source

SRC = Path(__file__).parent.parent / "src"
ROOT = SRC.parent
MAX_FUNCTION_LINES = 60  # with signature and docstring
MAX_PARAMETERS = 8  # without self and cls
# The size of src. Both limits only go down.
MAX_SOURCE_LINES = 33_994
MAX_MODULES = 221
SECRET_NAMES = re.compile(r"\.(token|db|pem|key|p12|pfx)$|(^|/)(\.env|id_(rsa|dsa|ecdsa|ed25519))$")
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
# Known findings of the newest rules; a mended one has to leave the list.
KNOWN_OFFENDERS: tuple[str, ...] = ()
# Documented names, whose underscore keeps methods of named tuples apart from fields, or warns.
# The packages that tests mirror, each above those before it. ``testing`` is for tests of any package.
ROOMS = ("numerics", "learning", "federation", "environments", "simulation", "data", "evaluation", "service", "demo",
         "gym", "experiments", "cli")  # fmt: skip
PUBLIC_WITH_UNDERSCORE = {"_asdict", "_exit", "_fields", "_field_defaults", "_make", "_replace"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_private(name: str) -> bool:
    """Return whether a name starts with an underscore and is neither ``_``, ``__magic__`` nor ``_sunder_``."""
    return name.startswith("_") and not name.endswith("_") and name not in PUBLIC_WITH_UNDERSCORE


def list_defined_names(tree: ast.Module) -> set[str]:
    """Return the names that a module defines: functions, classes, variables, attributes of ``self`` and ``cls``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[ast.Name(), ast.Constant(value=str(name)), _]):
                names.add(name)
    return names


def list_imported_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds by importing them."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def find_private_names(modules: dict[str, Module]) -> Iterator[str]:
    """Find private names that another module imports or looks up."""
    for module in modules.values():
        defined, imported = list_defined_names(module.tree), list_imported_names(module.tree)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and (source := resolve_source(module, node)) in modules:
                for alias in node.names:
                    if is_private(alias.name):
                        yield f"{module.path}:{node.lineno}: imports {alias.name} of {source}, which is private"
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                owner = ast.unparse(node.value)
                if node.attr not in defined or owner in imported:
                    yield f"{module.path}:{node.lineno}: uses {owner}.{node.attr}, which is private to another module"


def list_functions(modules: dict[str, Module]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """List all functions and methods, each with its file and line."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS):
                yield f"{module.path}:{node.lineno}", node


def find_long_functions(modules: dict[str, Module]) -> Iterator[str]:
    """Find functions with too many lines, counting signature and docstring."""
    for place, function in list_functions(modules):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{place}: {function.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"


def find_long_signatures(modules: dict[str, Module]) -> Iterator[str]:
    """Find functions with too many parameters."""
    for place, function in list_functions(modules):
        taken = function.args
        names = [each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
        names += [each.arg for each in (taken.vararg, taken.kwarg) if each is not None]
        count = len([name for name in names if name not in {"self", "cls"}])
        if count > MAX_PARAMETERS:
            yield f"{place}: {function.name} has {count} parameters, more than {MAX_PARAMETERS}"


def find_shared_names(modules: dict[str, Module]) -> Iterator[str]:
    """Find class names that are used twice in the package."""
    places = defaultdict[str, list[str]](list)
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.path}:{node.lineno}")
    for name, (first, *others) in places.items():
        for other in others:
            yield f"{other}: class {name} exists twice, also at {first}"


def find_cycles(modules: dict[str, Module]) -> Iterator[str]:
    """Find import cycles, one of each knot; imports for type checking and inside functions count."""
    graph = build_graph(modules)
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]  # the sorter names what is imported first
            target = cycle[1]
            module = modules[cycle[0]]
            line = next(line for name, line in list_imports(module, modules) if name == target)
            yield f"{module.path}:{line}: import cycle {' -> '.join(cycle)}"
            graph[cycle[0]].discard(target)
        else:
            return


def find_growth(modules: dict[str, Module]) -> Iterator[str]:
    """Check the numbers of lines and modules of the sources."""
    lines = sum(len(module.text.splitlines()) for module in modules.values())
    for count, what, limit in ((lines, "lines", MAX_SOURCE_LINES), (len(modules), "modules", MAX_MODULES)):
        if count > limit:
            yield f"src has {count:,} {what}, more than {limit:,}"


def find_upward_tests(root: Path, rooms: Sequence[str] = ROOMS) -> Iterator[str]:
    """Find tests of a package that import a package above it."""
    homes = read_homes(root / "src" / "fedcascade" / "__init__.py")
    for place, room in enumerate(rooms):
        above = set(rooms[place + 1 :])
        for path in sorted((root / "tests" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "fedcascade":
                    continue
                dotted = [f"{node.module}.{homes.get(alias.name, alias.name)}" for alias in node.names]
                for upper in sorted({name.split(".")[1] for name in dotted} & above):
                    yield f"{path}:{node.lineno}: a test of {room} imports {upper}, a package above it"


def read_homes(path: Path) -> dict[str, str]:
    """Read the module of each name that the package offers."""
    names = re.findall(r'"(\w+)": "([\w.]+)"', path.read_text(encoding="utf-8")) if path.exists() else []
    return dict(names)


def find_secrets(root: Path) -> Iterator[str]:
    """Find tracked files that are named like a secret or hold a private key."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=False)
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if SECRET_NAMES.search(name):
            yield f"{name}: git tracks a file that may be a secret or a database"
        elif path.is_file() and PRIVATE_KEY.search(path.read_bytes()):
            yield f"{name}: git tracks a private key"


def excuse_known(findings: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """Drop known findings, at any line, and report known ones that are mended."""
    left = set(known)
    for finding in findings:
        key = re.sub(r" \d+ ", " many ", re.sub(r":\d+: ", ": ", finding)).partition(",")[0]
        if key in known:
            left.discard(key)
        else:
            yield finding
    yield from (f"{key}: this is gone, remove it from KNOWN_OFFENDERS" for key in sorted(left))


def find_all(modules: dict[str, Module], *, size: bool = True) -> Iterable[str]:
    """Run every check of modules, that of their size unless `size` is false."""
    yield from find_private_names(modules)
    yield from find_long_functions(modules)
    yield from find_long_signatures(modules)
    yield from find_shared_names(modules)
    yield from find_cycles(modules)
    if size:
        yield from find_growth(modules)


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any. With ``--any-size``, lines and modules are not counted."""
    modules = find_all(read_modules(SRC), size="--any-size" not in arguments)
    engine = find_all(read_modules(ROOT / "packages" / "cuda" / "src"), size=False)
    found = [*modules, *engine, *find_upward_tests(ROOT), *find_secrets(ROOT)]
    findings = list(excuse_known((finding.replace(f"{SRC.parent}/", "") for finding in found), KNOWN_OFFENDERS))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings" if findings else "structure: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
