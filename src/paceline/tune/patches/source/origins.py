"""Traces where a value comes from: a constant, an option's default, a dataclass, a dictionary, a configuration file.

A value is followed through variables, parameters and their callers, attributes of ``self``, and unpacked arguments. If
it cannot be followed, declarations with the same name are searched.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.source.configs import Section
from paceline.tune.patches.source.declarations import (
    DictEntries,
    ValueOrigin,
    assigned,
    assigned_to_self,
    contained,
    declarations,
    entries,
    is_literal,
    sections,
)
from paceline.tune.patches.source.program import (
    Located,
    ProgramFiles,
    class_around,
    function_around,
    keyed,
    last_name,
    method,
    parameters,
    positions,
)
from paceline.tune.patches.source.syntax_tree import Tree, argument, code_of

_DEPTH = 16
_ENVIRONMENT = ("os.environ", "environ")
_CASTS = ("int", "bool", "float")


@dataclass(frozen=True)
class Alias:
    """A name under which a traced value is read: a variable in one scope, or an attribute or key in any file."""

    name: str
    tree: Tree | None = None  # None: an attribute or a key, in all files
    scope: cst.CSTNode | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The known origins of a value."""

    origins: tuple[ValueOrigin, ...] = ()
    is_exact: bool = False  # whether the value equals that of its origin instead of being computed from it
    aliases: frozenset[Alias] = frozenset()
    lacking: tuple[
        tuple[SourceFile, Section], ...
    ] = ()  # sections of configuration files that are read but lack the key
    is_absent: bool = False  # whether it is certain that the value is not given
    is_unknown: bool = False  # whether the sources do not show where the value comes from

    @property
    def is_declared(self) -> bool:
        """Whether users can set the value at one or more of its origins."""
        return any(one.is_declared for one in self.origins)

    def by_way_of(self, *aliases: Alias) -> Trace:
        """Return the trace with additional names under which the value is read."""
        return replace(self, aliases=self.aliases.union(aliases))


