"""Which lines of a function make the values that one of its lines uses? A small backward slice over its source.

Time between a step's end and the next forward is spent waiting for data only if it is spent *making that
forward's input*; otherwise it is the program's other work (logging, metrics). The lines that assign, directly or
through other names, what the calling line passes on are the slice. Flow-insensitive: a name assigned twice
brings both lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def producing_lines(source: str, first_line: int, call_line: int) -> frozenset[int]:
    """Return the lines that produce what `call_line` uses, within the function that begins at `first_line`.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; 1 for a module.
        call_line: The line of the call whose arguments are followed.

    Returns:
        Line numbers, without `call_line`'s own statement unless it also assigns a name that it uses.
    """
    try:
        body = _body_at(ast.parse(source), first_line)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    statements = list(_statements(body))
    start = [s for s in statements if call_line in _own_lines(s)]
    return _closure(statements, start)


def updating_lines(source: str, first_line: int) -> frozenset[int]:
    """Return the lines of a function that update parameters by hand: statements that read or clear a ``.grad``.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; 1 for a module.
    """
    try:
        body = _body_at(ast.parse(source), first_line)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(line for s in _statements(body) if _touches_gradient(s) for line in _own_lines(s))


def parameter_free_lines(source: str, first_line: int, lines: frozenset[int]) -> frozenset[int]:
    """Return those of some producing lines that use no parameter: where a model is written by hand, they make its data.

    A parameter is a name whose ``.grad`` the function reads, or that a loop variable of that kind runs over; what is
    computed from a parameter counts as one.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; 1 for a module.
        lines: The lines to choose from.
    """
    try:
        statements = list(_statements(_body_at(ast.parse(source), first_line)))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    tainted = _parameters(statements)
    if not tainted:
        return frozenset()
    using: set[int] = set()
    while True:
        users = [s for s in statements if id(s) not in using and _argument_names(s) & tainted]
        if not users:
            break
        for statement in users:
            using.add(id(statement))
            tainted |= _targets(statement)
    computing = {line for s in statements if id(s) in using for line in _own_lines(s)}
    return frozenset(lines - computing)


def _parameters(statements: list[ast.stmt]) -> set[str]:
    """Return the names whose gradients are read, and those that loops over such names run over."""
    found = {
        _dotted(node.value)
        for s in statements
        if not getattr(s, "body", None)
        for node in ast.walk(s)
        if isinstance(node, ast.Attribute) and node.attr == "grad"
    }
    for statement in statements:
        if isinstance(statement, ast.For) and _targets(statement) & found:
            found |= _argument_names(statement)
    return found - {""}


def _touches_gradient(statement: ast.stmt) -> bool:
    if getattr(statement, "body", None):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(statement))


def _closure(statements: list[ast.stmt], start: list[ast.stmt]) -> frozenset[int]:
    wanted = {name for statement in start for name in _argument_names(statement)}
    lines: set[int] = set()
    pending = True
    taken: set[int] = set()
    while pending:
        pending = False
        for statement in statements:
            if id(statement) in taken or statement in start or not (_targets(statement) & wanted):
                continue
            taken.add(id(statement))
            lines.update(_own_lines(statement))
            wanted |= _argument_names(statement)
            pending = True
    return frozenset(lines)


def _body_at(tree: ast.Module, first_line: int) -> list[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            top = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first_line in (top, node.lineno):
                return node.body
    return tree.body


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of the blocks in it, but not of functions defined in it."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []) or [])
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _own_lines(statement: ast.stmt) -> range:
    """Return the lines of a statement, of a block only its head."""
    last = statement.end_lineno or statement.lineno
    block = getattr(statement, "body", None)
    if block and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        last = max(statement.lineno, block[0].lineno - 1)
    return range(statement.lineno, last + 1)


def _head_expressions(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions that a statement evaluates itself (of a block, those of its head)."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, (ast.If, ast.While)):
        return [statement.test]
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return []
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def _argument_names(statement: ast.stmt) -> set[str]:
    """Return the names whose values a statement uses; a function that is merely called is not one of them."""
    names: set[str] = set()
    for expression in _head_expressions(statement):
        _collect(expression, names)
    return names


def _collect(node: ast.AST, names: set[str]) -> None:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            _collect(node.func.value, names)
        elif not isinstance(node.func, ast.Name):
            _collect(node.func, names)
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            _collect(argument, names)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        if isinstance(node.ctx, ast.Load):
            names.add(_dotted(node))
        if isinstance(node, ast.Attribute):
            _collect(node.value, names)
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, names)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _targets(statement: ast.stmt) -> set[str]:
    """Return the names that a statement assigns, or whose object it changes through a method or an index."""
    found: set[str] = set()
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = list(statement.targets)
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        targets = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items if item.optional_vars]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        targets = [method.value] if isinstance(method, ast.Attribute) else []
    else:
        targets = []
    for target in targets:
        _collect_targets(target, found)
    for node in (n for e in _head_expressions(statement) for n in ast.walk(e)):
        if isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
    return found - {"self", "cls", ""}


def _collect_targets(target: ast.expr, found: set[str]) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            _collect_targets(element, found)
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        _collect_targets(target.value, found)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        found.add(_dotted(target))
