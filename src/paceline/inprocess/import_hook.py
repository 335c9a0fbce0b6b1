"""How do we act on a module when the program imports it, at no cost if it never does? Through ``sys.meta_path``.

There we hear of every import, and so how long they take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from paceline.inprocess import hooks

Action = Callable[[ModuleType], None]
_AN_IMPORT_NS = 100_000_000  # counted at most for one module: what takes longer is mostly work between two imports


class _Imports:
    """How long importing takes, told from when modules are looked for: one after another, at short intervals."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._asked_ns = 0

    def asked(self) -> None:
        """A module is looked for."""
        now = perf_counter_ns()
        self.spent_ns += min(now - self._asked_ns, _AN_IMPORT_NS)
        self._asked_ns = now


imports = _Imports()


class _After:  # not an importlib.abc.Loader: from Python 3.12 on that module costs every process 30 others
    """A loader that tells the finder once the module has been executed; otherwise the module's own loader."""

    def __init__(self, loader: Any, executed: Action) -> None:
        self._loader = loader
        self._executed = executed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the module's own loader."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, give it its own loader back, then act."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        self._executed(module)


class Finder:
    """Finds only the modules it waits for, and acts on each once. Merely asking where a module is changes nothing."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions
        self._asking: set[str] = set()  # names that other finders are asked for: one that also waits for them asks back

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give with the action attached, or None for every other module."""
        imports.asked()
        if fullname not in self._actions or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = self._found_by_others(fullname, path, target)
        finally:
            self._asking.discard(fullname)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            after: Any = _After(spec.loader, self._executed)
            spec.loader = after
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _executed(self, module: ModuleType) -> None:
        action = self._actions.pop(module.__name__, None)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        if action is None:
            return
        try:
            action(module)
        except Exception as error:
            hooks.fault(error, f"import of {module.__name__}")


def install(actions: dict[str, Action]) -> None:
    """Wait for these modules; those that are imported already are acted on now."""
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, Finder(actions))