@dataclass
class Tracer:
    """Traces where values in the files of one program come from."""

    program: ProgramFiles
    _open: list[cst.CSTNode] = field(default_factory=list)

    def trace(self, tree: Tree, value: cst.BaseExpression) -> Trace:
        """Return where a value comes from.

        Args:
            tree: The syntax tree of the file.
            value: An expression in the file.
        """
        if len(self._open) > _DEPTH or self._is_open(value):
            return Trace()
        self._open.append(value)
        try:
            return self._traced(tree, value)
        finally:
            self._open.pop()

    def _traced(self, tree: Tree, value: cst.BaseExpression) -> Trace:
        if is_literal(value):
            return Trace(origins=(self._literal(tree, value),), is_exact=True)
        if isinstance(value, cst.Name):
            return self._of_name(tree, value)
        if isinstance(value, cst.Attribute):
            return self._of_attribute(tree, value)
        if isinstance(value, cst.Call) and code_of(value.func) in _CASTS and len(value.args) == 1:
            return self.trace(tree, value.args[0].value)
        pair = keyed(value)
        if pair is not None:
            return self.in_mapping(tree, *pair)
        return self._of_parts(tree, value)

    def _is_open(self, value: cst.CSTNode) -> bool:
        """Return whether an expression is being traced already; tracing it again would never end."""
        return any(value is one for one in self._open)

    def _literal(self, tree: Tree, value: cst.CSTNode) -> ValueOrigin:
        source = next(one for one in self.program.sources if self.program.tree(one) is tree)
        return ValueOrigin(where=Located(source, tree, value).where, what="", text=code_of(value), node=value)

    def _of_parts(self, tree: Tree, value: cst.BaseExpression) -> Trace:
        """Return the origins of the names in a computed value, limited to origins that users can set."""
        kinds = cst.Name, cst.Attribute, cst.Subscript, cst.Call
        inner = [one for kind in kinds for one in tree.within(value, kind) if one is not value]
        return _computed(self.trace(tree, one) for one in inner if not _is_part(tree, one))

    def _of_name(self, tree: Tree, name: cst.Name) -> Trace:
        function = function_around(tree, name)
        while function is not None:
            found = [one for one in assigned(tree, name.value, function) if not self._is_open(one)]
            is_parameter = name.value in [one.name.value for one in parameters(function)]
            if found and is_parameter:
                variable = self._of_variable(tree, name.value, found, function)
                return _computed([variable, self.of_parameter(tree, function, name.value)])
            if found:
                return self._of_variable(tree, name.value, found, function)
            if is_parameter:
                return self.of_parameter(tree, function, name.value)
            function = function_around(tree, function)
        if found := assigned(tree, name.value, tree.module):
            return self._of_variable(tree, name.value, found, tree.module)
        return self._imported(tree, name)

    def _of_variable(self, tree: Tree, name: str, found: Sequence[cst.BaseExpression], scope: cst.CSTNode) -> Trace:
        traces = [self.trace(tree, one) for one in found]
        return (traces[0] if len(traces) == 1 else _computed(traces)).by_way_of(Alias(name, tree, scope))

    def _imported(self, tree: Tree, name: cst.BaseExpression) -> Trace:
        """Trace a name that is imported from another file of the program."""
        for whole in tree.names(name):
            module, _, last = whole.rpartition(".")
            for source in self.program.sources if module else ():
                if ".".join(source.path.with_suffix("").parts).endswith(module.lstrip(".")):
                    other = self.program.tree(source)
                    if found := assigned(other, last, other.module):
                        return self._of_variable(other, last, found, other.module)
        return Trace(is_unknown=True)

    def of_parameter(self, tree: Tree, function: cst.FunctionDef, name: str) -> Trace:
        """Return where a parameter gets its value: from callers, a configuration file, an option, or its default."""
        own = next((one for one in parameters(function) if one.name.value == name), None)
        default = self._default(tree, own, f"{name} of {function.name.value}()")
        calls = self._callers(tree, function)
        found = _joined([self._from_call(call, function, name, default) for call in calls]) if calls else Trace()
        if not found.origins and not found.lacking:
            declared = declarations(self.program, name)
            found = Trace(origins=tuple(declared), is_exact=True) if declared else default
        return found.by_way_of(Alias(name, tree, function))

    def _default(self, tree: Tree, own: cst.Param | None, what: str) -> Trace:
        if own is None or own.default is None:
            return Trace()
        found = self.trace(tree, contained(own.default))
        return replace(found, origins=tuple(replace(one, what=one.what or what) for one in found.origins))

    def _callers(self, tree: Tree, function: cst.FunctionDef) -> list[Located]:
        owner, name = class_around(tree, function), function.name.value
        if name == "__init__" and owner is not None:
            heirs = [one for one in self.program.calls.get("__init__", ()) if _is_heir(one, owner.name.value)]
            return [*self.program.calls.get(owner.name.value, ()), *heirs]
        calls = self.program.calls.get(name, ())
        return [one for one in calls if self.program.functions[name] == 1 or one.tree is tree]

    def _from_call(self, call: Located, function: cst.FunctionDef, name: str, default: Trace) -> Trace:
        node = call.node
        assert isinstance(node, cst.Call)  # a caller is a call
        if any(arg.star == "*" for arg in node.args):
            return Trace(origins=(ValueOrigin(where=call.where, what=f"{name} of {code_of(node.func)}()", text=""),))
        given = argument(node, name, positions(function))
        if given is not None and not given.star:
            return self.trace(call.tree, given.value)
        unpacked = [self.in_mapping(call.tree, arg.value, name) for arg in node.args if arg.star == "**"]
        return next((one for one in unpacked if one.origins or one.lacking), default)

    def _of_attribute(self, tree: Tree, value: cst.Attribute) -> Trace:
        *before, key = code_of(value).split(".")
        owner = class_around(tree, value)
        if before[0] == "self" and owner is not None:
            found = self._of_self(tree, owner, before[1:], key)
        elif len(before) == 1 and (there := self._imported(tree, value)).origins:
            found = there
        else:
            found = self._declared(key, tuple(before[1:]))
        return found.by_way_of(Alias(key))

    def _declared(self, key: str, keys: tuple[str, ...]) -> Trace:
        found = tuple(declarations(self.program, key, keys))
        return Trace(origins=found, is_exact=True, is_unknown=not found)

    def _of_self(self, tree: Tree, owner: cst.ClassDef, before: Sequence[str], key: str) -> Trace:
        """Trace ``self.key``, ``self.hparams.key`` or ``self.config.section.key`` in the class `owner`."""
        init = method(owner, "__init__")
        if list(before) == ["hparams"] and init is not None and key in [p.name.value for p in parameters(init)]:
            return self.of_parameter(tree, init, key)
        if not before:
            found = assigned_to_self(tree, owner, key)
            if found:
                return self._of_variable(tree, key, found, owner)
            for base in owner.bases:
                for one in self.program.classes.get(last_name(base.value), ()):
                    if isinstance(one.node, cst.ClassDef) and assigned_to_self(one.tree, one.node, key):
                        return self._of_self(one.tree, one.node, before, key)
        return self._declared(key, tuple(before[1:]))

    def in_mapping(self, tree: Tree, mapping: cst.BaseExpression, key: str) -> Trace:
        """Return where the value of a key of a mapping comes from, for example of ``**settings``."""
        known = entries(tree, mapping)
        if known is not None:
            return self._in_entries(tree, known, key)
        return self._in_unknown(tree, mapping, key).by_way_of(Alias(key))

    def _in_entries(self, tree: Tree, known: DictEntries, key: str) -> Trace:
        later = [self.in_mapping(tree, one, key) for one in known.perhaps]
        later += [self.trace(tree, known.perhaps_values[key])] if key in known.perhaps_values else []
        inner = [self.trace(tree, known.values[key])] if key in known.values else []
        inner = inner or [self.in_mapping(tree, one, key) for one in known.unpacked]
        first = next((one for one in inner if one.origins or one.lacking), None)
        if not any(one.origins or one.lacking or not one.is_absent for one in later):
            absent = known.is_complete and all(one.is_absent for one in inner)
            return first or Trace(is_absent=absent)
        return replace(_joined([*([first] if first else []), *later]), is_exact=False, is_absent=False, lacking=())

    def _in_unknown(self, tree: Tree, mapping: cst.BaseExpression, key: str) -> Trace:
        """Trace a key of a mapping without known entries: the environment, ``**kwargs``, or a configuration file."""
        if code_of(mapping) in _ENVIRONMENT:
            return Trace(origins=(ValueOrigin(where="the environment", what=key, text=""),), is_exact=True)
        own = self._variadic(tree, mapping)
        if own is not None:
            traces = [self._from_call(call, own, key, Trace(is_absent=True)) for call in self._callers(tree, own)]
            return _joined(traces) if traces else Trace(is_unknown=True)
        keys = self._keys(tree, mapping)
        if found := sections(self.program, keys):
            exact = declarations(self.program, key, keys)
            paths = [section.keys for _, section in found]
            inside = [one for one in exact if one.config is not None and one.config[1].keys[:-1] in paths]
            return Trace(origins=tuple(inside), is_exact=True) if inside else Trace(lacking=tuple(found))
        return Trace(origins=tuple(declarations(self.program, key, keys)), is_exact=True)

    def _variadic(self, tree: Tree, mapping: cst.BaseExpression) -> cst.FunctionDef | None:
        """Return the function that declares the mapping as its ``**kwargs``; None for other mappings."""
        function = function_around(tree, mapping)
        given = function.params.star_kwarg if function is not None else None
        return function if given is not None and code_of(mapping) == given.name.value else None

    def _keys(self, tree: Tree, mapping: cst.BaseExpression) -> tuple[str, ...]:
        """Return the keys through which a mapping is reached: ``("data", "loader")`` for ``cfg["data"].loader``."""
        pair = keyed(mapping)
        if pair is not None:
            return (*self._keys(tree, pair[0]), pair[1])
        if isinstance(mapping, cst.Attribute):
            if code_of(mapping.value) == "self":
                return ()
            return (*self._keys(tree, mapping.value), mapping.attr.value)
        if isinstance(mapping, cst.Name):
            scope = function_around(tree, mapping) or tree.module
            found = assigned(tree, mapping.value, scope)
            is_path = len(found) == 1 and (isinstance(found[0], cst.Attribute) or keyed(found[0]) is not None)
            return self._keys(tree, found[0]) if is_path else ()
        return ()


