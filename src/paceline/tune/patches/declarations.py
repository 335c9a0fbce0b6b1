"""Where a program declares a name: in configuration files, options, class attributes, dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from paceline.tune.patches.arguments import argument, code_of
from paceline.tune.patches.configs import Scalar, Section
from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.program import Located, Program, destination, options_of, text_of
from paceline.tune.patches.variables import assigned

_CONSTANTS = ("True", "False", "None")
_ABSL = ("DEFINE_integer", "DEFINE_bool", "DEFINE_boolean")
_CONTAINERS = ("field", "Field", "Option", "Argument", "typer.Option", "dataclasses.field")


@dataclass(frozen=True, kw_only=True)
class ValueOrigin:
    """One place that says what a value is."""

    where: str  # such as train.py:12
    what: str  # as a user calls it, such as --workers; nothing of a plain constant
    text: str  # the value as source text
    node: cst.CSTNode | None = None  # that can be replaced; None: it cannot
    config: tuple[SourceFile, Scalar] | None = None
    flags: tuple[str, ...] = ()  # of an option: its names on a command line

    @property
    def is_declared(self) -> bool:
        """Whether users set the value: an option, a field, a key; else it is a plain constant."""
        return bool(self.what)

    @property
    def can_change(self) -> bool:
        """Whether a patch can change the value."""
        return self.node is not None or self.config is not None


def is_literal(value: cst.BaseExpression) -> bool:
    """Say whether an expression is a number, a string, or one of the constants of the language."""
    named = isinstance(value, cst.Name) and value.value in _CONSTANTS
    return named or isinstance(value, cst.Integer | cst.SimpleString)


def contained(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the default in ``field(default=4)`` and ``Option(4)``; any other expression as it is."""
    if isinstance(value, cst.Call) and code_of(value.func) in _CONTAINERS:
        found = argument(value, "default", ("default",))
        return found.value if found is not None else value
    return value


def declarations(program: Program, key: str, keys: tuple[str, ...] = ()) -> list[ValueOrigin]:
    """Return the places that declare a name, of the kind that wins over the others.

    Args:
        program: The program.
        key: The name, such as ``num_workers``.
        keys: The names before it, such as ``("data",)`` in ``cfg.data.num_workers``.
    """
    for kind in (_in_configs(program, key, keys), _options(program, key), _fields(program, key), _set(program, key)):
        if found := list(dict.fromkeys(kind)):
            return found
    return []


def sections(program: Program, keys: tuple[str, ...]) -> list[tuple[SourceFile, Section]]:
    """Return the sections of configuration files to which a path of keys leads."""
    found = [(config.source, section) for config in program.configs for section in config.content[1]]
    return [(source, one) for source, one in found if keys and one.keys[-len(keys) :] == keys]


def _in_configs(program: Program, key: str, keys: tuple[str, ...]) -> list[ValueOrigin]:
    """Return the values with a key whose path is most like the one that is read, of files that the command names."""
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
    """Return how many names at the end two paths share."""
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


def _options(program: Program, key: str) -> Iterator[ValueOrigin]:
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


def _fields(program: Program, key: str) -> Iterator[ValueOrigin]:
    """Yield attributes of classes, such as fields of dataclasses."""
    for name, ones in program.classes.items():
        for one in ones:
            for value in assigned(one.tree, key, one.node):
                yield _origin(Located(one.source, one.tree, value), contained(value), f"{name}.{key}")


def _set(program: Program, key: str) -> Iterator[ValueOrigin]:
    """Yield entries of dictionaries, and assignments to attributes such as ``config.workers = 4``."""
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
