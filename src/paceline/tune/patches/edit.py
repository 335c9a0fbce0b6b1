"""Edits of a source file by the tables of a recipe: changed calls, statements for models, code below the imports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

from paceline.tune.patches.insertions import Snippet, taken, with_snippets
from paceline.tune.patches.model import Edited, SourceFile, UnpatchedSetting
from paceline.tune.patches.source.models import ModelBinding, places
from paceline.tune.patches.source.program import ProgramFiles
from paceline.tune.patches.source.syntax_tree import Tree, code_of


class Edit:
    """The edits of one source file by the settings of one table of the recipe."""

    table = ""

    def __init__(self, source: SourceFile, tree: Tree, settings: Mapping[str, Any], program: ProgramFiles) -> None:
        self.source = source
        self.tree = tree
        self.settings = settings
        self.program = program
        self.placed: set[str] = set()
        self.stays: list[UnpatchedSetting] = []
        self.snippets: list[Snippet] = []

    def begin(self) -> None:
        """Analyze the file, and make the edits that concern the file as a whole. The default does nothing."""

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return a call with the edits of this table; the default returns the call unchanged.

        Args:
            original: The call as it is in the file.
            call: The same call, with the parts inside it already edited.
        """
        return call

    def statements(self, place: ModelBinding) -> list[str]:
        """Return the statements to insert for a model at `place`; none by default."""
        return []

    def where(self, node: cst.CSTNode) -> str:
        """Return the position of a node as text, such as ``train.py:12``."""
        return f"{self.source.path}:{self.tree.line(node)}"

    def stay(self, key: str, why: str) -> None:
        """Record that a setting stays in the recipe, with the reason."""
        self.stays.append(UnpatchedSetting(setting=f"{self.table}.{key}", why=why))

    def place(self, key: str) -> None:
        """Record that the source now contains a setting."""
        self.placed.add(f"{self.table}.{key}")

    def takes(self, key: str, snippet: Snippet) -> bool:
        """Add a snippet below the imports and return True.

        If the file already defines the snippet's name, record that the setting stays in the recipe and return False.
        """
        if taken(self.tree.module, snippet):
            self.stay(key, f"{self.source.path} already defines {snippet.name}")
            return False
        self.snippets.append(snippet)
        return True

    def call_of(self, key: str, snippet: Snippet, model: str) -> list[str]:
        """Add a snippet and return the statement that calls it with a model; empty if the snippet cannot be added."""
        if not self.takes(key, snippet):
            return []
        self.place(key)
        return [f"{snippet.name}({model})"]


class _Editor(cst.CSTTransformer):
    """Applies the edits of all tables in one pass over a file."""

    def __init__(self, tree: Tree, edits: Sequence[Edit], values: Mapping[cst.CSTNode, str]) -> None:
        super().__init__()
        self._edits = edits
        self._values = values
        self._beside: dict[cst.CSTNode, tuple[ModelBinding, list[str]]] = {}
        for place in places(tree):
            said = [text for edit in edits for text in edit.statements(place) if text not in place.beside]
            self._beside.setdefault(place.anchor, (place, []))[1].extend(said)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Return a call with the edits of every table."""
        for edit in self._edits:
            updated_node = edit.call(original_node, updated_node)
        return updated_node

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        """Insert the statements for models next to the statements that bind those models; replace changed values."""
        node = super().on_leave(original_node, updated_node)
        if original_node in self._values:
            return cst.parse_expression(self._values[original_node])
        place, texts = self._beside.get(original_node, (None, ()))
        if place is None or not texts:
            return node
        new = [cst.parse_statement(text) for text in texts]
        return cst.FlattenSentinel([*new, node] if place.before else [node, *new])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Add below the imports the snippets that the edits need."""
        return with_snippets(updated_node, [snippet for edit in self._edits for snippet in edit.snippets])


def begun(
    source: SourceFile, tables: Sequence[tuple[type[Edit], Mapping[str, Any]]], program: ProgramFiles
) -> Sequence[Edit]:
    """Make the edits of a source file and let each analyze the file; this also registers changes to other files."""
    edits = [table(source, program.tree(source), settings, program) for table, settings in tables]
    for edit in edits:
        edit.begin()
    return edits


def edited(source: SourceFile, edits: Sequence[Edit], program: ProgramFiles) -> Edited:
    """Return a source file of a program with the edits applied."""
    tree = program.tree(source)
    text = tree.module.visit(_Editor(tree, edits, program.values)).code
    placed = frozenset(name for edit in edits for name in edit.placed)
    return Edited(text=text, placed=placed, stays=[one for edit in edits for one in edit.stays])


def with_value(edit: Edit, function: str, value: str, original: cst.Call, call: cst.Call) -> cst.Call:
    """Return a call of the given torch function with another argument; return other calls unchanged.

    Calls in a function with ``worker`` in its name are also unchanged, because they apply only to the loader's
    workers.
    """
    for_worker = any("worker" in name for name in edit.tree.functions_around(original))
    if f"torch.{function}" not in edit.tree.names(original.func) or for_worker:
        return call
    return call.with_changes(args=[cst.Arg(cst.parse_expression(value))])


def add_call(edit: Edit, key: str, function: str, value: str) -> None:
    """Add a call below the imports of the script, unless the script already calls the function at its top level."""
    if not edit.source.is_script:
        return
    edit.place(key)
    own = [part for line in edit.tree.module.body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    calls = [part.value for part in own if isinstance(part, cst.Expr) and isinstance(part.value, cst.Call)]
    if not any(f"torch.{function}" in edit.tree.names(one.func) for one in calls):
        edit.snippets.append(Snippet(code=f"torch.{function}({value})\n"))


def set_unless_own(edit: Edit, key: str, statement: str, own: re.Pattern[str]) -> None:
    """Add a statement below the imports of the script, unless the file already makes this setting itself.

    If the file makes the setting with another value, the setting stays in the recipe.

    Args:
        edit: The edit of one file.
        key: The setting.
        statement: The statement that applies the setting.
        own: Pattern of the qualified names that a file calls or assigns to if it makes the setting itself.
    """
    module = edit.tree.module
    said: list[cst.Call | cst.Assign] = [*edit.tree.within(module, cst.Call), *edit.tree.within(module, cst.Assign)]
    chosen = [node for node in said if _about(edit, node, own)]
    other = next((node for node in chosen if code_of(node).replace("'", '"') != statement), None)
    if other is not None:
        edit.stay(key, f"{edit.where(other)} has {code_of(other)}")
    elif edit.source.is_script:
        edit.place(key)
        edit.snippets += [] if chosen else [Snippet(code=f"{statement}\n")]


def _about(edit: Edit, node: cst.Call | cst.Assign, own: re.Pattern[str]) -> bool:
    said = [node.func] if isinstance(node, cst.Call) else [target.target for target in node.targets]
    return any(own.fullmatch(name) for one in said for name in edit.tree.names(one))
