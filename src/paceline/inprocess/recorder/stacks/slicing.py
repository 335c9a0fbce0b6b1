"""Find the lines of a function that make the values used in one of its lines: a small backward slice over its source.

Time between the end of a step and the next forward counts as data wait only if the program is *making the input of that
forward*; otherwise it is other work (logging, metrics). The slice contains the lines that assign, directly or through
other names, the values that the calling line passes on. It is flow-insensitive: if a name is assigned on two lines,
both lines are in the slice.

A statement like ``rows.append(x)`` changes ``rows``, so it belongs to the slice of ``rows``. But ``trainer.log()``
makes no value that ``trainer.update(batch)`` uses: only the arguments of the sliced call count, and methods with a
reporting name (log, print, save) are assumed to change nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MODULE = 0  # first line of module-level code

_REPORTS = re.compile(r"log|print|report|write|plot|show|save|dump|eval|valid|test|info|debug|warn|add_scalar|track")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Statement(NamedTuple):
    """The lines of a statement, the names that it makes and the names that it uses."""

    lines: range
    makes: set[str]
    uses: set[str]


def producing_lines(source: str, first_line: int, call_line: int) -> frozenset[int]:
    """Return the lines that produce the values used in `call_line`, within the function that starts at `first_line`.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `MODULE` for a module.
        call_line: The line of the call whose arguments are followed.

    Returns:
        Line numbers, without the statements of `call_line` itself; empty if the source cannot be parsed.
    """
    return _closure([s for _, s in statements_of(source, first_line, call_line)], call_line)


def feeds_itself(source: str, first_line: int, call_line: int) -> bool:
    """Return whether other lines of a function make the input of a call from the call's earlier result.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `MODULE` for a module.
        call_line: The line of the call.
    """
    statements = [s for _, s in statements_of(source, first_line, call_line)]
    own = [s for s in statements if call_line in s.lines]
    made = {name for s in own for name in s.makes}
    wanted = {name for s in own for name in s.uses} - made
    others = [s for s in statements if call_line not in s.lines]
    while makers := [s for s in others if not s.makes.isdisjoint(wanted)]:
        others = [s for s in others if s.makes.isdisjoint(wanted)]
        wanted.update(name for s in makers for name in s.uses)
    return not made.isdisjoint(wanted)


def has_several_statements(source: str, first_line: int, line: int) -> bool:
    """Return whether a line has several statements, such as ``x = make(); train(x); log()``, but no head of a loop.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `MODULE` for a module.
        line: The line.
    """
    own = [node for node, statement in statements_of(source, first_line) if line in statement.lines]
    return len(own) > 1 and not any(hasattr(node, "body") for node in own)


def statements_of(source: str, first_line: int, call_line: int = -1) -> list[tuple[ast.stmt, Statement]]:
    """Return the statements of a function with the names that they make and use; empty if parsing fails."""
    try:
        body = _body_at(parsed(source), first_line)
        return [(s, _described(s, call_line)) for s in _statements(body)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Parse a file and cache its syntax tree. The tree is large: clear the cache after use."""
    return ast.parse(source)


def _closure(statements: list[Statement], call_line: int) -> frozenset[int]:
    wanted = {name for s in statements if call_line in s.lines for name in s.uses}
    left = [s for s in reversed(statements) if call_line not in s.lines]
    lines: set[int] = set()
    pending = True
    while pending:
        candidates, left, pending = left, [], False
        for statement in candidates:  # from below: a value is usually made above its use, so one pass suffices
            if statement.makes.isdisjoint(wanted):
                left.append(statement)
                continue
            lines.update(statement.lines)
            wanted |= statement.uses
            pending = True
    return frozenset(lines)


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
    """Yield the statements of a body and of its nested blocks, but not of functions defined in it."""
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


def _described(statement: ast.stmt, call_line: int) -> Statement:
    lines = _own_lines(statement)
    expressions = _head_expressions(statement)
    uses: set[str] = set()
    for expression in expressions:
        _collect(expression, uses)
    if call_line in lines and (leading := _arguments_of_leading_call(expressions)):
        uses = leading
    makes = _changed(statement)
    for target in _targets(statement):
        _collect_targets(target, makes)
    makes.update(n.target.id for e in expressions for n in ast.walk(e) if isinstance(n, ast.NamedExpr))
    return Statement(lines, makes - {"self", "cls", ""}, uses)


def _arguments_of_leading_call(expressions: list[ast.expr]) -> set[str]:
    """Return the names in the arguments of ``a.b(…)`` if an expression is like ``a.b(…).c()``; otherwise empty."""
    found: set[str] = set()
    for node in expressions:
        call: ast.Call | None = None
        while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript, ast.Await)):
            call = node if isinstance(node, ast.Call) else call
            node = node.func if isinstance(node, ast.Call) else node.value
        if call is not None and not _is_backward_of_a_tensor(call):
            for argument in [*call.args, *(k.value for k in call.keywords)]:
                _collect(argument, found)
    return found


def _is_backward_of_a_tensor(call: ast.Call) -> bool:
    """Return whether a call is like ``loss.backward(gradient=g)``, and not like ``accelerator.backward(loss)``."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args


def _own_lines(statement: ast.stmt) -> range:
    """Return the lines of a statement; for a block statement, only the lines of its head."""
    last = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.Match):
        last = max(statement.lineno, statement.subject.end_lineno or 0)
    elif not isinstance(statement, _FUNCTIONS) and (block := getattr(statement, "body", None)):
        last = max(statement.lineno, block[0].lineno - 1)
    return range(statement.lineno, last + 1)


def _head_expressions(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions that a statement itself evaluates; for a block statement, those of its head."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, _FUNCTIONS):
        return []
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def _collect(node: ast.AST, names: set[str]) -> None:
    """Collect the names whose values an expression uses, without the names of called functions."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            _collect(node.func.value, names)
        elif not isinstance(node.func, ast.Name):
            _collect(node.func, names)
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            _collect(argument, names)
    elif isinstance(node, (ast.Name, ast.Attribute)) and (name := _dotted(node)):
        while name and isinstance(node.ctx, ast.Load):  # a.b.c, a.b and a: an assignment to any of them makes the value
            names.add(name)
            name = name.rpartition(".")[0]
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, names)


def _dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for a name with attributes; empty for another expression."""
    if isinstance(node, ast.Attribute):
        return f"{inner}.{node.attr}" if (inner := _dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _targets(statement: ast.stmt) -> list[ast.AST]:
    """Return the targets to which a statement assigns."""
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
    """Return the object whose method a statement calls for its effect; for a chain of calls, the first object."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return set()
    node: ast.expr = statement.value
    method = ""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method, node = node.func.attr, node.func.value
    while isinstance(node, ast.Subscript):
        node = node.value
    return set() if _REPORTS.match(method) else {_dotted(node)}
