"""Which loaders are those of evaluation: by their names, those of their datasets, and of the methods that make them.

A recipe leaves such loaders alone, too: it sees that gradients are switched off.
"""

from __future__ import annotations

import re

import libcst as cst

from paceline.tune.patches.arguments import argument, code_of, value_of
from paceline.tune.patches.program import Program, function_around
from paceline.tune.patches.tree import Tree

_WORDS = r"val|valid|validation|test|testing|eval|evaluation|dev|predict"
_THINGS = r"set|sets|loader|loaders|data|dataset|dataloader|ds|dl|iter|gen"
_EVALUATION = re.compile(rf"(?<![a-z])({_WORDS})(?:{_THINGS})?(?![a-z])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ORDER = ("dataset", "batch_size", "shuffle", "sampler")


def is_evaluation(program: Program, tree: Tree, call: cst.Call) -> bool:
    """Say whether a call makes a loader of evaluation, by its names; one that shuffles is none.

    Args:
        program: The program.
        tree: Of the call's file.
        call: That makes a loader.
    """
    if any(argument(call, name, _ORDER) is not None for name in ("sampler", "batch_sampler")):
        return False
    if (value_of(call, "shuffle", _ORDER) or "False") != "False":
        return False
    order = ("", *_ORDER) if program.is_partial(tree, call) else _ORDER
    dataset = argument(call, "dataset", order)
    names = [code_of(dataset.value)] if dataset is not None and not dataset.star else []
    assign = next((one for one in tree.above(call) if isinstance(one, cst.Assign)), None)
    names += [code_of(target.target) for target in assign.targets] if assign is not None else []
    function = function_around(tree, call)
    if assign is None and function is not None:
        names.append(function.name.value)
    return any(is_name_of_evaluation(name) for name in names) and not any("train" in name.lower() for name in names)


def is_name_of_evaluation(name: str) -> bool:
    """Say whether a name is one of evaluation, such as ``val_loader`` or ``testset``."""
    return _EVALUATION.search(_CAMEL.sub("_", name)) is not None
