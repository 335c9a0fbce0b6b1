"""Run actions around the outermost forward of a model. Modules without parameters, such as losses, are not models."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.inprocess import hooks

Around = Callable[[Any, Any, Any, Any], Any]  # module, its forward, args, kwargs -> result

_inside = threading.local()
_around: list[Around] = []


def around(torch: Any, action: Around) -> None:
    """Run an action around every outermost forward of a module that has parameters."""
    if not _around:
        _patch(torch)
    _around.append(action)


@contextmanager
def within_one() -> Iterator[None]:
    """Run the block as if inside a forward: no forward in the block counts as outermost."""
    before = getattr(_inside, "forward", False)
    _inside.forward = True
    try:
        yield
    finally:
        _inside.forward = before


def _patch(torch: Any) -> None:
    module_class = torch.nn.Module
    original = module_class.__call__
    compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or getattr(_inside, "forward", False) or not _has_parameters(self):
            return original(self, *args, **kwargs)
        _inside.forward = True
        try:
            call: Callable[..., Any] = functools.partial(original, self)
            for action in _around:
                call = _within(action, self, call)
            return call(*args, **kwargs)
        finally:
            _inside.forward = False

    hooks.install(module_class, "__call__", __call__)


def _within(action: Around, module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: action(module, forward, args, kwargs)


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None
