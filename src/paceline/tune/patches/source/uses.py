"""Checks whether a value is used only for loaders, so that a patch can change it where it is defined.

It is allowed that a value is passed on, printed, and used in computations inside the arguments of loaders. A value that
also sets the number of threads, or decides a branch, is used for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from paceline.tune.patches.source.origins import Alias
from paceline.tune.patches.source.program import ProgramFiles, function_around, keyed, last_name
from paceline.tune.patches.source.syntax_tree import Tree, code_of

ARGUMENTS = frozenset({"transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"})
_DEPTH = 6
_CASTS = ("int", "bool", "float", "str", "max", "min")
_CONTAINERS = ("dict", "Namespace", "SimpleNamespace", "EasyDict", "replace", "asdict")
_PRINTS = ("print", "info", "debug", "warning", "log", "log_hyperparams", "save_hyperparameters", "add_text")
_COMPUTES = cst.BinaryOperation | cst.Comparison | cst.BooleanOperation | cst.UnaryOperation | cst.IfExp


def only_in_loaders(program: ProgramFiles, aliases: Iterable[Alias], depth: int = 0) -> bool:
    """Return whether a value is used in loaders only; passing it on and printing it are allowed.

    Args:
        program: The program.
        aliases: The names of the value.
        depth: Number of variables through which the value was followed so far.
    """
    if depth > _DEPTH:
        return False
    found = [(tree, node) for alias in aliases for tree, node in _uses(program, alias)]
    return all(_is_harmless(program, tree, node, depth) for tree, node in found)


def _uses(program: ProgramFiles, alias: Alias) -> Iterator[tuple[Tree, cst.CSTNode]]:
    if alias.tree is None or alias.scope is None:
        for kind in (cst.Attribute, cst.Subscript, cst.Call):
            for one in program.each(kind):
                if _reads(one.node, alias.name) and not _is_target(one.tree, one.node):
                    yield one.tree, one.node
        return
    trees: list[tuple[Tree, cst.CSTNode]] = [(alias.tree, alias.scope)]
    if isinstance(alias.scope, cst.Module):  # other files may import it
        others = [program.tree(source) for source in program.sources if alias.name in source.text]
        trees = [(tree, tree.module) for tree in others]
    for tree, scope in trees:
        for name in tree.within(scope, cst.Name):
            if name.value == alias.name and _is_read(tree, name):
                yield tree, name


def _reads(node: cst.CSTNode, key: str) -> bool:
    """Return whether a node reads an attribute or a key of this name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value == key
    pair = keyed(node) if isinstance(node, cst.Subscript | cst.Call) else None
    return pair is not None and pair[1] == key


def _is_target(tree: Tree, node: cst.CSTNode) -> bool:
    return isinstance(next(tree.above(node), None), cst.AssignTarget)


def _is_read(tree: Tree, name: cst.Name) -> bool:
    """Return whether a name is read; False for keywords, parameters, attributes, and assigned or defined names."""
    parent = next(tree.above(name), None)
    if isinstance(parent, cst.Arg):
        return parent.keyword is not name
    if isinstance(parent, cst.Param):
        return parent.default is name
    if isinstance(parent, cst.Attribute):
        return parent.attr is not name
    return not isinstance(parent, cst.AssignTarget | cst.NameItem | cst.FunctionDef | cst.ClassDef | cst.ImportAlias)


def _is_harmless(program: ProgramFiles, tree: Tree, node: cst.CSTNode, depth: int) -> bool:
    """Return whether one use of a value is in a loader, passes the value on, or prints it."""
    computed = False
    for one in tree.above(node):
        if isinstance(one, cst.Call) and _makes_loader(program, tree, one):
            return True
        if isinstance(one, cst.Assign | cst.AnnAssign):
            return _is_passed_on(program, tree, one, computed, depth)
        if isinstance(one, cst.Call) and last_name(one.func) not in _CASTS:
            return not computed and _takes(program, one)
        if isinstance(one, cst.Return | cst.Dict | cst.Param | cst.FormattedStringExpression):
            return not computed
        if isinstance(one, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            return False
        computed = computed or isinstance(one, _COMPUTES)
    return False


def _takes(program: ProgramFiles, call: cst.Call) -> bool:
    """Return whether a call passes its arguments to the program's own code or to a container, or prints them."""
    name = last_name(call.func)
    return name in program.functions or name in program.classes or name in (*_PRINTS, *_CONTAINERS)


def _makes_loader(program: ProgramFiles, tree: Tree, call: cst.Call) -> bool:
    return program.is_loader(tree, call) or bool(tree.names(call.func) & ARGUMENTS)


def _is_passed_on(
    program: ProgramFiles, tree: Tree, assign: cst.Assign | cst.AnnAssign, computed: bool, depth: int
) -> bool:
    """Return whether the variable to which a value is assigned is used in loaders only."""
    targets = [one.target for one in assign.targets] if isinstance(assign, cst.Assign) else [assign.target]
    if len(targets) != 1:
        return False
    target = targets[0]
    scope = function_around(tree, assign) or tree.module
    if isinstance(target, cst.Name):
        alias = Alias(target.value, tree, scope)
    elif isinstance(target, cst.Attribute) and code_of(target.value) == "self":
        alias = Alias(target.attr.value)
    else:
        return not computed
    uses = list(_uses(program, alias))
    if computed:
        return all(any(isinstance(x, cst.Call) and _makes_loader(program, t, x) for x in t.above(n)) for t, n in uses)
    return only_in_loaders(program, [alias], depth + 1)
