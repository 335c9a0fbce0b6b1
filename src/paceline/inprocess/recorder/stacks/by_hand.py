"""Find the lines that compute, update parameters or read data, in training loops without modules and optimizers.

A *parameter* is a name whose ``.grad`` the function reads, or a collection of such names that a loop iterates over.
Values computed from a parameter count as parameters too. A line that uses ``.grad`` is an update. A line that makes
values for the backward pass and uses no parameter reads data.
"""

from __future__ import annotations

import ast
import re

from paceline.inprocess.recorder.stacks.slicing import Statement, parsed, statements_of

_OPTIMIZER = re.compile(r"\boptim\.\w+$|^(SGD|Adam\w*|RMSprop|Adagrad|Adadelta|LBFGS|NAdam|RAdam|Lion|Muon)$")


def updating_lines(source: str, first_line: int) -> frozenset[int]:
    """Return the lines of a function that read or clear a ``.grad``.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `slicing.MODULE` for a module.
    """
    return frozenset(line for node, s in statements_of(source, first_line) if _gradients(node) for line in s.lines)


def parameter_free_lines(source: str, first_line: int, lines: frozenset[int]) -> frozenset[int]:
    """Return those of the given lines that use no parameter: these lines make the data. Empty without parameters.

    Args:
        source: The text of the whole file.
        first_line: ``co_firstlineno`` of the function; `slicing.MODULE` for a module.
        lines: The lines that make the values used in a backward pass (`slicing.producing_lines`).
    """
    statements = statements_of(source, first_line)
    tainted = _parameters(statements) | (_optimized(source) if statements else set())
    if not tainted:
        return frozenset()
    functions = _functions_using(source, tainted)
    left = statements
    computing: set[int] = set()
    while users := [s for node, s in left if _computes(node, s, tainted, functions)]:
        left = [(node, s) for node, s in left if s not in users]
        for statement in users:
            computing.update(statement.lines)
            tainted |= statement.makes
    return frozenset(lines - computing)


def _computes(node: ast.stmt, statement: Statement, tainted: set[str], functions: set[str]) -> bool:
    if not statement.uses.isdisjoint(tainted):
        return True
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call)) if not getattr(node, "body", None) else ()
    return any(isinstance(called, ast.Name) and called.id in functions for called in calls)


def _optimized(source: str) -> set[str]:
    """Return the names in the first argument of calls that build an optimizer: ``torch.optim.SGD(weights, lr=0.1)``."""
    calls = (n for n in ast.walk(parsed(source)) if isinstance(n, ast.Call) and n.args)
    first = (n.args[0] for n in calls if _OPTIMIZER.search(ast.unparse(n.func)))
    names = (n for argument in first for n in ast.walk(argument) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def _functions_using(source: str, names: set[str]) -> set[str]:
    """Return the functions of a file that use one of these names."""
    functions = [n for n in ast.walk(parsed(source)) if isinstance(n, ast.FunctionDef)]
    return {f.name for f in functions if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(f))}


def _parameters(statements: list[tuple[ast.stmt, Statement]]) -> set[str]:
    found = {name for node, _ in statements for name in _gradients(node)}
    for node, statement in statements:
        if isinstance(node, ast.For) and not statement.makes.isdisjoint(found):
            found |= statement.uses
    return found


def _gradients(node: ast.stmt) -> set[str]:
    """Return the names whose gradient a simple statement uses."""
    if getattr(node, "body", None):
        return set()
    owners = (n.value for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == "grad")
    return {ast.unparse(owner) for owner in owners}
