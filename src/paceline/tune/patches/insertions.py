"""Statements and small definitions that a patch inserts below the imports of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from paceline.tune.patches.source.syntax_tree import code_of

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_IMPORT = m.Import() | m.ImportFrom()
_SETS = ("torch.set_", "torch.backends.")
_ENDS = (cst.FunctionDef, cst.ClassDef, cst.For, cst.While, cst.With)  # imports below these are not considered


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """Code to insert below the imports."""

    code: str
    needs: tuple[str, ...] = ("torch",)  # modules that it uses, imported under their own names

    @property
    def name(self) -> str:
        """The name that the snippet defines; for a statement, its text."""
        first = cst.parse_module(self.code).body[0]
        return first.name.value if isinstance(first, cst.FunctionDef | cst.ClassDef) else self.code


def taken(module: cst.Module, snippet: Snippet) -> bool:
    """Return whether the file defines the snippet's name at its top level with other code."""
    own = [s for s in module.body if isinstance(s, cst.FunctionDef | cst.ClassDef) and s.name.value == snippet.name]
    return any(_bare(s) != _of_that_name(snippet) for s in own)


def with_snippets(module: cst.Module, snippets: Sequence[Snippet]) -> cst.Module:
    """Return the file with the snippets that it lacks below its imports, statements before definitions."""
    there = {_bare(statement) for statement in module.body}
    wanted = [snippet for snippet in dict.fromkeys(snippets) if _of_that_name(snippet) not in there]
    for snippet in sorted(wanted, key=lambda one: _defines(_parsed(module, one)[0]), reverse=True):
        module = _with_one(module, snippet)
    return module


def _with_one(module: cst.Module, snippet: Snippet) -> cst.Module:
    new = _parsed(module, snippet)
    place = _behind_imports(module.body)
    module = _inserted(module, place, imports := _imports(module.body[:place], snippet))
    place += len(imports)
    while (
        _defines(new[0])
        and place < len(module.body)
        and _bare(module.body[place]).startswith(("torch.set_", "torch.backends."))
    ):
        place += 1
    return _inserted(module, place, new)


def _inserted(module: cst.Module, place: int, new: Sequence[_Statement]) -> cst.Module:
    body = [*module.body[:place], *new, *module.body[place:]]
    for index in range(max(place, 1), min(place + len(new) + 1, len(body))):
        body[index] = _apart(body[index - 1], body[index])
    return module.with_changes(body=body)


def _of_that_name(snippet: Snippet) -> str:
    """Return the first statement of a snippet as source text."""
    return _bare(cst.parse_module(snippet.code).body[0])


def _bare(statement: _Statement) -> str:
    """Return a statement as source text, without the comments above it."""
    return code_of(statement.with_changes(leading_lines=[])).strip()


def _parsed(module: cst.Module, snippet: Snippet) -> list[_Statement]:
    return list(cst.parse_module(snippet.code, config=module.config_for_parsing).body)


def _imports(above: Sequence[_Statement], snippet: Snippet) -> list[_Statement]:
    bound = {name for statement in above for name in _bound(statement)}
    return [cst.parse_statement(f"import {name}\n") for name in snippet.needs if name not in bound]


def _bound(statement: _Statement) -> list[str]:
    """Return the top-level modules that a statement imports without renaming them (``import torch``)."""
    found = []
    for node in m.findall(statement, m.Import()):
        names = node.names if isinstance(node, cst.Import) else ()
        found += [code_of(alias.name).partition(".")[0] for alias in names if alias.asname is None]
    return found


def _behind_imports(body: Sequence[_Statement]) -> int:
    place = 0
    for index, statement in enumerate(body):
        if isinstance(statement, _ENDS) or (isinstance(statement, cst.If) and "__name__" in code_of(statement.test)):
            break
        if m.findall(statement, _IMPORT) or (index == 0 and _is_docstring(statement)):
            place = index + 1
    return place


def _is_docstring(statement: _Statement) -> bool:
    return m.matches(statement, m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString())]))


def _defines(statement: _Statement) -> bool:
    return isinstance(statement, cst.FunctionDef | cst.ClassDef)


def _apart(before: _Statement, statement: _Statement) -> _Statement:
    """Return `statement` with at least the usual number of blank lines between it and the statement `before`."""
    imports = [bool(m.findall(s, _IMPORT)) for s in (before, statement)]
    wanted = 2 if _defines(before) or _defines(statement) else int(imports[0] and not imports[1])
    blank = 0
    while blank < len(statement.leading_lines) and statement.leading_lines[blank].comment is None:
        blank += 1
    missing = [cst.EmptyLine(indent=False)] * max(0, wanted - blank)
    return statement.with_changes(leading_lines=[*missing, *statement.leading_lines])
