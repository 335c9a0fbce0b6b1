"""Refuses optimizers that update parameters outside of the model, such as the class centers of a loss.

The engine reduces gradients only for parameters of the model. Another parameter gets a gradient from the samples,
positions or stages of one rank. If an optimizer updates it, each rank trains its own copy.
"""

from __future__ import annotations

import weakref
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.ranks.world import World

_EVERY = 512  # losses between two searches; before that, losses 1, 2, 4, 8 and so on are searched

_engines: weakref.WeakSet[OutsideParameters] = weakref.WeakSet()
_hooks: list[Any] = []


class OutsideParameters:
    """Checks optimizers before their steps, on ranks that compute different parts of a loss."""

    def __init__(self, world: World, checked: bool, model: Any, optimizer: Any) -> None:
        """Register the check for all optimizers of this process.

        Args:
            world: The ranks.
            checked: Whether the recipe allows the check.
            model: The model as this rank holds it.
            optimizer: The optimizer of the engine.
        """
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._world, self._optimizer = world, weakref.ref(optimizer)
        self._own = {id(each) for each in model.parameters()}
        self._losses = 0
        self._found: dict[int, weakref.ref[Any]] = {}
        layout = world.layout
        self._is_on = checked and layout.samples * layout.cp * layout.pp > 1
        _engines.add(self)
        if self._is_on and not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(lambda optimizer, *given: _check(optimizer)))

    def search(self, loss: Any) -> None:
        """Find the parameters from which a loss is computed, for some of the losses."""
        self._losses = number = self._losses + 1
        if not self._is_on or (number & (number - 1) if number < _EVERY else number % _EVERY):
            return
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
            if hasattr(node, "variable"):
                self._found[id(node.variable)] = weakref.ref(node.variable)

    def check(self, optimizer: Any, own: set[int]) -> None:
        """Check an optimizer before its step.

        Args:
            optimizer: The optimizer.
            own: The ids of the parameters of the models of all engines.

        Raises:
            UsageError: The optimizer updates a parameter that belongs to none of these models, and the loss of this
                engine depends on the parameter.
        """
        if optimizer is self._optimizer():
            return
        parameters: list[Any] = [each for group in optimizer.param_groups for each in group["params"]]
        for parameter in parameters:
            reference = self._found.get(id(parameter))
            is_found = reference is not None and reference() is parameter
            if is_found and id(parameter) not in own:
                shape = "x".join(map(str, parameter.shape)) or "a number"
                raise UsageError(
                    f"{self._world.layout}: {type(optimizer).__name__} updates a parameter ({shape}) that gets its "
                    "gradient from the loss, but is not part of the model that setup() was given, so that each rank "
                    "would train its own copy. Make it part of the model, for example of its last layer. To train "
                    "without this check, set first_step = false in the section [checks] of the recipe"
                )


def _check(optimizer: Any) -> None:
    engines = list(_engines)
    own = {number for engine in engines for number in engine._own}
    for engine in engines:
        engine.check(optimizer, own)
