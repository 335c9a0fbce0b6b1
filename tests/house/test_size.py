"""Is the code still small? Limits on functions, classes and files, and words that mark unfinished work.

Lengths count every line from ``def`` to the last one, blanks, comments and docstrings included. The
limits come from what well-kept packages measure (median function 6 to 11 lines, nine in ten under 45).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "paceline"

MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FUNCTION_LINES = 10
MAX_P90_FUNCTION_LINES = 30
MAX_FILE_LINES = 500
MAX_CLASS_LINES = 300
MAX_PUBLIC_METHODS = 15

EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers?|commons?|misc)(_|$)", re.IGNORECASE)
UNFINISHED = re.compile(r"NotImplementedError|\b(TODO|FIXME|XXX)\b|not (yet )?implemented")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    """Every Python file of the package."""
    return sorted(SRC.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def definitions(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """All definitions of some kinds with where they are, as ``path:line name``."""
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def functions() -> Iterator[tuple[str, Function]]:
    return definitions(ast.FunctionDef, ast.AsyncFunctionDef)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    return definitions(ast.ClassDef)


def span(node: ast.AST) -> int:
    """Lines a definition covers, decorators apart."""
    return node.end_lineno - node.lineno + 1


def file_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def too_long(nodes: Iterator[tuple[str, ast.AST]], limit: int) -> dict[str, int]:
    return {where: span(node) for where, node in nodes if span(node) > limit}


def test_no_function_is_long():
    assert too_long(functions(), MAX_FUNCTION_LINES) == {}


def test_functions_are_short_on_the_whole():
    lengths = [span(node) for _, node in functions()]
    assert median(lengths) <= MAX_MEDIAN_FUNCTION_LINES
    assert quantiles(lengths, n=10)[-1] <= MAX_P90_FUNCTION_LINES


def test_no_file_is_long():
    lengths = {str(path.relative_to(ROOT)): file_lines(path) for path in sources()}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_class_is_long():
    assert too_long(classes(), MAX_CLASS_LINES) == {}


def public_methods(node: ast.ClassDef) -> int:
    return sum(isinstance(child, Function) and not child.name.startswith("_") for child in node.body)


def test_no_class_does_everything():
    counts = {where: public_methods(node) for where, node in classes()}
    assert {where: count for where, count in counts.items() if count > MAX_PUBLIC_METHODS} == {}


def test_nothing_is_named_for_no_purpose():
    files = [path.relative_to(SRC) for path in sources()]
    parts = {part.removesuffix(".py") for path in files for part in path.parts}
    named = [node.name for _, node in definitions(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)]
    assert sorted(name for name in parts.union(named) if EMPTY_NAMES.search(name)) == []


def test_no_unfinished_marks():
    marks = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert marks == []


def is_ellipsis(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and getattr(statement.value, "value", None) is Ellipsis


def is_declaration(node: Function, owner: ast.AST) -> bool:
    """Whether ``...`` is how Python writes this: a protocol's method, an overload, an abstract one."""
    bases = [ast.unparse(base) for base in getattr(owner, "bases", [])]
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return any("Protocol" in base for base in bases) or bool(decorators & {"overload", "abstractmethod"})


def hollow(path: Path) -> Iterator[str]:
    """Functions of a file that only stand for a function."""
    for owner in ast.walk(tree(path)):
        for node in ast.iter_child_nodes(owner):
            if isinstance(node, Function) and is_ellipsis(node.body[-1]) and not is_declaration(node, owner):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SRC)))
def test_no_function_is_hollow(path):
    assert list(hollow(path)) == []
