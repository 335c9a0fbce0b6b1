"""The syntax tree of a file: parents of nodes, qualified names, lines, and the arguments of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameSource, Scope, ScopeProvider

Kind = TypeVar("Kind", bound=cst.CSTNode)
_NO_SPACE = cst.SimpleWhitespace("")
_Space = cst.BaseParenthesizableWhitespace


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
        """Return whether a node is in the file."""
        return node in self._nodes.spans

    def within(self, node: cst.CSTNode, kind: type[Kind]) -> list[Kind]:
        """Return the nodes of a type inside a node, including the node itself, in the order of the file."""
        first, end = self._nodes.spans[node]
        return [one for one in self._nodes.order[first:end] if isinstance(one, kind)]

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the ancestors of a node, innermost first."""
        while (parent := self._nodes.parents.get(node)) is not None:
            node = parent
            yield node

    def functions_around(self, node: cst.CSTNode) -> list[str]:
        """Return the names of the functions around a node, innermost first."""
        return [one.name.value for one in self.above(node) if isinstance(one, cst.FunctionDef)]

    def names(self, node: cst.CSTNode) -> set[str]:
        """Return the qualified names of an expression, such as ``torch.utils.data.DataLoader`` for the alias ``DL``."""
        scope = self._scopes.get(node)
        return {one.name for one in scope.get_qualified_names_for(node)} if isinstance(scope, Scope) else set()

    def is_imported(self, node: cst.CSTNode) -> bool:
        """Return whether a name or a dotted name refers to something that the file imports."""
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
    """Lists all nodes of a tree, parents first, with each node's parent and the range of its subtree in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[cst.CSTNode] = []
        self.parents: dict[cst.CSTNode, cst.CSTNode | None] = {}
        self.spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self._open: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Add a node to the list, and store its parent and the start of its range."""
        self.parents[node] = self._open[-1] if self._open else None
        self.spans[node] = (len(self.order), 0)
        self.order.append(node)
        self._open.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Store the end of the node's range."""
        self._open.pop()
        self.spans[original_node] = (self.spans[original_node][0], len(self.order))


def code_of(node: cst.CSTNode) -> str:
    """Return a node as source text."""
    return cst.Module([]).code_for_node(node)


def unpacks(call: cst.Call) -> bool:
    """Return whether a call has arguments that are known only at run time: ``f(*args)``, ``f(**kwargs)``."""
    return any(arg.star for arg in call.args)


def argument(call: cst.Call, name: str, order: Sequence[str] = ()) -> cst.Arg | None:
    """Return a call's argument for a parameter, given by keyword or by position in `order`; None if not given."""
    for place, arg in enumerate(call.args):
        by_place = order[place] if place < len(order) else None
        if (arg.keyword.value if arg.keyword is not None else by_place) == name:
            return arg
    return None


def value_of(call: cst.Call, name: str, order: Sequence[str] = ()) -> str | None:
    """Return as source text the value that a call gives for a parameter; None if it gives none."""
    found = argument(call, name, order)
    return None if found is None else code_of(found.value)


def with_argument(call: cst.Call, name: str, value: str, order: Sequence[str] = ()) -> cst.Call:
    """Return the call with a value for a parameter: the given argument changed, or a new keyword argument."""
    found = argument(call, name, order)
    if found is None:
        arg = cst.Arg(cst.parse_expression(value), cst.Name(name), equal=cst.AssignEqual(_NO_SPACE, _NO_SPACE))
        return call.with_changes(args=_appended(call, arg))
    if code_of(found.value) == value:
        return call
    place = call.args.index(found)
    changed = found.with_changes(value=cst.parse_expression(value))
    return call.with_changes(args=[*call.args[:place], changed, *call.args[place + 1 :]])


def with_entry(call: cst.Call, name: str, value: str) -> cst.Call:
    """Return the call with an entry added to the first mapping that it unpacks; the entry overrides that key."""
    place = next(i for i, arg in enumerate(call.args) if arg.star == "**")
    arg = call.args[place]
    text = code_of(arg.value)
    is_ours = isinstance(arg.value, cst.Dict) and text.startswith("{**")
    new = f'{text[:-1]}, "{name}": {value}}}' if is_ours else f'{{**{text}, "{name}": {value}}}'
    changed = arg.with_changes(value=cst.parse_expression(new))
    return call.with_changes(args=[*call.args[:place], changed, *call.args[place + 1 :]])


def without(call: cst.Call, names: Iterable[str]) -> cst.Call:
    """Return the call without the arguments of these keywords."""
    for name in names:
        found = argument(call, name)
        if found is not None:
            call = call.with_changes(args=_dropped(call.args, call.args.index(found)))
    return call


def _appended(call: cst.Call, arg: cst.Arg) -> list[cst.Arg]:
    if not call.args:
        return [arg]
    *head, last = call.args
    if isinstance(last.comma, cst.Comma):
        closing = last.comma.whitespace_after
        arg = arg.with_changes(comma=cst.Comma(whitespace_after=_plain(closing)))
    else:
        closing = last.whitespace_after_arg
        arg = arg.with_changes(whitespace_after_arg=_plain(closing))
    comma = cst.Comma(whitespace_after=_commented(_between(call), closing))
    return [*head, last.with_changes(comma=comma, whitespace_after_arg=_NO_SPACE), arg]


def _between(call: cst.Call) -> _Space:
    """Return the whitespace between two arguments of a call."""
    if len(call.args) > 1:
        comma = call.args[-2].comma
        return _plain(comma.whitespace_after) if isinstance(comma, cst.Comma) else cst.SimpleWhitespace(" ")
    before = call.whitespace_before_args
    return _plain(before) if isinstance(before, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")


def _plain(space: _Space) -> _Space:
    """Return whitespace without its comments."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = cst.TrailingWhitespace(newline=space.first_line.newline)
    return space.with_changes(first_line=first, empty_lines=[])


def _commented(space: _Space, source: _Space) -> _Space:
    """Return `space` with the comment of `source`, and with a line break if there is a comment."""
    if not isinstance(source, cst.ParenthesizedWhitespace) or source.first_line.comment is None:
        return space
    if isinstance(space, cst.ParenthesizedWhitespace):
        return space.with_changes(first_line=source.first_line)
    return cst.ParenthesizedWhitespace(first_line=source.first_line, indent=True, last_line=source.last_line)


def _dropped(args: Sequence[cst.Arg], place: int) -> list[cst.Arg]:
    if place + 1 < len(args) or place == 0:
        return [*args[:place], *args[place + 1 :]]
    *head, last, gone = args
    own = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else _NO_SPACE
    if isinstance(gone.comma, cst.Comma):
        closing = _commented(_plain(gone.comma.whitespace_after), own)
        return [*head, last.with_changes(comma=gone.comma.with_changes(whitespace_after=closing))]
    closing = _commented(_plain(gone.whitespace_after_arg), own)
    return [*head, last.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=closing)]
