"""Which lines of a model written by hand compute, update and read data? For loops with no module and no optimizer.

A *parameter* is a name whose ``.grad`` the function reads, or that a loop over such names runs over; what is computed
from a parameter counts as one. Lines that touch a ``.grad`` update; producing lines that use no parameter read data.
"""

from __future__ import annotations

import ast

from paceline.observe.probe.slices import Statement, statements_of


def updating_lines(source: str, first_line: int) -> frozenset[int]:
    """Return the lines of a function that read or clear a ``.grad``.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `slices.MODULE` for a module.
    """
    return frozenset(line for node, s in statements_of(source, first_line) if _gradients(node) for line in s.lines)


def parameter_free_lines(source: str, first_line: int, lines: frozenset[int]) -> frozenset[int]:
    """Return those of some producing lines that use no parameter: they make the data. None without parameters.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `slices.MODULE` for a module.
        lines: The lines to choose from.
    """
    statements = statements_of(source, first_line)
    tainted = _parameters(statements)
    if not tainted:
        return frozenset()
    left = [s for _, s in statements]
    computing: set[int] = set()
    while users := [s for s in left if not s.uses.isdisjoint(tainted)]:
        left = [s for s in left if s.uses.isdisjoint(tainted)]
        for statement in users:
            computing.update(statement.lines)
            tainted |= statement.makes
    return frozenset(lines - computing)


def _parameters(statements: list[tuple[ast.stmt, Statement]]) -> set[str]:
    found = {name for node, _ in statements for name in _gradients(node)}
    for node, statement in statements:
        if isinstance(node, ast.For) and not statement.makes.isdisjoint(found):
            found |= statement.uses
    return found


def _gradients(node: ast.stmt) -> set[str]:
    """Return the names whose gradient a simple statement touches."""
    if getattr(node, "body", None):
        return set()
    owners = (n.value for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == "grad")
    return {ast.unparse(owner) for owner in owners}
