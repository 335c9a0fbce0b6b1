"""Which lines of a function make the values that one of its lines uses? A small backward slice over its source.

Time between a step's end and the next forward is spent waiting for data only if it is spent *making that
forward's input*; otherwise it is the program's other work (logging, metrics). The lines that assign, directly or
through other names, what the calling line passes on are the slice. Flow-insensitive: a name assigned twice
brings both lines.

A name is used as a *value* (an argument, an operand) or as a *holder* (the object of a method). Both are made by
assignments; a statement like ``rows.append(x)`` makes only values. So ``trainer.log()`` is no part of what
``trainer.update(batch)`` uses, for nobody passes the trainer on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

MODULE = 0  # the first line of code that is in no function

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Names(NamedTuple):
    values: set[str]
    holders: set[str]


class _Statement(NamedTuple):
    """What a statement makes and uses."""

    lines: range
    assigned: set[str]
    changed: set[str]  # through a method
    uses: _Names


def producing_lines(source: str, first_line: int, call_line: int) -> frozenset[int]:
    """Return the lines that produce what `call_line` uses, within the function that begins at `first_line`.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `MODULE` for a module.
        call_line: The line of the call whose arguments are followed.

    Returns:
        Line numbers, without `call_line`'s own statements; none when the source cannot be read.
    """
    try:
        statements = [_described(s) for s in _statements(_body_at(ast.parse(source), first_line))]
        return _closure(statements, call_line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def _closure(statements: list[_Statement], call_line: int) -> frozenset[int]:
    wanted = _Names(set(), set())
    left = []
    for statement in statements:
        if call_line in statement.lines:
            _want(wanted, statement)
        else:
            left.append(statement)
    lines: set[int] = set()
    pending = True
    while pending:
        taken = [s for s in left if _makes(s, wanted)]
        left = [s for s in left if not _makes(s, wanted)]
        for statement in taken:
            lines.update(statement.lines)
            _want(wanted, statement)
        pending = bool(taken)
    return frozenset(lines)


def _makes(statement: _Statement, wanted: _Names) -> bool:
    return not (
        statement.assigned.isdisjoint(wanted.values)
        and statement.assigned.isdisjoint(wanted.holders)
        and statement.changed.isdisjoint(wanted.values)
    )


def _want(wanted: _Names, statement: _Statement) -> None:
    wanted.values.update(statement.uses.values)
    wanted.holders.update(statement.uses.holders)


def _body_at(tree: ast.Module, first_line: int) -> list[ast.stmt]:
    if first_line == MODULE:
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            top = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first_line in (top, node.lineno):
                return node.body
    return []


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of the blocks in it, but not of functions defined in it."""
    for statement in body:
        yield statement
        if isinstance(statement, _FUNCTIONS):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []) or [])
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _described(statement: ast.stmt) -> _Statement:
    uses = _Names(set(), set())
    for expression in _head_expressions(statement):
        _collect(expression, uses)
    assigned: set[str] = set()
    for target in _targets(statement):
        _collect_targets(target, assigned)
    for node in (n for e in _head_expressions(statement) for n in ast.walk(e)):
        if isinstance(node, ast.NamedExpr):
            assigned.add(node.target.id)
    return _Statement(_own_lines(statement), assigned, _changed(statement), uses)


def _own_lines(statement: ast.stmt) -> range:
    """Return the lines of a statement, of a block only its head."""
    last = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.Match):
        last = max(statement.lineno, statement.subject.end_lineno or 0)
    elif not isinstance(statement, _FUNCTIONS) and (block := getattr(statement, "body", None)):
        last = max(statement.lineno, block[0].lineno - 1)
    return range(statement.lineno, last + 1)


def _head_expressions(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions that a statement evaluates itself (of a block, those of its head)."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, _FUNCTIONS):
        return []
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def _collect(node: ast.AST, names: _Names) -> None:
    """Collect the names whose values an expression uses; a function that is merely called is not one of them."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and _dotted(node.func.value):
            names.holders.update(_prefixes(node.func.value))
        elif not isinstance(node.func, ast.Name):
            _collect(node.func, names)
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            _collect(argument, names)
    elif isinstance(node, (ast.Name, ast.Attribute)) and _dotted(node):
        if isinstance(node.ctx, ast.Load):
            names.values.update(_prefixes(node))
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, names)


def _dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for a name with attributes, and nothing for any other expression."""
    if isinstance(node, ast.Attribute):
        return f"{inner}.{node.attr}" if (inner := _dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _prefixes(node: ast.expr) -> Iterator[str]:
    """Yield ``a.b.c``, ``a.b`` and ``a``: whichever is assigned makes the value."""
    name = _dotted(node)
    while name:
        yield name
        name = name.rpartition(".")[0]


def _targets(statement: ast.stmt) -> list[ast.AST]:
    """Return what a statement assigns to."""
    if isinstance(statement, ast.Assign):
        return list(statement.targets)
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [statement.target]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.optional_vars for item in statement.items if item.optional_vars]
    if isinstance(statement, ast.Match):
        return [case.pattern for case in statement.cases]
    return []


def _collect_targets(target: ast.AST, found: set[str]) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            _collect_targets(element, found)
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        _collect_targets(target.value, found)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        found.add(_dotted(target))
    elif isinstance(target, ast.pattern):
        captured = (getattr(n, "name", None) or getattr(n, "rest", None) for n in ast.walk(target))
        found.update(name for name in captured if isinstance(name, str))


def _changed(statement: ast.stmt) -> set[str]:
    """Return the object whose method a statement calls for its effect; of a chain of calls, the first object."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return set()
    node: ast.expr = statement.value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    while isinstance(node, ast.Subscript):
        node = node.value
    return {_dotted(node)} - {"self", "cls", ""}
