"""Command-line options that an argument takes its value from, such as ``num_workers=args.workers``.

A patch changes the default of the option, so that the flag stays in use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from paceline.improve.patches.arguments import argument, code_of
from paceline.improve.patches.tree import Tree

_DECLARED = re.compile(r"\.add_argument\(\s*(?:[\"']-\w[\"'],\s*)?[\"']--([\w-]+)[\"']")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of argparse."""

    flag: str  # such as --workers
    declared: cst.Call  # of add_argument
    default: str  # a whole number, as source text


def option_of(tree: Tree, value: cst.BaseExpression) -> Option | None:
    """Return the option that a value such as ``args.workers`` reads; None if the file declares no such number."""
    if not isinstance(value, cst.Attribute) or not isinstance(value.value, cst.Name):
        return None
    calls = [call for call in tree.within(tree.module, cst.Call) if _destination(call) == value.attr.value]
    default = argument(calls[0], "default") if len(calls) == 1 else None
    if default is None or not isinstance(default.value, cst.Integer):
        return None
    return Option(flag=_flags(calls[0])[-1], declared=calls[0], default=default.value.value)


def flags_in(value: cst.BaseExpression, texts: Iterable[str]) -> list[str]:
    """Return the flags of a program that an expression reads, by the names of its attributes.

    Args:
        value: The expression.
        texts: The sources of the program.
    """
    declared = {name.replace("-", "_"): f"--{name}" for text in texts for name in _DECLARED.findall(text)}
    read = re.findall(r"\b[A-Za-z_]\w*\.([A-Za-z_]\w*)", code_of(value))
    return [declared[name] for name in dict.fromkeys(read) if name in declared]


def is_given(flag: str, arguments: Sequence[str]) -> bool:
    """Say whether a command line gives a flag."""
    return any(word == flag or word.startswith(f"{flag}=") for word in arguments)


def used_only_in(tree: Tree, option: Option, is_meant: Callable[[cst.Call], bool]) -> bool:
    """Say whether the value of an option is read only in the arguments of calls that are meant.

    A variable that is assigned from it once, such as ``keep = args.workers > 0``, may be read there too.
    """
    name = _destination(option.declared)
    uses = [one for one in tree.within(tree.module, cst.Attribute) if one.attr.value == name]
    return all(_is_within(tree, one, is_meant) or _is_forwarded(tree, one, is_meant) for one in uses)


def _is_within(tree: Tree, node: cst.CSTNode, is_meant: Callable[[cst.Call], bool]) -> bool:
    return any(isinstance(one, cst.Call) and is_meant(one) for one in tree.above(node))


def _is_forwarded(tree: Tree, node: cst.CSTNode, is_meant: Callable[[cst.Call], bool]) -> bool:
    assign = next((one for one in tree.above(node) if isinstance(one, cst.Assign)), None)
    if assign is None or len(assign.targets) != 1 or not isinstance(assign.targets[0].target, cst.Name):
        return False
    target = assign.targets[0].target
    names = [one for one in tree.within(tree.module, cst.Name) if one.value == target.value and one is not target]
    return all(_is_within(tree, one, is_meant) for one in names if not _is_keyword(tree, one))


def _is_keyword(tree: Tree, name: cst.Name) -> bool:
    return any(isinstance(one, cst.Arg) and one.keyword is name for one in tree.above(name))


def _destination(call: cst.Call) -> str | None:
    """Return the attribute that ``add_argument`` declares; None of another call."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "add_argument":
        return None
    given = argument(call, "dest")
    if given is not None:
        return _text(given.value)
    flags = _flags(call)
    return flags[-1].lstrip("-").replace("-", "_") if flags else None


def _flags(call: cst.Call) -> list[str]:
    """Return the names that an option is declared with, the long one last."""
    names = [text for arg in call.args if arg.keyword is None and (text := _text(arg.value)) is not None]
    return sorted(names, key=lambda name: name.startswith("--"))


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
