"""How can torch's function be timed so that no traceback, warning or compiler tells? By weaving, not wrapping.

A wrapper is one frame more: it shows in every traceback through a model, moves the line that a warning points at, and
``torch.compile`` sees a function that it does not know. The woven function is torch's own source with a beginning put
before it and an end after it, compiled under its own name and file, each line where it was.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from paceline.inprocess.recorder.probe_state import gate

_PATTERN = """
def _paceline_weave(_paceline_gate, _paceline_compiling, _paceline_begin, _paceline_end):
    def woven():
        if _paceline_gate.nested or _paceline_compiling():
            _paceline_found = None
        else:
            _paceline_found = _paceline_begin()
        if _paceline_found is None:
            BODY
        _paceline_result = _paceline_found
        try:
            BODY
        finally:
            _paceline_end(_paceline_found, _paceline_result)
"""


class NoSourceError(Exception):
    """The function has no source to weave into, or not the shape that was expected."""


def woven(
    original: Callable[..., Any],
    told: Sequence[str],
    begin: Callable[..., Any],
    end: Callable[[Any, Any], None],
    compiling: Callable[[], bool],
) -> Callable[..., Any]:
    """Return a function that runs as `original` does, between `begin` and `end`; inside another mark, just so.

    Args:
        original: A plain function without a closure, whose every path returns or raises.
        told: Names of its parameters that `begin` gets, in this order.
        begin: Returns what `end` shall get, or None to leave this call alone.
        end: Called however the function ends, with what `begin` returned and the result; if it raised, with the former
            twice. Neither may raise.
        compiling: Says whether a compiler reads along, which then reads the original.

    Raises:
        NoSourceError: There is no source, or it has other parameters.
    """
    code = original.__code__
    function = _definition(original, told)
    tree = ast.parse(_PATTERN)
    factory: Any = tree.body[0]
    _fill(factory.body[0], function, told)
    factory.body.append(ast.copy_location(ast.Return(ast.Name(function.name, ast.Load())), function))
    compiled = compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True)
    inner = next(part for part in _parts(_parts(compiled)[0]) if part.co_name == function.name)
    cells = {"gate": gate, "compiling": compiling, "begin": begin, "end": end}
    closure = tuple(_cell(cells[name.removeprefix("_paceline_")]) for name in inner.co_freevars)
    inner = inner.replace(co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno)
    return functools.update_wrapper(FunctionType(inner, original.__globals__, function.name, None, closure), original)


def _definition(original: Callable[..., Any], told: Sequence[str]) -> Any:
    """Return the function's definition as it stands in its file, lines and columns included."""
    try:
        source = inspect.getsource(original)
    except (OSError, TypeError) as error:
        raise NoSourceError(str(error)) from error
    indented = source[:1].isspace()
    tree = ast.parse("if True:\n" + source if indented else source)
    ast.increment_lineno(tree, original.__code__.co_firstlineno - (2 if indented else 1))
    function: Any = tree.body[0].body[0] if indented else tree.body[0]  # type: ignore[attr-defined]
    known = original.__code__.co_varnames
    plain = isinstance(function, ast.FunctionDef) and not function.decorator_list and original.__closure__ is None
    if not plain or original.__defaults__ or original.__kwdefaults__ or not set(told) <= set(known):
        raise NoSourceError(f"{original.__qualname__} is not a plain function of {', '.join(told)}")
    return function


def _fill(pattern: Any, function: ast.FunctionDef, told: Sequence[str]) -> None:
    """Put a definition's name, arguments and (twice) its body into the pattern."""
    beginning = pattern.body[0].orelse[0].value
    beginning.args = [ast.Name(name, ast.Load()) for name in told]
    for node in ast.walk(pattern):
        ast.copy_location(node, function)  # what is ours has no line of its own
    pattern.name, pattern.args = function.name, function.args
    pattern.body[1].body = list(function.body)
    pattern.body[3].body = [_Returns().visit(copy.deepcopy(statement)) for statement in function.body]


class _Returns(ast.NodeTransformer):
    """Keeps what a function returns under a name of ours as well."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        kept = ast.NamedExpr(ast.copy_location(ast.Name("_paceline_result", ast.Store()), value), value)
        return ast.copy_location(ast.Return(ast.copy_location(kept, value)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # what it returns is not ours to keep

    visit_Lambda = visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]


def _parts(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]
