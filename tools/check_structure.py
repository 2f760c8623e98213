"""Checks the shape of the sources: private names, long functions, import cycles, and the number of lines.

Prints one line for each finding, and exits with 1 if there is any: `make structure`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from source_tree import Module, build_graph, list_imports, read_modules, resolve_source

SRC = Path(__file__).parent.parent / "src"
MAX_BODY_LINES = 60
# What src has. A new feature raises the number, in the change that brings the feature; so did logs and evaluation,
# pools of agents, agents in JavaScript, operating a server, grouping among many, living
# populations and their resets, estimators and environments, from 23,789.
MAX_SOURCE_LINES = 36_500
# Documented names, whose underscore keeps methods of named tuples apart from fields, or warns.
PUBLIC_WITH_UNDERSCORE = {"_asdict", "_exit", "_fields", "_field_defaults", "_make", "_replace"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_private(name: str) -> bool:
    """Whether a name starts with an underscore and is neither ``_``, ``__magic__`` nor ``_sunder_``."""
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
    """Find private names that are imported from, or looked up in, a module other than their own."""
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


def count_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its signature and docstring."""
    first, *rest = function.body
    if ast.get_docstring(function, clean=False) is None:
        start = first.lineno
    elif rest:
        start = rest[0].lineno
    else:
        return 0
    return (function.end_lineno or start) - start + 1


def find_long_functions(modules: dict[str, Module], limit: int = MAX_BODY_LINES) -> Iterator[str]:
    """Find functions with more lines than the limit."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS) and (lines := count_body_lines(node)) > limit:
                yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines, more than {limit}"


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


def find_growth(modules: dict[str, Module], limit: int = MAX_SOURCE_LINES) -> Iterator[str]:
    """Find that the sources have more lines than the limit."""
    lines = sum(len(module.text.splitlines()) for module in modules.values())
    if lines > limit:
        yield f"src has {lines:,} lines, more than {limit:,}"


def find_all(modules: dict[str, Module], *, size: bool = True) -> Iterable[str]:
    """Run every check, that of the number of lines unless `size` is false."""
    yield from find_private_names(modules)
    yield from find_long_functions(modules)
    yield from find_cycles(modules)
    if size:
        yield from find_growth(modules)


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any. With ``--any-size``, lines are not counted."""
    findings = list(find_all(read_modules(SRC), size="--any-size" not in arguments))
    for finding in findings:
        print(finding.replace(f"{SRC.parent}/", ""))
    print(f"{len(findings)} findings" if findings else "structure: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
