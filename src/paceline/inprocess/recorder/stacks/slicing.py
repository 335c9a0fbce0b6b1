"""Which lines of a function make the values that one of its lines uses? A small backward slice over its source.

Time between a step's end and the next forward is spent waiting for data only if it is spent *making that
forward's input*; otherwise it is the program's other work (logging, metrics). The lines that assign, directly or
through other names, what the calling line passes on are the slice. Flow-insensitive: a name assigned twice
brings both lines.

A statement like ``rows.append(x)`` makes what ``rows`` is used for, but ``trainer.log()`` makes nothing that
``trainer.update(batch)`` uses: of the call that leads on only the arguments count, and methods that by their name
only report are taken at their word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MODULE = 0  # the first line of code that is in no function

_REPORTS = re.compile(r"log|print|report|write|plot|show|save|dump|eval|valid|test|info|debug|warn|add_scalar|track")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Statement(NamedTuple):
    """What a statement makes and uses."""

    lines: range
    makes: set[str]
    uses: set[str]


def producing_lines(source: str, first_line: int, call_line: int) -> frozenset[int]:
    """Return the lines that produce what `call_line` uses, within the function that begins at `first_line`.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `MODULE` for a module.
        call_line: The line of the call whose arguments are followed.

    Returns:
        Line numbers, without `call_line`'s own statements; none when the source cannot be read.
    """
    return _closure([s for _, s in statements_of(source, first_line, call_line)], call_line)


def feeds_itself(source: str, first_line: int, call_line: int) -> bool:
    """Say whether other lines of a function make the input of a call from what the call returned before.

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


def statements_of(source: str, first_line: int, call_line: int = -1) -> list[tuple[ast.stmt, Statement]]:
    """Return the statements of a function with what they make and use; none when the source cannot be read."""
    try:
        body = _body_at(parsed(source), first_line)
        return [(s, _described(s, call_line)) for s in _statements(body)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Parse a file once for all questions about it. The tree is large: clear this cache when they are answered."""
    return ast.parse(source)


def _closure(statements: list[Statement], call_line: int) -> frozenset[int]:
    wanted = {name for s in statements if call_line in s.lines for name in s.uses}
    left = [s for s in reversed(statements) if call_line not in s.lines]
    lines: set[int] = set()
    pending = True
    while pending:
        candidates, left, pending = left, [], False
        for statement in candidates:  # from below: mostly a value is made above its use, and one pass finds all
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
    """Return the names in the arguments of ``a.b(…)`` in ``a.b(…).c()``; nothing when it has none."""
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
    """Tell ``loss.backward(gradient=g)`` from ``accelerator.backward(loss)``."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args


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


def _collect(node: ast.AST, names: set[str]) -> None:
    """Collect the names whose values an expression uses; a function that is merely called is not one of them."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            _collect(node.func.value, names)
        elif not isinstance(node.func, ast.Name):
            _collect(node.func, names)
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            _collect(argument, names)
    elif isinstance(node, (ast.Name, ast.Attribute)) and (name := _dotted(node)):
        while name and isinstance(node.ctx, ast.Load):  # a.b.c, a.b and a: whichever is assigned makes the value
            names.add(name)
            name = name.rpartition(".")[0]
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, names)


def _dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for a name with attributes, and nothing for any other expression."""
    if isinstance(node, ast.Attribute):
        return f"{inner}.{node.attr}" if (inner := _dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


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
    method = ""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method, node = node.func.attr, node.func.value
    while isinstance(node, ast.Subscript):
        node = node.value
    return set() if _REPORTS.match(method) else {_dotted(node)}
