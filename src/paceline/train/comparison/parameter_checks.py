"""Checks of parameters on several ranks, in some of the steps.

- `OutsideParameters` refuses optimizers that update parameters outside of the model, such as the class centers of a
  loss. The engine reduces gradients only for parameters of the model. Another parameter gets a gradient from the
  samples, positions or stages of one rank. If an optimizer updates it, each rank trains its own copy.
- `ReplicaCheck` compares ranks with the same parameters. With `dp`, all ranks take the same optimizer step from the
  same averaged gradients. Gradients differ if the loss was not computed by a call of the module that `setup` returned.
  Values differ if something outside of the model changes them in another way on each rank, such as random numbers in
  the training loop. The ranks compare the sum and the norm of each tensor, and the learning rates and other numbers of
  their optimizers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.arrange import Arranged
from paceline.train.comparison.advice import OFF
from paceline.train.ranks import agreement
from paceline.train.ranks.world import World

_EVERY_LOSSES = 512  # losses between two searches; before that, losses 1, 2, 4, 8 and so on are searched
_TOLERANCE = 1e-6  # of sums and norms, relative to the norm
_GRADIENT = (
    "the gradient of {name} differs between the ranks after backward. Compute the loss from the module that setup() "
    "returned, with one call of it before each backward(), and change gradients in the same way on all ranks"
)
_VALUE = (
    "the values of {name} differ between the ranks, because something outside of the model changed them, such as "
    "random numbers, or the samples of a rank, in the training loop. Draw such numbers from a torch.Generator that has "
    "the same seed on all ranks, and exchange what is computed from samples (torch.distributed.all_reduce)"
)
_BATCHES = (
    "ranks have read different numbers of batches. The program decides on each rank, by the samples or the loss of "
    "this rank, whether to skip a batch or a step. Decide by a value that all ranks have, such as engine.loss()"
)
_SETTING = (
    "{name} of the optimizer differs between the ranks. Set it from a value that all ranks have, such as engine.loss() "
    "or the result of engine.evaluate(), and not from the loss of one rank"
)

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
        if not self._is_on or (number & (number - 1) if number < _EVERY_LOSSES else number % _EVERY_LOSSES):
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


class ReplicaCheck:
    """Compares the parameters of a model between the ranks that hold the same ones."""

    def __init__(self, world: World, arranged: Arranged, optimizer: Any) -> None:
        """Store the arguments.

        Args:
            world: The ranks.
            arranged: The model as this rank holds it.
            optimizer: The optimizer of this rank.
        """
        self._world, self._model, self._optimizer = world, arranged.held, optimizer
        self._copies = None if arranged.stages is None else arranged.stages.copies
        self._steps = 0  # since `setup`

    def before_step(self, batches: int) -> None:
        """Compare gradients and the numbers of the optimizers before a step; a collective of all ranks.

        Args:
            batches: The number of batches that this rank has read.

        Raises:
            UsageError: A gradient or a number differs.
        """
        self._steps += 1
        if self._is_due():
            if not agreement.is_same(batches, self._world.everyone):
                self._refuse(_BATCHES, "")
            for axis in set(self._world.layout.in_use) - {"pp"}:  # each stage has its own groups of parameters
                named = list(_numbers_of(self._optimizer))
                place = _first_difference([number for _, number in named], self._world.group(axis), self._world.device)
                self._refuse(_SETTING, None if place is None else named[place][0])
            self._compare(_GRADIENT, lambda parameter: parameter.grad)

    def after_step(self) -> None:
        """Compare values after an optimizer step; a collective of all ranks.

        Raises:
            UsageError: A value differs.
        """
        if self._is_due():
            self.compare_values()

    def compare_values(self) -> None:
        """Compare the values of parameters; a collective of all ranks.

        Raises:
            UsageError: A value differs.
        """
        self._compare(_VALUE, lambda parameter: parameter)

    def _compare(self, message: str, tensor_of: Callable[[Any], Any]) -> None:
        for group, named in self._groups().items():
            pairs = [(name, each, tensor_of(each)) for name, each in named]
            # With tp, the gradient of a norm of each head is summed over the ranks only when the optimizer uses it.
            tensors = [(name, each) for name, own, each in pairs if each is not None and _placed(each) == _placed(own)]
            place = _first_difference([_plain(each) for _, each in tensors], group, self._world.device)
            self._refuse(message, None if place is None else tensors[place][0])

    def _is_due(self) -> bool:
        return agreement.is_due(self._steps)

    def _refuse(self, message: str, name: str | None) -> None:
        if name is not None:
            said = message.format(name=name)
            raise UsageError(f"{self._world.layout}, step {self._steps} after setup(): {said}. {OFF}")

    def _groups(self) -> dict[Any, list[tuple[str, Any]]]:
        """Return the parameters by the process group of the ranks that hold the same values."""
        found: dict[Any, list[tuple[str, Any]]] = {}
        for name, parameter in self._model.named_parameters():
            copies = None if self._copies is None else self._copies.group_of(name)
            for group in [*_groups_of(parameter, self._world), *([] if copies is None else [copies])]:
                found.setdefault(group, []).append((name, parameter))
        return found


def _placed(tensor: Any) -> Any:
    return getattr(tensor, "placements", ())


def _groups_of(parameter: Any, world: World) -> Iterator[Any]:
    if not hasattr(parameter, "placements"):
        if world.data_group is not None:
            yield world.data_group
        return
    for axis, placement in enumerate(parameter.placements):
        if placement.is_replicate() and parameter.device_mesh.size(axis) > 1:
            yield parameter.device_mesh.get_group(axis)


def _numbers_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the numbers in the groups of an optimizer, as tensors."""
    import torch

    for number, group in enumerate(optimizer.param_groups):
        for key, value in sorted(group.items()):
            values = value if isinstance(value, tuple) else (value,)
            if key != "params" and all(isinstance(each, int | float | torch.Tensor) for each in values):
                yield f"{key} of group {number}", torch.tensor([float(each) for each in values], dtype=torch.float64)


def _first_difference(tensors: list[Any], group: Any, device: Any) -> int | None:
    """Return the index of the first tensor whose sum or norm differs between the ranks of a group."""
    import torch

    if not tensors:
        return None
    # In the format of the tensor or in fp32, so that no larger copy of a tensor is needed.
    wide = [torch.float32 if each.dtype.itemsize < 4 else None for each in tensors]
    pairs = [(each.detach(), dtype) for each, dtype in zip(tensors, wide, strict=True)]
    norms = [torch.linalg.vector_norm(each, dtype=dtype).double().to(device) for each, dtype in pairs]
    sums = [each.sum(dtype=dtype).double().to(device) for each, dtype in pairs]
    both = torch.stack([*norms, *sums]).nan_to_num(0.0, 0.0, 0.0)
    ranges = torch.cat([both, -both])
    torch.distributed.all_reduce(ranges, torch.distributed.ReduceOp.MAX, group=group)
    most, least = ranges.chunk(2)
    sizes = torch.tensor([each.numel() ** 0.5 for each in tensors]).to(most)
    limits = _TOLERANCE * torch.cat([most[: len(tensors)], most[: len(tensors)] * sizes])
    first = next((place for place, each in enumerate((most + least > limits).tolist()) if each), None)
    return None if first is None else first % len(tensors)


def _plain(tensor: Any) -> Any:
    """Return this rank's part of a tensor as real numbers."""
    import torch

    local = getattr(tensor, "_local_tensor", tensor)
    return torch.view_as_real(local) if local.is_complex() else local
