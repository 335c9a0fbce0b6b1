"""What is assigned to variables and attributes of a file, and what a dictionary in it contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from paceline.tune.patches.arguments import code_of
from paceline.tune.patches.program import function_around, keyed, text_of
from paceline.tune.patches.tree import Tree

_CHANGES = ("update", "setdefault")
_MAKES = ("dict", "Namespace", "argparse.Namespace", "SimpleNamespace", "EasyDict", "edict", "OmegaConf.create")


@dataclass(frozen=True, kw_only=True)
class DictEntries:
    """What a dictionary contains, as far as the source says."""

    values: Mapping[str, cst.BaseExpression]
    unpacked: Sequence[cst.BaseExpression] = ()  # other mappings that it takes in
    perhaps: Sequence[cst.BaseExpression] = ()  # mappings that may be put into it later, or stand for it
    perhaps_values: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    is_complete: bool = True


def assignments(tree: Tree, scope: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield the targets and values of the assignments in a function, a class or a module, without those inside it."""
    for node in tree.within(scope, cst.Assign):
        for one in node.targets if _is_own(tree, node, scope) else ():
            yield from _pairs(one.target, node.value)
    for annotated in tree.within(scope, cst.AnnAssign):
        if annotated.value is not None and _is_own(tree, annotated, scope):
            yield annotated.target, annotated.value


def assigned(tree: Tree, name: str, scope: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what is assigned to a name in a function, a class or a module."""
    return [value for target, value in assignments(tree, scope) if code_of(target) == name]


def assigned_to_self(tree: Tree, owner: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
    """Return what the methods of a class assign to ``self.name``, and what the class itself assigns to the name."""
    methods = [one for one in owner.body.body if isinstance(one, cst.FunctionDef)]
    found = [value for one in methods for target, value in assignments(tree, one) if code_of(target) == f"self.{name}"]
    return found or assigned(tree, name, owner)


def entries(tree: Tree, mapping: cst.BaseExpression) -> DictEntries | None:
    """Return what a dictionary contains: one that is written out, or a variable of one; None of any other."""
    written = _written(mapping)
    if written is not None or not isinstance(mapping, cst.Name | cst.Attribute):
        return written
    name = code_of(mapping)
    scope = function_around(tree, mapping) or tree.module
    found = assigned(tree, name, scope) or assigned(tree, name, tree.module)
    if name.startswith("self.") and not found:
        owner = next((one for one in tree.above(mapping) if isinstance(one, cst.ClassDef)), None)
        found = assigned_to_self(tree, owner, name.removeprefix("self.")) if owner is not None else []
    known = _written(found[0]) if len(found) == 1 else None
    return _with_later(tree, name, known) if known is not None else None


def _written(node: cst.BaseExpression) -> DictEntries | None:
    if isinstance(node, cst.Dict):
        pairs = [one for one in node.elements if isinstance(one, cst.DictElement)]
        values = {key: one.value for one in pairs if (key := text_of(one.key)) is not None}
        unpacked = [one.value for one in node.elements if isinstance(one, cst.StarredDictElement)]
        return DictEntries(values=values, unpacked=unpacked, is_complete=len(values) == len(pairs))
    if isinstance(node, cst.IfExp):
        return DictEntries(values={}, perhaps=[node.body, node.orelse])
    if isinstance(node, cst.Call) and code_of(node.func) in _MAKES:
        values = {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
        unpacked = [arg.value for arg in node.args if arg.keyword is None]
        return DictEntries(values=values, unpacked=unpacked)
    return None


def _with_later(tree: Tree, name: str, known: DictEntries) -> DictEntries:
    """Add what may be put into a dictionary after the line that creates it."""
    later: dict[str, cst.BaseExpression] = {}
    for target, value in _everywhere(tree):
        pair = keyed(target)
        if pair is not None and code_of(pair[0]) == name:
            later[pair[1]] = value
    perhaps = list(known.perhaps)
    for call in tree.within(tree.module, cst.Call):
        if code_of(call.func) in [f"{name}.{change}" for change in _CHANGES]:
            perhaps += [arg.value for arg in call.args if arg.keyword is None]
            later |= {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    return replace(known, perhaps=perhaps, perhaps_values=later)


def _everywhere(tree: Tree) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    for node in tree.within(tree.module, cst.Assign):
        for one in node.targets:
            yield from _pairs(one.target, node.value)


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield the pairs of an assignment, of which there are several in ``a, b = 1, 2``."""
    both = isinstance(target, cst.Tuple | cst.List) and isinstance(value, cst.Tuple | cst.List)
    if both and len(target.elements) == len(value.elements):  # type: ignore[attr-defined]
        for one, other in zip(target.elements, value.elements, strict=True):  # type: ignore[attr-defined]
            yield one.value, other.value
    elif isinstance(target, cst.Tuple | cst.List):
        for one in target.elements:
            yield one.value, value
    else:
        yield target, value


def _is_own(tree: Tree, node: cst.CSTNode, scope: cst.CSTNode) -> bool:
    inner = next((x for x in tree.above(node) if isinstance(x, cst.FunctionDef | cst.ClassDef | cst.Module)), None)
    return inner is scope
