"""Check the words of docstrings, comments, messages and pages against the style of the project.

Prints one line for each finding and exits with 1 if there is any. Part of `make check`.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CODE = ("src", "packages/cuda", "tools", "benchmarks", "examples")
# Each pattern with what to write instead.
AVOID = {
    r"who|whom|whoever": "the noun: agent, user, caller, server, operator",
    r"somebody|anybody|nobody|everybody": "the noun: an agent, each user, no user, all users",
    r"anew": "again, or a verb with re-: refit, recompute, rebuild",
    r"rooms?": "workspace, buffer or scratch; package for a folder of modules",
    r"worlds?": "environment",
    r"circles?": "cluster or group",
    r"ghosts?|former sel(f|ves)|parting": "drift, reset",
    r"liars?|lookers?": "poisoning agent, curious agent",
    r"newcomer lore|rehears\w+": "precompile, warm start",
    r"speaks?|speakers?|spoken|spoke|speaking": "upload, exchange, be active",
    r"lately": "in the last minute",
    r"no more than it|good no more|not any more": "no longer valid, expired",
    r"houses?": "project",
}
MOST_WORDS = 350  # of a record of a decision
PATTERN = re.compile(r"\b(?:" + "|".join(f"(?:{pattern})" for pattern in AVOID) + r")\b", re.IGNORECASE)
# Words that a docstring of a function does not start with, and those that no docstring starts with.
ARTICLES = {"a", "an", "the", "one", "all", "each", "every", "some", "its", "their", "this", "these", "those"}
OPENINGS = {
    "what",
    "whether",
    "how",
    "who",
    "which",
    "where",
    "when",
    "that",
    "if",
    "as",
    "so",
    "and",
    "or",
    "for",
    "of",
}
NOT_THIRD_PERSON = {
    "address",
    "compress",
    "cross",
    "discuss",
    "express",
    "focus",
    "guess",
    "miss",
    "pass",
    "press",
    "process",
}
# Words that mean something else in these files.
EXCEPTIONS = {"tools/check_words.py": PATTERN}


class Text(NamedTuple):
    """A docstring, comment, string or paragraph, and where it is."""

    line: int
    text: str


def list_comments(source: str) -> Iterator[Text]:
    """List the comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string)


def list_strings(tree: ast.Module) -> Iterator[Text]:
    """List the strings of a module: docstrings, messages and help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield Text(node.lineno + offset, line)


def find_words(name: str, texts: Iterator[Text]) -> Iterator[str]:
    """Find words to avoid."""
    excepted = EXCEPTIONS.get(name)
    for text in texts:
        for match in PATTERN.finditer(re.sub(r"https?://\S+|`[^`]*`", "", text.text)):
            if excepted is None or not excepted.fullmatch(match[0]):
                advice = next(
                    advice for pattern, advice in AVOID.items() if re.fullmatch(pattern, match[0], re.IGNORECASE)
                )
                yield f"{name}:{text.line}: '{match[0]}': write {advice}"


def is_property(node: ast.AST) -> bool:
    """Return whether a function is a property."""
    decorators = getattr(node, "decorator_list", [])
    return any("property" in ast.unparse(each) or ast.unparse(each).endswith(".setter") for each in decorators)


def find_openings(name: str, tree: ast.Module) -> Iterator[str]:
    """Find docstrings of functions that do not start with a verb in the imperative, and of classes without a noun."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        words = re.findall(r"[A-Za-z']+", ast.get_docstring(node) or "")
        if not words:
            continue
        first = words[0].lower()
        is_function = not isinstance(node, ast.ClassDef) and not is_property(node)
        is_third_person = first.endswith("s") and first not in NOT_THIRD_PERSON
        if first in OPENINGS or (is_function and (first in ARTICLES or is_third_person)):
            expected = "a verb in the imperative" if is_function else "a noun"
            yield f"{name}:{node.lineno}: docstring of {node.name} starts with '{words[0]}', not with {expected}"


def check_module(path: Path) -> Iterator[str]:
    """Check one module of code."""
    name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    yield from find_words(name, list_comments(source))
    yield from find_words(name, list_strings(tree))
    yield from find_openings(name, tree)


def check_page(path: Path) -> Iterator[str]:
    """Check one page, without its blocks of code."""
    texts, is_code = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            texts.append(Text(number, line))
    name = str(path.relative_to(ROOT))
    yield from find_words(name, iter(texts))
    words = len(path.read_text(encoding="utf-8").split())
    if path.parent.name == "decisions" and words > MOST_WORDS:
        yield f"{name}: {words} words: a record has at most {MOST_WORDS}"


def check_all(folders: list[str]) -> Iterator[str]:
    """Check modules and pages, of all folders or of some."""
    for folder in folders or [
        *CODE,
        "docs",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "packages/agent/README.md",
    ]:
        path = ROOT / folder
        for module in sorted(path.rglob("*.py")) if path.is_dir() else []:
            yield from check_module(module)
        for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
            if page.suffix == ".md" and "node_modules" not in page.parts:
                yield from check_page(page)


def main(arguments: list[str]) -> int:
    """Print the findings and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", help="folders or pages to check, from the root; all if none")
    findings = list(check_all(parser.parse_args(arguments).folders))
    print(*findings, sep="\n")
    print(f"{len(findings)} findings" if findings else "words: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