def _is_part(tree: Tree, node: cst.CSTNode) -> bool:
    """Return whether a name is no value to trace.

    True for a part of a dotted name, the name of a called function or of a keyword, an imported name, and a builtin.
    """
    above = next(tree.above(node))
    is_called = isinstance(above, cst.Call) and above.func is node
    is_keyword = isinstance(above, cst.Arg) and above.keyword is node
    return isinstance(above, cst.Attribute) or is_called or is_keyword or tree.is_imported(node) or _is_builtin(node)


def _is_builtin(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and hasattr(builtins, node.value)


def _is_heir(call: Located, name: str) -> bool:
    """Return whether a call is in a direct subclass of the named class, such as ``super().__init__(...)``."""
    owner = class_around(call.tree, call.node)
    return owner is not None and name in [last_name(base.value) for base in owner.bases]


def _computed(traces: Iterable[Trace]) -> Trace:
    """Return the trace of a value that is computed from the values of several traces."""
    found = list(traces)
    origins = tuple(dict.fromkeys(o for one in found for o in one.origins if o.is_declared))
    return Trace(origins=origins, is_unknown=any(one.is_unknown for one in found))


def _joined(traces: Sequence[Trace]) -> Trace:
    """Return the trace of a value that can come from each of several traces."""
    return Trace(
        origins=tuple(dict.fromkeys(origin for one in traces for origin in one.origins)),
        is_exact=all(one.is_exact for one in traces),
        aliases=frozenset(alias for one in traces for alias in one.aliases),
        lacking=tuple(dict.fromkeys(pair for one in traces for pair in one.lacking)),
        is_absent=all(one.is_absent for one in traces),
    )
