"""[compute]: torch.compile, channels-last, the number of compute threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.improve.child import held, roots


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Put the settings in force."""
    if "num_threads" in settings:
        _set_threads(torch, settings["num_threads"])
    if "compile" in settings:
        roots.around(torch, _Once(lambda module: _compile(module, settings["compile"])))
    if settings.get("channels_last"):
        roots.around(torch, _ChannelsLast(torch))


def _set_threads(torch: Any, count: int) -> None:
    """Set the number of threads for good: a program that sets another is not heard."""
    torch.set_num_threads(count)
    torch.set_num_threads = lambda _: None
    held.took("compute.num_threads", f"{count} threads")


class _Once:
    """Does something to each model before its first forward in training."""

    def __init__(self, act: Any) -> None:
        self._act = act
        self._done: set[int] = set()

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in self._done and module.training:
            self._done.add(id(module))
            self._act(module)
        return forward(*args, **kwargs)


def _compile(module: Any, mode: str) -> None:
    if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
        held.refused("compute.compile", f"{type(module).__name__} is compiled already")
        return
    module.compile(mode=None if mode == "default" else mode)
    held.took("compute.compile", f"{type(module).__name__} is compiled ({mode})")


class _ChannelsLast:
    """Keeps pictures and the weights of convolutions in channels-last memory."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._done: set[int] = set()

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in self._done:
            self._done.add(id(module))
            if any(p.dim() == 4 for p in module.parameters()):
                module.to(memory_format=self._torch.channels_last)
                held.took("compute.channels_last", f"{type(module).__name__} is channels-last")
        return forward(*(self._last(a) for a in args), **{k: self._last(v) for k, v in kwargs.items()})

    def _last(self, value: Any) -> Any:
        picture = isinstance(value, self._torch.Tensor) and value.dim() == 4
        return value.to(memory_format=self._torch.channels_last) if picture else value
