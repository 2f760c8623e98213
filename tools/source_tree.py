"""Read the modules of a package and their imports with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """A module of a package: its dotted name, its file, its text and the parsed text."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def read_modules(src: Path) -> dict[str, Module]:
    """Parse every Python file below `src`, and return the modules by name, sorted."""
    modules = {}
    for path in src.rglob("*.py"):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text, str(path)))
    return dict(sorted(modules.items()))


def resolve_source(module: Module, node: ast.ImportFrom) -> str:
    """Return the absolute name of the module that a ``from ... import`` names."""
    if node.level == 0:
        return node.module or ""
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def list_imports(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, int]]:
    """Yield the modules of the same package that a module imports, each with the line.

    Imports inside functions and under ``TYPE_CHECKING`` count as well.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = resolve_source(module, node)
            targets = [name if (name := f"{source}.{alias.name}") in modules else source for alias in node.names]
        else:
            continue
        for target in targets:
            if target in modules and target != module.name:
                yield target, node.lineno


def build_graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {name: {target for target, _ in list_imports(module, modules)} for name, module in modules.items()}
