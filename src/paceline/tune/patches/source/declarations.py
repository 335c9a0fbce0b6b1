"""Finds where a program declares a name: variables, attributes, options, dictionaries, configuration files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.source.configs import Scalar, Section
from paceline.tune.patches.source.program import (
    Located,
    ProgramFiles,
    destination,
    function_around,
    keyed,
    options_of,
    text_of,
)
from paceline.tune.patches.source.syntax_tree import Tree, argument, code_of

_CONSTANTS = ("True", "False", "None")
_ABSL = ("DEFINE_integer", "DEFINE_bool", "DEFINE_boolean")
_CONTAINERS = ("field", "Field", "Option", "Argument", "typer.Option", "dataclasses.field")
_CHANGES = ("update", "setdefault")
_MAKES = ("dict", "Namespace", "argparse.Namespace", "SimpleNamespace", "EasyDict", "edict", "OmegaConf.create")


@dataclass(frozen=True, kw_only=True)
class ValueOrigin:
    """One place that determines a value."""

    where: str  # such as train.py:12
    what: str  # name for users, such as --workers; empty for a plain constant
    text: str  # the value as source text
    node: cst.CSTNode | None = None  # node that can be replaced; None if there is none
    config: tuple[SourceFile, Scalar] | None = None
    flags: tuple[str, ...] = ()  # for an option: its names on a command line

    @property
    def is_declared(self) -> bool:
        """Whether users can set the value, as an option, a field or a key; False for a plain constant."""
        return bool(self.what)

    @property
    def can_change(self) -> bool:
        """Whether a patch can change the value."""
        return self.node is not None or self.config is not None


def is_literal(value: cst.BaseExpression) -> bool:
    """Return whether an expression is a number, a string, True, False or None."""
    named = isinstance(value, cst.Name) and value.value in _CONSTANTS
    return named or isinstance(value, cst.Integer | cst.SimpleString)


def contained(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the default in ``field(default=4)`` and ``Option(4)``; other expressions unchanged."""
    if isinstance(value, cst.Call) and code_of(value.func) in _CONTAINERS:
        found = argument(value, "default", ("default",))
        return found.value if found is not None else value
    return value


def declarations(program: ProgramFiles, key: str, keys: tuple[str, ...] = ()) -> list[ValueOrigin]:
    """Return the places where a program declares a name.

    Only the first kind with results counts: configuration files, options, fields of classes, then other assignments.

    Args:
        program: The program.
        key: The name, such as ``num_workers``.
        keys: The names before it, such as ``("data",)`` in ``cfg.data.num_workers``.
    """
    for kind in (_in_configs(program, key, keys), _options(program, key), _fields(program, key), _set(program, key)):
        if found := list(dict.fromkeys(kind)):
            return found
    return []


def sections(program: ProgramFiles, keys: tuple[str, ...]) -> list[tuple[SourceFile, Section]]:
    """Return the sections of configuration files whose path of keys ends in `keys`."""
    found = [(config.source, section) for config in program.configs for section in config.content[1]]
    return [(source, one) for source, one in found if keys and one.keys[-len(keys) :] == keys]


def _in_configs(program: ProgramFiles, key: str, keys: tuple[str, ...]) -> list[ValueOrigin]:
    """Return the configuration values of a key whose paths match `keys` best.

    Among equally good matches, values of files that the command names are preferred.
    """
    found = [
        ((_equal_at_end(scalar.keys[:-1], keys), config.is_chosen), _of_scalar(config.source, scalar))
        for config in program.configs
        for scalar in config.content[0]
        if scalar.keys and scalar.keys[-1] == key
    ]
    most = max((like for like, _ in found), default=(0, False))
    return [one for like, one in found if like == most]


def _of_scalar(source: SourceFile, scalar: Scalar) -> ValueOrigin:
    where = f"{source.path}:{scalar.line}"
    return ValueOrigin(where=where, what=".".join(scalar.keys), text=scalar.text, config=(source, scalar))


