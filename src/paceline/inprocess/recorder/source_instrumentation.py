"""Source instrumentation: add hooks to a torch function without a wrapper.

A wrapper adds a frame. This frame appears in every traceback through a model and shifts the line to which a warning
refers, and ``torch.compile`` does not know its code. An instrumented function is torch's own source with a hook before
and after the body. The source is compiled under the original function's name and file, and each line keeps its number.
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
    """The function has no source, or its source does not have the expected form."""


def woven(
    original: Callable[..., Any],
    told: Sequence[str],
    begin: Callable[..., Any],
    end: Callable[[Any, Any], None],
    compiling: Callable[[], bool],
) -> Callable[..., Any]:
    """Return a function like `original` with calls of `begin` before and `end` after it, except in nested hooked calls.

    Args:
        original: A plain function without a closure, in which every path returns or raises.
        told: The names of the parameters that are passed to `begin`, in this order.
        begin: Returns a value for `end`, or None to skip the call of `end`. It must not raise.
        end: Called when the function ends, with the value of `begin` and the result; if the function raised, with the
            value of `begin` twice. It must not raise.
        compiling: Returns whether a compiler traces the call. If so, the unchanged body runs.

    Raises:
        NoSourceError: There is no source, or the source does not have the expected form or parameters.
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
    """Return the syntax tree of a function's definition, with the original line and column numbers."""
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
    """Insert a function's name, arguments and body into the pattern; the pattern contains the body twice."""
    beginning = pattern.body[0].orelse[0].value
    beginning.args = [ast.Name(name, ast.Load()) for name in told]
    for node in ast.walk(pattern):
        ast.copy_location(node, function)  # the added nodes get the function's own line number
    pattern.name, pattern.args = function.name, function.args
    pattern.body[1].body = list(function.body)
    pattern.body[3].body = [_Returns().visit(copy.deepcopy(statement)) for statement in function.body]


class _Returns(ast.NodeTransformer):
    """Changes each return statement so that it also stores the returned value in a variable."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        kept = ast.NamedExpr(ast.copy_location(ast.Name("_paceline_result", ast.Store()), value), value)
        return ast.copy_location(ast.Return(ast.copy_location(kept, value)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # return statements of inner functions stay unchanged

    visit_Lambda = visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]


def _parts(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]
