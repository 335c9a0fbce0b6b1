"""Patches of Hugging Face's Trainer and Lightning, which can train on several processes themselves.

These libraries would average the losses of the ranks' parts. That is not the loss of the whole batch if a loss
compares or weighs rows. So on each rank the library trains as one process, and calls of the model are split as in any
other script. Settings of the script for several processes end the program with a message.
"""

from __future__ import annotations

import functools
from typing import Any

from paceline.inprocess import hooks, import_hook
from paceline.train.unmodified.state import Spread

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_ALONE = ("auto", "single_device", "SingleDeviceStrategy")


def patch(spread: Spread) -> None:
    """Patch the libraries when the program imports them."""
    actions: dict[str, Any] = {"transformers.trainer": lambda module: _patch_loss(spread, module.Trainer)}
    for name in _LIGHTNING:
        actions[f"{name}.trainer.trainer"] = lambda module: _patch_lightning(spread, module.Trainer)
    import_hook.install(actions)


def _patch_lightning(spread: Spread, kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _check_alone(spread, kwargs)
        kwargs["devices"] = 1  # the one GPU that this rank sees
        original(self, *args, **kwargs)

    hooks.install(kind, "__init__", __init__)


def _check_alone(spread: Spread, given: dict[str, Any]) -> None:
    """End the program if it gives Lightning settings for several processes."""
    strategy, nodes, devices = (given.get(name) for name in ("strategy", "num_nodes", "devices"))
    alone = strategy is None or strategy in _ALONE or type(strategy).__name__ in _ALONE
    if not alone:
        spread.refuse(f"the program gives Lightning strategy={strategy!r} itself; leave it out, or leave --layout out")
    if nodes not in (None, 1):
        spread.refuse(f"the program gives Lightning num_nodes={nodes} itself; leave it out, or leave --layout out")
    several = len(devices) > 1 if isinstance(devices, list | tuple) else devices not in (None, "auto", 1, "1", -1, "-1")
    if several:
        spread.refuse(f"the program gives Lightning devices={devices!r} itself; leave it out, or leave --layout out")


def _patch_loss(spread: Spread, kind: Any) -> None:
    """Patch Hugging Face's `Trainer.compute_loss` to skip the exchange of logits if only the loss is used."""
    original = kind.compute_loss

    @functools.wraps(original)
    def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        plain = not return_outputs and self.label_smoother is None and self.compute_loss_func is None
        spread.loss_only = plain and "labels" in inputs
        try:
            return original(self, model, inputs, return_outputs, **others)
        finally:
            spread.loss_only = False

    hooks.install(kind, "compute_loss", compute_loss)
