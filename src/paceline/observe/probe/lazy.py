"""How do we act on a module when the program imports it, at no cost if it never does? Through ``sys.meta_path``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from paceline.observe.probe import guard


class _After(Loader):
    """A loader that runs an action once the module has been executed; otherwise the module's own loader."""

    def __init__(self, loader: Any, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

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
        self._loader.exec_module(module)
        try:
            self._action(module)
        except Exception as error:
            guard.fault(error, f"import of {module.__name__}")


class Finder(MetaPathFinder):
    """Finds only the modules it waits for, each once."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the ordinary spec with the action attached, or None for every other module."""
        action = self._actions.get(fullname)
        if action is None:
            return None
        del self._actions[fullname]
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader, action)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        return spec


def install(actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """Wait for these modules; those that are imported already are acted on now."""
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, Finder(actions))
