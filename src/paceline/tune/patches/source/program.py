"""The files of one program, and lookups by name in them: calls, functions, classes, options and loaders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import libcst as cst

from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.source.configs import ConfigChange, ConfigFile
from paceline.tune.patches.source.syntax_tree import Tree, argument, code_of

LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_MAY_DECLARE = re.compile(r"loader|worker|thread|jobs|procs|prefetch|pin_memory|argparse|DataModule|Arguments", re.I)
_INITS = ("__init__",)
Function = cst.FunctionDef


@dataclass(frozen=True, eq=False)
class Located:
    """A syntax node with its file."""

    source: SourceFile
    tree: Tree
    node: cst.CSTNode

    @property
    def where(self) -> str:
        """The position of the node as text, such as ``train.py:12``."""
        return f"{self.source.path}:{self.tree.line(self.node)}"


class ProgramFiles:
    """The source files of a program, its configuration files, and the command that starts it.

    Attributes:
        values: The new source text of each expression that is replaced.
        changes: Changes to configuration files, by the path of the file.
    """

    def __init__(
        self, sources: Sequence[SourceFile], command: Sequence[str] = (), configs: Sequence[ConfigFile] = ()
    ) -> None:
        self.sources = sources
        self.command = command
        self.configs = configs
        self.values: dict[cst.CSTNode, str] = {}
        self.changes: dict[Path, list[ConfigChange]] = defaultdict(list)
        self._trees: dict[Path, Tree] = {}

    def tree(self, source: SourceFile) -> Tree:
        """Return the syntax tree of a source file, which is parsed once."""
        if source.path not in self._trees:
            self._trees[source.path] = Tree(source.text)
        return self._trees[source.path]

    def has_values(self, source: SourceFile) -> bool:
        """Return whether expressions of a source file are replaced."""
        tree = self._trees.get(source.path)
        return tree is not None and any(tree.has(node) for node in self.values)

    def each(self, kind: type[cst.CSTNode]) -> Iterator[Located]:
        """Yield the nodes of a type in the script, and in sources whose text can declare loaders or options."""
        for source in self.sources:
            if not (source.is_script or _MAY_DECLARE.search(source.text)):
                continue
            tree = self.tree(source)
            for node in tree.within(tree.module, kind):
                yield Located(source, tree, node)

    @cached_property
    def calls(self) -> Mapping[str, Sequence[Located]]:
        """All calls, by the last part of the called name."""
        found = defaultdict(list)
        for one in self.each(cst.Call):
            found[last_name(one.node.func)].append(one)  # type: ignore[attr-defined]
        return found

    @cached_property
    def classes(self) -> Mapping[str, Sequence[Located]]:
        """All classes, by name."""
        found = defaultdict(list)
        for one in self.each(cst.ClassDef):
            found[one.node.name.value].append(one)  # type: ignore[attr-defined]
        return found

    @cached_property
    def functions(self) -> Mapping[str, int]:
        """How many functions have each name."""
        found: dict[str, int] = defaultdict(int)
        for one in self.each(cst.FunctionDef):
            found[one.node.name.value] += 1  # type: ignore[attr-defined]
        return found

    @cached_property
    def loader_classes(self) -> frozenset[str]:
        """The names of the program's own loader classes (direct and indirect subclasses of torch's)."""
        found: set[str] = set()
        bases = {
            name: {n for base in one.node.bases for n in one.tree.names(base.value)}  # type: ignore[attr-defined]
            for name, ones in self.classes.items()
            for one in ones
        }
        while more := {n for n, b in bases.items() if _is_among(b, found)} - found:
            found |= more
        return frozenset(found)

    def is_loader(self, tree: Tree, call: cst.Call) -> bool:
        """Return whether a call creates a loader of torch's or the program's class, or is a partial of such a class."""
        made = self.makes(tree, call.func) or self._is_choice(tree, call.func)
        return made or self.is_partial(tree, call) or self.in_subclass(tree, call)

    def _is_choice(self, tree: Tree, function: cst.BaseExpression) -> bool:
        """Return whether a variable holds one of two loader classes, as in ``kind = DataLoader if plain else Mine``."""
        if not isinstance(function, cst.Name):
            return False
        scope = function_around(tree, function) or tree.module
        values = [
            one.value
            for one in tree.within(scope, cst.Assign)
            if [code_of(target.target) for target in one.targets] == [function.value]
        ]
        branches = [part for one in values if isinstance(one, cst.IfExp) for part in (one.body, one.orelse)]
        return len(values) == 1 and bool(branches) and all(self.makes(tree, one) for one in branches)

    def makes(self, tree: Tree, function: cst.BaseExpression) -> bool:
        """Return whether an expression names a loader class."""
        return _is_among(tree.names(function), self.loader_classes)

    def is_partial(self, tree: Tree, call: cst.Call) -> bool:
        """Return whether a call is ``functools.partial(DataLoader, ...)``."""
        return "functools.partial" in tree.names(call.func) and bool(call.args) and self.makes(tree, call.args[0].value)

    def in_subclass(self, tree: Tree, call: cst.Call) -> bool:
        """Return whether a call is ``super().__init__(...)`` in one of the program's loader classes.

        False if a base class in the program has its own ``__init__``, which then gets the arguments.
        """
        function = call.func
        if not isinstance(function, cst.Attribute) or function.attr.value not in _INITS:
            return False
        owner = class_around(tree, call)
        if owner is None or owner.name.value not in self.loader_classes:
            return False
        if any(self.has_init(tree, base.value) for base in owner.bases):
            return False  # the program's own base class takes the arguments
        return code_of(function.value).startswith("super(")

    def hands_on(self, tree: Tree, function: cst.BaseExpression) -> bool:
        """Return whether the named loader class of the program passes arguments on with ``super().__init__(...)``."""
        names = {name.rpartition(".")[2] for name in tree.names(function)}
        inner = [(c.tree, c.node) for c in self.calls.get("__init__", ()) if isinstance(c.node, cst.Call)]
        owners = [class_around(tree, call) for tree, call in inner if self.in_subclass(tree, call)]
        return any(one is not None and one.name.value in names for one in owners)

    def has_init(self, tree: Tree, function: cst.BaseExpression) -> bool:
        """Return whether an expression names a class of the program that defines ``__init__``."""
        names = {name.rpartition(".")[2] for name in tree.names(function)}
        return any(method(one.node, "__init__") for name in names for one in self.classes.get(name, ()))


def _is_among(names: set[str], own: Sequence[str] | set[str] | frozenset[str]) -> bool:
    return bool(names.intersection(LOADERS)) or any(name.rpartition(".")[2] in own for name in names)


def last_name(function: cst.BaseExpression) -> str:
    """Return the last name of an expression such as ``torch.utils.data.DataLoader``; "" for other expressions."""
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""


def class_around(tree: Tree, node: cst.CSTNode) -> cst.ClassDef | None:
    """Return the innermost class around a node; None without one."""
    return next((one for one in tree.above(node) if isinstance(one, cst.ClassDef)), None)


def function_around(tree: Tree, node: cst.CSTNode) -> Function | None:
    """Return the innermost function around a node; None without one."""
    return next((one for one in tree.above(node) if isinstance(one, cst.FunctionDef)), None)


def method(owner: cst.CSTNode, name: str) -> Function | None:
    """Return a method of a class by name; None if the class does not define it."""
    body = owner.body.body if isinstance(owner, cst.ClassDef) else ()
    return next((one for one in body if isinstance(one, cst.FunctionDef) and one.name.value == name), None)


def parameters(function: Function) -> list[cst.Param]:
    """Return the named parameters of a function, without ``self``."""
    given = function.params
    found = [*given.posonly_params, *given.params]
    if found and found[0].name.value in ("self", "cls"):
        found = found[1:]
    return [*found, *given.kwonly_params]


def positions(function: Function) -> list[str]:
    """Return the names of the parameters that can be passed by position."""
    keyword_only = {one.name.value for one in function.params.kwonly_params}
    return [one.name.value for one in parameters(function) if one.name.value not in keyword_only]


def text_of(node: cst.BaseExpression | None) -> str | None:
    """Return the value of a string; None for other expressions."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def keyed(node: cst.BaseExpression) -> tuple[cst.BaseExpression, str] | None:
    """Return mapping and key of ``m["key"]``, ``m.get("key", ...)`` or ``getattr(m, "key", ...)``; None for others."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        key = text_of(node.slice[0].slice.value)
        return (node.value, key) if key is not None else None
    if not isinstance(node, cst.Call) or not node.args:
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "get":
        key = text_of(node.args[0].value)
        return (node.func.value, key) if key is not None else None
    if code_of(node.func) in ("os.getenv", "getenv"):
        key = text_of(node.args[0].value)
        return (cst.parse_expression("os.environ"), key) if key is not None else None
    if code_of(node.func) == "getattr" and len(node.args) > 1:
        key = text_of(node.args[1].value)
        return (node.args[0].value, key) if key is not None else None
    return None


def options_of(call: cst.Call) -> list[str]:
    """Return the names of an option that a call such as ``add_argument`` declares, the long one last."""
    names = [text for arg in call.args if arg.keyword is None and (text := text_of(arg.value)) is not None]
    return sorted((name for name in names if name.startswith("-")), key=lambda name: name.startswith("--"))


def destination(call: cst.Call) -> str | None:
    """Return the attribute under which an option of argparse or click is read; None for other calls."""
    if last_name(call.func) not in ("add_argument", "option", "Option"):
        return None
    flags = options_of(call)
    given = argument(call, "dest")
    if given is not None:
        return text_of(given.value)
    return flags[-1].lstrip("-").replace("-", "_") if flags else None
