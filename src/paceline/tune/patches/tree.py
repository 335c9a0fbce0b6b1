"""What is where in a file? Its syntax tree with what each node is in, the whole names of what it names, and lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameSource, Scope, ScopeProvider

Kind = TypeVar("Kind", bound=cst.CSTNode)


class Tree:
    """The syntax tree of one file."""

    def __init__(self, text: str) -> None:
        self._wrapper = MetadataWrapper(cst.parse_module(text))
        self._nodes = _Nodes()
        self.module.visit(self._nodes)

    @property
    def module(self) -> cst.Module:
        """The whole file."""
        return self._wrapper.module

    def has(self, node: cst.CSTNode) -> bool:
        """Say whether a node is in the file."""
        return node in self._nodes.spans

    def within(self, node: cst.CSTNode, kind: type[Kind]) -> list[Kind]:
        """Return the nodes of a kind in a node, itself among them, in the order of the file."""
        first, end = self._nodes.spans[node]
        return [one for one in self._nodes.order[first:end] if isinstance(one, kind)]

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node is in, from the inside out."""
        while (parent := self._nodes.parents.get(node)) is not None:
            node = parent
            yield node

    def functions_around(self, node: cst.CSTNode) -> list[str]:
        """Return the names of the functions that a node is in, from the inside out."""
        return [one.name.value for one in self.above(node) if isinstance(one, cst.FunctionDef)]

    def names(self, node: cst.CSTNode) -> set[str]:
        """Return what a name may stand for, as imported: ``DL`` is ``torch.utils.data.DataLoader``."""
        scope = self._scopes.get(node)
        return {one.name for one in scope.get_qualified_names_for(node)} if isinstance(scope, Scope) else set()

    def is_imported(self, node: cst.CSTNode) -> bool:
        """Say whether a name begins with one that the file imports."""
        scope = self._scopes.get(node)
        found = scope.get_qualified_names_for(node) if isinstance(scope, Scope) else ()
        return any(one.source is QualifiedNameSource.IMPORT for one in found)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line at which a node begins, counted from 1."""
        return self._wrapper.resolve(PositionProvider)[node].start.line

    @cached_property
    def _scopes(self) -> dict[cst.CSTNode, object]:
        return dict(self._wrapper.resolve(ScopeProvider))


class _Nodes(cst.CSTVisitor):
    """Lists all nodes in order, each with what it is in and how far it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[cst.CSTNode] = []
        self.parents: dict[cst.CSTNode, cst.CSTNode | None] = {}
        self.spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self._open: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Begin a node."""
        self.parents[node] = self._open[-1] if self._open else None
        self.spans[node] = (len(self.order), 0)
        self.order.append(node)
        self._open.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """End a node."""
        self._open.pop()
        self.spans[original_node] = (self.spans[original_node][0], len(self.order))
