"""Finds where a model is complete: after the last statement that assigns it to its name, before training.

A model is an object whose parameters are given to an optimizer: ``optim.AdamW(model.parameters())``, also through a
list, or ``make_optimizer(model)`` if the file calls ``model(...)``. If the file does not assign the name, as in a
function with the model as an argument, the place is before the statement that creates the optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from paceline.tune.patches.source.syntax_tree import Tree, code_of

_Line = cst.SimpleStatementLine
_Suite = cst.Module | cst.IndentedBlock
_PARAMETERS = ("parameters", "named_parameters")
_TRAINS = re.compile(r"train|fit|epoch|loop|run", re.IGNORECASE)
_OPTIMIZER = re.compile(r"opt", re.IGNORECASE)


@dataclass(frozen=True)
class ModelBinding:
    """The place at which statements about a model are inserted into a file."""

    model: str  # name of the model at this place
    anchor: cst.CSTNode  # the statement next to which they are inserted
    before: bool  # whether they are inserted before the anchor
    beside: frozenset[str]  # the simple statements of the same block, as source text
    made_by: frozenset[str]  # qualified names of the functions called where it is bound


def places(tree: Tree) -> list[ModelBinding]:
    """Return for each model of a file the place where the model is complete."""
    found: dict[tuple[str, cst.CSTNode], ModelBinding] = {}
    for statement in tree.within(tree.module, _Line):
        if _makes_optimizer(tree, statement):
            for model in _models_of(tree, statement):
                place = _place(tree, model, statement)
                found.setdefault((model, place.anchor), place)
    return list(found.values())


def _scope(tree: Tree, node: cst.CSTNode) -> cst.CSTNode:
    """Return the innermost function around a node, or the module."""
    return next(one for one in tree.above(node) if isinstance(one, cst.FunctionDef | cst.Module))


def _blocks(tree: Tree, statement: cst.CSTNode) -> list[tuple[_Suite, cst.CSTNode]]:
    """Return the code blocks around a statement, innermost first, each with its direct child around the statement."""
    found, below = [], statement
    for one in tree.above(statement):
        if isinstance(one, _Suite):
            found.append((one, below))
        below = one
    return found


def _makes_optimizer(tree: Tree, statement: _Line) -> bool:
    calls = tree.within(statement, cst.Call)
    if any(name.startswith("torch.optim.") and name.count(".") == 2 for c in calls for name in tree.names(c.func)):
        return True
    value = next((part.value for part in statement.body if isinstance(part, cst.Assign | cst.AnnAssign)), None)
    return isinstance(value, cst.Call) and any(_OPTIMIZER.search(name) for name in _bound(statement))


def _models_of(tree: Tree, statement: _Line) -> list[str]:
    """Return the names of the models whose parameters a statement passes to an optimizer."""
    scope = _scope(tree, statement)
    used = {node.value for node in tree.within(statement, cst.Name)}
    handed_on = [s for s in _statements(tree, scope) if used.intersection(_bound(s))]
    direct = _with_parameters(tree, [statement]) or _with_parameters(tree, handed_on)
    if direct:
        return direct
    called = {code_of(call.func) for call in tree.within(tree.module, cst.Call)}
    handed = [code_of(arg.value) for call in tree.within(statement, cst.Call) for arg in call.args]
    known = [name for name in dict.fromkeys(handed) if name in called or f"{name}.train" in called]
    near = _with_parameters(tree, [scope])
    return known or (near if len(near) == 1 else [])


def _with_parameters(tree: Tree, nodes: Iterable[cst.CSTNode]) -> list[str]:
    asked = [call.func for node in nodes for call in tree.within(node, cst.Call)]
    owners = [f.value for f in asked if isinstance(f, cst.Attribute) and f.attr.value in _PARAMETERS]
    return list(dict.fromkeys(name for owner in owners if (name := _root(owner))))


def _root(owner: cst.BaseExpression) -> str:
    """Return the object that owns the model: ``model`` for ``model.module.head``, ``self.net`` for ``self.net.x``."""
    parts = code_of(owner).split(".")
    if not all(part.isidentifier() for part in parts):
        return ""
    if parts[0] == "self":
        return ".".join(parts[:2]) if len(parts) > 1 else ""
    return parts[0]


def _statements(tree: Tree, scope: cst.CSTNode) -> list[_Line]:
    """Return the simple statements of a function or module, without those of nested functions."""
    return [s for s in tree.within(scope, _Line) if _scope(tree, s) is scope]


def _bound(statement: _Line) -> list[str]:
    """Return the names that a statement binds."""
    targets: list[cst.BaseExpression] = []
    for part in statement.body:
        if isinstance(part, cst.Assign):
            targets += [target.target for target in part.targets]
        elif isinstance(part, cst.AnnAssign) and part.value is not None:
            targets.append(part.target)
    parts = [p for t in targets for p in (t.elements if isinstance(t, cst.Tuple | cst.List) else [t])]
    return [code_of(p.value if isinstance(p, cst.BaseElement) else p) for p in parts]


def _bindings(tree: Tree, model: str, scope: cst.CSTNode) -> list[_Line]:
    own = [s for s in _statements(tree, scope) if model in _bound(s)]
    if own or not model.startswith("self."):
        return own
    owner = next((one for one in tree.above(scope) if isinstance(one, cst.ClassDef)), None)
    methods = [] if owner is None else [s for s in owner.body.body if isinstance(s, cst.FunctionDef)]
    return next((found for f in methods if (found := [s for s in _statements(tree, f) if model in _bound(s)])), [])


def _place(tree: Tree, model: str, optimizer: _Line) -> ModelBinding:
    bindings = _bindings(tree, model, _scope(tree, optimizer))
    if not bindings:
        suite, statement = _blocks(tree, optimizer)[0]
        return ModelBinding(model, statement, True, _beside(suite), frozenset())
    here = _scope(tree, bindings[0]) is _scope(tree, optimizer)
    chains = [_blocks(tree, s) for s in ([*bindings, optimizer] if here else bindings)]
    suite = next(s for s, _ in chains[0] if all(any(s is other for other, _ in chain) for chain in chains))
    body: list[cst.CSTNode] = list(suite.body)
    holders = sorted(body.index(one) for chain in chains[: len(bindings)] for s, one in chain if s is suite)
    made = next((body.index(one) for s, one in chains[-1] if s is suite), 0)
    use = next((i for i in range(made + 1, len(body)) if _uses(tree, body[i], model)), len(body))
    anchor = body[max((i for i in holders if i < use), default=holders[0])]
    made_by = {name for s in bindings for call in tree.within(s, cst.Call) for name in tree.names(call.func)}
    return ModelBinding(model, anchor, False, _beside(suite), frozenset(made_by))


def _uses(tree: Tree, statement: cst.CSTNode, model: str) -> bool:
    """Return whether a statement trains the model: a loop, a call of the model, or a training function that gets it."""
    if isinstance(statement, cst.For | cst.While):
        return True
    if isinstance(statement, _Line) and model in _bound(statement):
        return False
    for call in tree.within(statement, cst.Call):
        handed = model in [code_of(arg.value) for arg in call.args]
        if code_of(call.func) == model or (handed and _TRAINS.search(code_of(call.func))):
            return True
    return False


def _beside(suite: _Suite) -> frozenset[str]:
    lines: Sequence[cst.CSTNode] = [s for s in suite.body if isinstance(s, _Line)]
    return frozenset(code_of(part) for s in lines if isinstance(s, _Line) for part in s.body)