def _equal_at_end(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many names are equal at the end of two paths of keys."""
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


def _options(program: ProgramFiles, key: str) -> Iterator[ValueOrigin]:
    for one in (call for name in _ABSL for call in program.calls.get(name, ())):
        words = [arg.value for arg in one.node.args] if isinstance(one.node, cst.Call) else []
        if len(words) > 1 and text_of(words[0]) == key:
            yield replace(_origin(one, words[1], f"--{key}"), flags=(f"--{key}",))
    for name in ("add_argument", "option"):
        for one in program.calls.get(name, ()):
            if isinstance(one.node, cst.Call) and destination(one.node) == key:
                given = argument(one.node, "default")
                flags = options_of(one.node)
                found = _origin(one, given.value if given is not None else None, flags[-1])
                yield replace(found, flags=tuple(flags))


def _fields(program: ProgramFiles, key: str) -> Iterator[ValueOrigin]:
    """Yield attributes of classes with this name, such as fields of dataclasses."""
    for name, ones in program.classes.items():
        for one in ones:
            for value in assigned(one.tree, key, one.node):
                yield _origin(Located(one.source, one.tree, value), contained(value), f"{name}.{key}")


def _set(program: ProgramFiles, key: str) -> Iterator[ValueOrigin]:
    """Yield entries of dictionaries with this key, and assignments to such attributes (``config.workers = 4``)."""
    for one in program.each(cst.DictElement):
        if isinstance(one.node, cst.DictElement) and code_of(one.node.key).strip("\"'") == key:
            yield _origin(one, one.node.value, f'the key "{key}"')
    for one in program.each(cst.Assign):
        target = one.node.targets[0].target if isinstance(one.node, cst.Assign) else None
        is_key = isinstance(target, cst.Attribute) and target.attr.value == key
        if isinstance(one.node, cst.Assign) and target is not None and is_key and code_of(target) != f"self.{key}":
            yield _origin(one, one.node.value, code_of(target))


def _origin(one: Located, value: cst.BaseExpression | None, what: str) -> ValueOrigin:
    node = value if value is not None and is_literal(value) else None
    return ValueOrigin(where=one.where, what=what, text=code_of(value) if value is not None else "None", node=node)


@dataclass(frozen=True, kw_only=True)
class DictEntries:
    """The entries of a dictionary that can be read from the source."""

    values: Mapping[str, cst.BaseExpression]
    unpacked: Sequence[cst.BaseExpression] = ()  # other mappings that are unpacked into it
    perhaps: Sequence[cst.BaseExpression] = ()  # mappings that may be added later, or be used instead
    perhaps_values: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    is_complete: bool = True


def assignments(tree: Tree, scope: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield targets and values of the assignments in a function, class or module, without nested scopes."""
    for node in tree.within(scope, cst.Assign):
        for one in node.targets if _is_own(tree, node, scope) else ():
            yield from _pairs(one.target, node.value)
    for annotated in tree.within(scope, cst.AnnAssign):
        if annotated.value is not None and _is_own(tree, annotated, scope):
            yield annotated.target, annotated.value


def assigned(tree: Tree, name: str, scope: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the values that are assigned to a name in a function, a class or a module."""
    return [value for target, value in assignments(tree, scope) if code_of(target) == name]


def assigned_to_self(tree: Tree, owner: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
    """Return the values that methods assign to ``self.name``, or else those in the body of the class."""
    methods = [one for one in owner.body.body if isinstance(one, cst.FunctionDef)]
    found = [value for one in methods for target, value in assignments(tree, one) if code_of(target) == f"self.{name}"]
    return found or assigned(tree, name, owner)


def entries(tree: Tree, mapping: cst.BaseExpression) -> DictEntries | None:
    """Return the entries of a dictionary that is written out or is in a variable; None for other expressions."""
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
    """Return the known entries of a dictionary, plus those that other statements of the file can add to it."""
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
    """Yield each target of an assignment with its value; ``a, b = 1, 2`` gives two pairs."""
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
