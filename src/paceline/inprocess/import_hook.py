"""Run actions when the program imports certain modules, through ``sys.meta_path``.

The finder sees every import, so it also measures the time of imports. A module that is never imported costs nothing.
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
_AN_IMPORT_NS = 100_000_000  # upper limit per module: longer intervals are mostly work between two imports


class _Imports:
    """The total import time, estimated from the short intervals between consecutive module searches."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._asked_ns = 0

    def asked(self) -> None:
        """Record a search for a module. The time since the last search counts as import time, up to a limit."""
        now = perf_counter_ns()
        self.spent_ns += min(now - self._asked_ns, _AN_IMPORT_NS)
        self._asked_ns = now


imports = _Imports()


class _After:  # not an importlib.abc.Loader: from Python 3.12 on, importing it loads 30 other modules
    """Wrapper of a module's loader. It calls a function after the module has been executed."""

    def __init__(self, loader: Any, executed: Action) -> None:
        self._loader = loader
        self._executed = executed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its original loader."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, restore its original loader, then call the function."""
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
    """Import finder that runs an action once after the import of a certain module, for several modules."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions
        self._asking: set[str] = set()  # names that other finders search now; prevents endless recursion

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec with the action attached, or None for modules without an action."""
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
    """Run each action when its module is imported, or now if the module is already imported."""
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, Finder(actions))
