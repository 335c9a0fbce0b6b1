"""How is one argument of a call set or taken away, in the manner in which the call is written?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

_NO_SPACE = cst.SimpleWhitespace("")
_Space = cst.BaseParenthesizableWhitespace


def code_of(node: cst.CSTNode) -> str:
    """Return a node as source text."""
    return cst.Module([]).code_for_node(node)


def unpacks(call: cst.Call) -> bool:
    """Say whether some arguments are only known when the program runs: ``f(*args)``, ``f(**kwargs)``."""
    return any(arg.star for arg in call.args)


def argument(call: cst.Call, name: str, order: Sequence[str] = ()) -> cst.Arg | None:
    """Return an argument by its keyword, or by its place in the order of parameters."""
    for place, arg in enumerate(call.args):
        by_place = order[place] if place < len(order) else None
        if (arg.keyword.value if arg.keyword is not None else by_place) == name:
            return arg
    return None


def value_of(call: cst.Call, name: str, order: Sequence[str] = ()) -> str | None:
    """Return what is given for a parameter, as source text; None where nothing is."""
    found = argument(call, name, order)
    return None if found is None else code_of(found.value)


def with_argument(call: cst.Call, name: str, value: str, order: Sequence[str] = ()) -> cst.Call:
    """Return the call with a parameter set: where it is given already, or at the end by keyword."""
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
    """Return the call with an entry put over those of the first mapping that it unpacks."""
    place = next(i for i, arg in enumerate(call.args) if arg.star == "**")
    arg = call.args[place]
    text = code_of(arg.value)
    is_ours = isinstance(arg.value, cst.Dict) and text.startswith("{**")
    new = f'{text[:-1]}, "{name}": {value}}}' if is_ours else f'{{**{text}, "{name}": {value}}}'
    changed = arg.with_changes(value=cst.parse_expression(new))
    return call.with_changes(args=[*call.args[:place], changed, *call.args[place + 1 :]])


def without(call: cst.Call, names: Iterable[str]) -> cst.Call:
    """Return the call without some keywords."""
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
    """Return the space that stands between two arguments of this call."""
    if len(call.args) > 1:
        comma = call.args[-2].comma
        return _plain(comma.whitespace_after) if isinstance(comma, cst.Comma) else cst.SimpleWhitespace(" ")
    before = call.whitespace_before_args
    return _plain(before) if isinstance(before, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")


def _plain(space: _Space) -> _Space:
    """Return a space without the comments in it."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = cst.TrailingWhitespace(newline=space.first_line.newline)
    return space.with_changes(first_line=first, empty_lines=[])


def _commented(space: _Space, source: _Space) -> _Space:
    """Return a space with the comment of another one; what is not broken over lines is, where there is a comment."""
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
